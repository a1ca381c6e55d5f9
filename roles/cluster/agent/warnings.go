package agent

import (
	"context"
	"slices"
)

// warnings returns faults of the node's settings. They affect no peer. An example is forwarding that
// cannot be enabled because /proc/sys is read-only.
func (a *agent) warnings(ctx context.Context) (texts []string) {
	for i, v6 := range []bool{false, true} {
		for _, w := range a.families[i].report.Warnings {
			texts = append(texts, familyName(v6)+": "+w.Error())
		}
		key := "net/bridge/bridge-nf-call-iptables"
		if v6 {
			key = "net/bridge/bridge-nf-call-ip6tables"
		}
		if a.set.registry.kube && a.enabled(v6) {
			if value, err := a.host.Net.Sysctl(ctx, nil, key); err != nil || value != "1" {
				texts = append(texts, familyName(v6)+": "+key+" is not 1: pods do not reach services whose pod is on the same node: run 'modprobe br_netfilter', and set it")
			}
		}
	}
	if err := a.ranges.Fault(); err != nil {
		texts = append(texts, "cluster-wide ranges: "+err.Error())
	}
	slices.Sort(texts)
	return texts
}
