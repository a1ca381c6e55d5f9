package agent

import (
	"context"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// TestCollectTicks: the agent collects what is gone at two ticks in a row, and counts it.
func TestCollectTicks(t *testing.T) {
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), Role: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	a := &agent{host: h, log: h.Log}
	put := func(id string) {
		err := h.Store.Update(t.Context(), func(tx *store.Tx) error {
			return tx.PutAttachment(&store.Attachment{
				Key:   store.Key{Network: "pods", ContainerID: id, IfName: "eth0"},
				Netns: store.Netns{Path: t.TempDir() + "/none", Inode: 1, Mount: record.MountNamespace()},
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended, ticks := make(chan struct{}), make(chan time.Time)
	go func() {
		defer close(ended)
		a.collect(ctx, ticks)
	}()
	put("a")
	ticks <- time.Time{}
	ticks <- time.Time{} // the first one is complete
	put("b")
	ticks <- time.Time{}
	stop()
	<-ended
	if a.counters.collected != 1 {
		t.Errorf("%d were collected, want 1", a.counters.collected)
	}
	err = h.Store.View(t.Context(), func(tx *store.Tx) error {
		if all, err := tx.Attachments("pods"); err != nil || len(all) != 1 || all[0].ContainerID != "b" {
			t.Errorf("left are %+v, %v", all, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
