package agent

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// TestStatusSize: a status that is longer than what the kernel keeps of an answer arrives whole.
func TestStatusSize(t *testing.T) {
	const many = 20_000
	h := &roles.Host{Log: slog.New(slog.DiscardHandler), Store: store.New(store.Options{RunDir: filepath.Join(t.TempDir(), "run")})}
	a := &agent{log: h.Log}
	a.reporter.current.Store(&agentState{summary: summary{Node: "self"}, left: make([]leftOut, many)})
	s, stop, err := service.Start(t.Context(), h.Store.AgentSocket(), h.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	defer s.Handle(map[string]service.Handler{service.Status: a.writeStatus})()
	got, err := askStatus(t.Context(), h)
	if err != nil || got.Node != "self" || len(got.Nodes) != many || got.Nodes[many-1].State != stateLeftOut {
		t.Fatalf("%+v, %v", got, err)
	}
}
