package tap_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestRebuilt: after the loss of node.db an interface that has no end on the host is found in its container by the runtime's cache. Its address
// is not given again, and DEL removes it.
func TestRebuilt(t *testing.T) {
	e, ns := rolestest.NewEnv(t, all.Table()), netopstest.New(t)
	const conf = `{"cniVersion":"1.1.0","name":"taps","type":"tap","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	call := rolestest.Call{Type: "tap", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "tap0", Conf: conf}
	a := e.OK(call)
	cached := call // libcni caches the whole list
	cached.Conf = `{"cniVersion":"1.1.0","name":"taps","plugins":[` + conf + `]}`
	e.Cache(cached, a.Stdout)
	e.Forget()
	second := call
	second.ID, second.Netns = "c2", netopstest.New(t).Path()
	if b := e.OK(second); !strings.Contains(a.Stdout, "10.1.0.2/24") || !strings.Contains(b.Stdout, "10.1.0.3/24") {
		t.Errorf("first %s, second %s", a.Stdout, b.Stdout)
	}
	for _, c := range []rolestest.Call{call, second} {
		c.Verb = "DEL"
		e.OK(c)
	}
	if left := ns.Snapshot(t); strings.Contains(left, "tap0") {
		t.Errorf("DEL left %s", left)
	}
}
