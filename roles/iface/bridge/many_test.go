package bridge_test

import (
	"fmt"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestGCOfManySubnets: GC of a network that has had 5,000 subnets ends within
// the time of a call, with and without a record of them. Removing them one by
// one would not.
func TestGCOfManySubnets(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	const conf = `{"cniVersion":"1.1.0","name":"many","type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"cni.dev/valid-attachments":[],
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	for name, before := range map[string]func(*rolestest.Env) error{
		"recorded":   func(*rolestest.Env) error { return nil },
		"state lost": deleteState,
	} {
		t.Run(name, func(t *testing.T) {
			p := newEmptyBridge(t, conf)
			p.share("many", 5000)
			must(t, before(p.Env))
			if a, err := rolestest.RunFor(p.Cmd(rolestest.Call{Type: "bridge", Verb: "GC", Conf: conf}), 0); err != nil || a.Code != 0 {
				t.Fatalf("GC: %v: exit %d: %s%s", err, a.Code, a.Stdout, a.Stderr)
			}
			p.gone("after GC")
		})
	}
}

// share creates a bridge with masquerading of n subnets and records it as the
// attachments of a network do.
func (p *emptyBridge) share(network string, n int) {
	p.t.Helper()
	h, done, err := node.Open(p.t.Context(), node.Options{RunDir: p.RunDir(), StateDir: p.StateDir(), Role: "test", Reference: migrate.ReferencePlugins{}})
	must(p.t, err)
	defer done()
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Shared: true, Name: "br0", Kind: "bridge", Up: true, Alias: attachment.SharedAlias},
	}}
	for i := range n {
		spec.Add(&netops.Element{
			Shared: true, Set: "masq4", Label: attachment.SharedLabel(network),
			Key: []string{"br0", fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)},
		})
	}
	plan, err := h.Net.Plan(p.t.Context(), spec, nil)
	must(p.t, err)
	must(p.t, h.Store.Update(p.t.Context(), func(tx *store.Tx) error {
		return attachment.PutShared(tx, network, "bridge", spec, plan.Changes, h.Now())
	}))
	must(p.t, h.Net.Apply(p.t.Context(), plan, nil))
}
