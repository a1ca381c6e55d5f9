package agent

import (
	"context"
	"flag"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// policyFlags configure the enforcement of network policies.
type policyFlags struct {
	on, keepEstablished, log bool
	dir                      string
}

// defaultPolicyDir is the directory of policies without Kubernetes.
const defaultPolicyDir = "/etc/cnibox/policy.d"

func (p *policyFlags) register(f *flag.FlagSet) {
	f.BoolVar(&p.on, "policy", false, "enforce network policies on the pods of this node")
	f.StringVar(&p.dir, "policy-dir", defaultPolicyDir, "`directory` of network policies in YAML")
	f.BoolVar(&p.log, "policy-log", false, "log the packets that network policies deny, with the names of pods and policies")
	f.BoolVar(&p.keepEstablished, "keep-established", false, "let connections go on that a network policy begins to forbid")
}

// openPolicies opens the keeper of network policies. Without -policy it returns nil, unless the node's state says that it enforces policies:
// a flag that got lost must not open all pods.
func (a *agent) openPolicies(ctx context.Context) (*policy.Keeper, error) {
	p := &a.set.policy
	o := policy.Options{Server: a.socket, From: store.PolicySource{Kube: a.set.registry.kube}, KeepEstablished: p.keepEstablished, LogDenied: p.log, Remembered: !p.on}
	if !o.From.Kube {
		o.From.Dir = p.dir
	}
	if !p.on {
		on, err := enforce.Marked(ctx, a.host.Store)
		if err != nil || !on {
			return nil, err
		}
		mark, err := store.ReadKeep(ctx, a.host.Store, (*store.KeepTx).Enforcing)
		if err != nil {
			return nil, err
		}
		if mark != nil && mark.Source != (store.PolicySource{}) {
			o.From = mark.Source
		}
	}
	var err error
	o.Source, err = a.policySource(o.From, p.on)
	if err != nil {
		return nil, err
	}
	own := *a.host
	own.Net = a.host.Net.Clone()
	o.Host = &own
	return policy.Open(ctx, o)
}

// policySource opens the source of policies. If they were not asked for, a source that cannot be read is no error: the agent is not ready then.
func (a *agent) policySource(from store.PolicySource, asked bool) (policy.Source, error) {
	switch {
	case !from.Kube:
		dir := &policy.Directory{Path: from.Dir, Keep: enforce.KeptPath(a.host.Store), MustRead: !asked, Log: a.log}
		if asked && !dir.HasKept() {
			return dir, dir.Check()
		}
		return dir, nil
	case !a.set.registry.kube:
		return policy.Absent{}, nil
	}
	client, err := a.set.kubeClient(a.host)
	if err != nil {
		return nil, err
	}
	return policy.NewKube(client, a.registry.node, a.log), nil
}
