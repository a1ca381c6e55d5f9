package egress

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
)

// TestExplain: what 'cnibox path' hears about packets of this node's pods, and ADD before the namespaces were read.
func TestExplain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	s, stop, err := service.Start(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	k := &Keeper{Options: Options{Node: "a"}}
	defer s.Handle(k.handlers())()
	ask := func(from, to string) (a explanation, err error) {
		err = service.Ask(t.Context(), path, service.EgressExplain, map[string]netip.Addr{"from": addr(from), "to": addr(to)}, service.Into(&a))
		return a, err
	}
	if _, err := ask("10.244.1.2", "198.51.100.1"); err == nil || err.Error() != errUnsynced.Error() {
		t.Errorf("before the first reading: %v", err)
	}
	pod := map[string]string{"namespace": "team", "name": "p"}
	if err := service.Ask(t.Context(), path, service.EgressAdmit, pod, nil); err == nil || err.Error() != errUnsynced.Error() {
		t.Errorf("ADD before the first reading: %v", err)
	}
	for args, want := range map[any]string{1: "the arguments of the request: ", nil: "the arguments of the request: "} {
		for _, name := range []string{service.EgressAdmit, service.EgressExplain} {
			if err := service.Ask(t.Context(), path, name, args, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s %v: %v", name, args, err)
			}
		}
	}
	f := world()
	f.holders[addr("203.0.113.7")], f.held[addr("2001:db8::7")] = "b", true
	f.requests["none"] = parseRequest("no address", nil)
	k.last = decide(f)
	for _, c := range []struct {
		from, to string
		want     explanation
	}{
		{"10.244.1.2", "198.51.100.1", explanation{Address: addr("203.0.113.7"), Holder: "b", Via: addr("10.244.2.0")}},
		{"fd00:1::2", "2001:db8:1::1", explanation{Address: addr("2001:db8::7"), Holder: "a", Held: true}},
		{"10.244.1.3", "198.51.100.1", explanation{Address: addr("203.0.113.8"), Dropped: "no node that this one reaches holds 203.0.113.8"}},
		{"10.244.1.4", "198.51.100.1", explanation{Dropped: "the annotation " + Annotation + " of its namespace cannot be followed: 'cnibox agent status' says why"}},
		{"10.244.1.2", "10.244.2.9", explanation{}},
		{"10.244.9.9", "198.51.100.1", explanation{}},
	} {
		got, err := ask(c.from, c.to)
		if (got.Mark != 0) != c.want.Address.IsValid() {
			t.Errorf("%s to %s: mark %#x", c.from, c.to, got.Mark)
		}
		got.Mark = 0
		if err != nil || got != c.want {
			t.Errorf("%s to %s: %+v, %v, want %+v", c.from, c.to, got, err, c.want)
		}
	}
}
