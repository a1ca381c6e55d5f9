package ranges

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles/cluster/process"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// TestLongError: the longest error arrives.
func TestLongError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends
	requests := make(chan *request)
	go process.Accept(l, accept(requests, t.Context().Done()))
	text := strings.Repeat("<", maxError)
	go func() {
		select {
		case r := <-requests:
			r.reply(errors.New(text + "cut"))
		case <-t.Context().Done():
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), askTime)
	defer cancel()
	a, err := ask(ctx, path, "net")
	if err != nil || a.Error != text {
		t.Errorf("%d characters, %v", len(a.Error), err)
	}
}

// TestSocket: a socket that cannot be opened is the keeper's fault until it is open, and a deleted one is made again.
func TestSocket(t *testing.T) {
	m := newMember(t, registry(t), "a")
	path := Socket(m.Host)
	unlock, err := process.Lock(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	await.Until(t, func() bool { return strings.Contains(errText(m.Fault()), "ranges.sock") }, func() string { return "no fault: " + errText(m.Fault()) })
	unlock()
	served := func() bool { _, err := ask(ctx, path, "net"); return err == nil && m.Fault() == nil }
	await.Until(t, served, func() string { return errText(m.Fault()) })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await.Until(t, served, func() string { return "not served after the file was deleted" })
}

// TestTwoAgents: an agent beside another one on its node does not use a block that the other one has returned. It begins when the
// other one ends.
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
	unlock, err := process.Lock(Socket(first.Host) + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); second.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	await.Until(t, func() bool { return errors.Is(second.Fault(), process.ErrRuns) }, func() string { return errText(second.Fault()) })
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
