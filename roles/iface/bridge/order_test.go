package bridge_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestAddressOutlivesLink: the address of an existing link is not assigned
// again, whichever call failed to remove the link.
func TestAddressOutlivesLink(t *testing.T) {
	for _, verb := range []string{"DEL", "GC"} {
		t.Run(verb, func(t *testing.T) {
			e := rolestest.NewEnv(t, all.Table())
			ns := netopstest.New(t)
			call := rolestest.Call{Type: "bridge", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0"}
			call.Conf = rolestest.WithKeys(t, gateway, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []string{}})
			e.OK(call)
			call.Verb, call.Probe = verb, "net:fail:1"
			e.Fail(call, 0)
			const lease = `["10.1.0.2",`
			if s := e.State(nil, ns); !strings.Contains(s, "10.1.0.2/24 dev eth0") || !strings.Contains(s, lease) {
				t.Errorf("want both the address and its lease:\n%s", s)
			}
			call.Probe = ""
			e.OK(call)
			call.Verb = "GC"
			e.OK(call)
			if s := e.State(nil, ns); strings.Contains(s, lease) {
				t.Errorf("the lease still exists:\n%s", s)
			}
		})
	}
}
