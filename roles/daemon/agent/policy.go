package agent

import (
	"context"
	"flag"

	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/netpolicy/keeper"
	"github.com/cnibox/cnibox/store"
)

// policyFlags configure the enforcement of network policies.
type policyFlags struct {
	on, keepEstablished bool
	dir                 string
}

// defaultPolicyDir is the directory of policies without Kubernetes.
const defaultPolicyDir = "/etc/cnibox/policy.d"

func (p *policyFlags) register(f *flag.FlagSet) {
	f.BoolVar(&p.on, "policy", false, "enforce network policies on the pods of this node")
	f.StringVar(&p.dir, "policy-dir", defaultPolicyDir, "`directory` of network policies in YAML")
	f.BoolVar(&p.keepEstablished, "keep-established", false, "let connections go on that a network policy begins to forbid")
}

// openPolicies opens the keeper of network policies. Without -policy it removes the rules of an earlier agent and returns
// nil.
func (a *agent) openPolicies(ctx context.Context) (*keeper.Keeper, error) {
	p := &a.set.policy
	if !p.on {
		return nil, enforce.Stop(ctx, a.host)
	}
	own := *a.host
	own.Net = a.host.Net.Clone()
	dir := &keeper.Directory{Path: p.dir, Log: a.log}
	var source keeper.Source = dir
	if r := &a.set.registry; !r.kube {
		if err := dir.Check(); err != nil {
			return nil, err
		}
	} else {
		client, err := a.set.kubeClient(a.host)
		if err != nil {
			return nil, err
		}
		source = keeper.NewKube(client, a.registry.node, a.log)
	}
	from := store.PolicySource{Kube: a.set.registry.kube}
	if !from.Kube {
		from.Dir = p.dir
	}
	return keeper.Open(ctx, keeper.Options{Host: &own, Source: source, From: from, KeepEstablished: p.keepEstablished})
}
