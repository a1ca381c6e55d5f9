package ranges

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// TestTwoAgents: an agent whose socket another one has taken, after the run directory was deleted, does not use a block that the other one has
// returned. It begins again when the other one ends.
func TestTwoAgents(t *testing.T) {
	first := newMember(t, registry(t), "a")
	first.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	second := *first
	second.restart()
	for _, m := range []*member{first, &second} {
		m.must("net")
	}
	first.update(func(tx *store.Tx) error { return tx.DeleteRangeDemand(&store.RangeDemand{Network: "net"}) })
	first.Idle = time.Nanosecond
	first.must()
	if first.must(); len(first.addresses()) > 0 {
		t.Fatalf("not returned: %v", first.addresses())
	}
	path := first.Host.Store.AgentSocket()
	ctx, cancel := context.WithCancel(t.Context())
	server, closeSocket, err := service.Start(ctx, path, first.Host.Log)
	if err != nil {
		t.Fatal(err)
	}
	second.Server = server
	if err := errors.Join(os.Remove(path), os.Remove(path+".lock")); err != nil {
		t.Fatal(err)
	}
	unlock, err := service.Lock(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Open(); !errors.Is(err, service.ErrRuns) {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); second.Run(ctx) }()
	defer func() { cancel(); <-ended; closeSocket() }()
	await.Until(t, func() bool { return errors.Is(second.Fault(), service.ErrRuns) }, func() string { return errText(second.Fault()) })
	if got := first.addresses(); len(got) > 0 {
		t.Errorf("the second agent uses %v", got)
	}
	unlock()
	await.Until(t, func() bool { return second.Fault() == nil }, func() string { return errText(second.Fault()) })
	if got := first.addresses(); len(got) > 0 {
		t.Errorf("the second agent uses %v without another one", got)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
