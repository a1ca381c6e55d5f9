package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/process"
)

// TestSocket: clients that connect and never read do not block others. The agent makes a socket
// again that was removed together with its lock.
func TestSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, socketFile)
	s := process.NewSocket(path)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	a := &agent{log: slog.New(slog.DiscardHandler)}
	const many = 20_000 // more than fits into the socket's send buffer
	a.reporter.current.Store(&agentState{left: make([]leftOut, many)})
	ctx, stop := context.WithCancel(t.Context())
	end := make(chan struct{})
	go func() { defer close(end); s.Answer(ctx, a.log, a.writeStatus) }()
	answered := func(when string) {
		t.Helper()
		got, err := askStatus(t.Context(), path)
		if err != nil || len(got.Nodes) != many {
			t.Fatalf("%s: %v", when, err)
		}
	}
	for range process.MaxAnswers - 1 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	answered("beside silent ones")
	for _, removed := range []string{path, dir} {
		if err := errors.Join(os.RemoveAll(removed), s.Open(), s.Open()); err != nil {
			t.Fatal(err)
		}
		answered("after " + removed + " was removed")
		if err := process.NewSocket(path).Open(); err == nil {
			t.Error("a second agent got the socket")
		}
	}
	stop()
	<-end
	s.Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left")
	}
}
