package agent

import (
	"testing"

	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// TestCollectGone: the agent collects what is gone in two searches in a row, and counts it.
func TestCollectGone(t *testing.T) {
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
				Netns: store.Netns{Path: t.TempDir() + "/none", Inode: 1, Mount: attachment.MountNamespace()},
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var gone map[store.Key]bool
	for collected, id := range []string{"a", "b", "c"} {
		put(id)
		gone = a.collectGone(t.Context(), h, gone)
		if a.counters.collected != collected {
			t.Errorf("%d were collected, want %d", a.counters.collected, collected)
		}
		err := h.Store.View(t.Context(), func(tx *store.Tx) error {
			if all, err := tx.Attachments("pods"); err != nil || len(all) != 1 || all[0].ContainerID != id {
				t.Errorf("left are %+v, %v, want %s", all, err, id)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
