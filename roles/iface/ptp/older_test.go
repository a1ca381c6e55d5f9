package ptp_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestOlderVersion: an older version made the network's elements with a name
// pattern. They masquerade and CHECK accepts them. The next ADD makes those of
// this version, and GC removes both.
func TestOlderVersion(t *testing.T) {
	ctx := t.Context()
	e := rolestest.NewEnv(t, all.Table())
	pristine := e.State([]string{"sysctl net/"})
	t.Run("attached", func(t *testing.T) {
		out := newOutside(t)
		a := attach(t, e, dual, "a")
		var spec netops.Spec
		for set, key := range map[string][]string{"masq4": {"veth*", "10.1.0.0/24"}, "masq6": {"veth*", "fd00:1::/64"}} {
			spec.Add(&netops.Element{Shared: true, Set: set, Key: key, Label: attachment.SharedLabel("dual")})
		}
		h, done, err := node.Open(ctx, node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "ptp", Reference: migrate.ReferencePlugins{}})
		must(t, err)
		defer done()
		plan, err := h.Net.Plan(ctx, spec, nil)
		must(t, err)
		must(t, h.Net.Apply(ctx, plan, nil))
		must(t, h.Store.Update(ctx, func(tx *store.Tx) error {
			return attachment.AddShared(tx, "dual", "ptp", spec, time.Now())
		}))
		for _, set := range []string{"masq_kind4", "masq_kind6"} {
			if text, err := exec.Command("nft", "flush", "set", "inet", "cnibox", set).CombinedOutput(); err != nil {
				t.Fatalf("flush %s: %v\n%s", set, err, text)
			}
		}
		check := a.call
		check.Verb = "CHECK"
		check.Conf = rolestest.WithKeys(t, check.Conf, map[string]any{"prevResult": json.RawMessage(a.result)})
		e.OK(check)
		netopstest.CheckDatagram(t, "IPv4", a, netopstest.Listen(t, out, "192.0.2.2:5000"), "192.0.2.1")
		netopstest.CheckDatagram(t, "IPv6", a, netopstest.Listen(t, out, "[2001:db8::2]:5000"), "2001:db8::1")
		attach(t, e, dual, "b")
		if have := masqueraded(t); !slices.Equal(have, []string{"10.1.0.0/24"}) {
			t.Errorf("after the next ADD %s are masqueraded by kind", have)
		}
		e.OK(check)
	})
	collect(t, e, dual)
	if have := e.State([]string{"sysctl net/"}); have != pristine {
		t.Errorf("after GC:\n%s\nbefore:\n%s", have, pristine)
	}
}
