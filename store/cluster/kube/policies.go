package kube

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// policy has the fields of a NetworkPolicy that say which pods it selects.
type policy struct {
	rest.Object
	Spec struct {
		PodSelector selector `json:"podSelector"`
	} `json:"spec"`
}

// selector is a metav1.LabelSelector.
type selector struct {
	MatchLabels      map[string]string  `json:"matchLabels"`
	MatchExpressions []rest.Requirement `json:"matchExpressions"`
}

// selects reports whether a pod with these labels is selected. An unknown operator selects none.
func (s *selector) selects(labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(r rest.Requirement) bool {
		value, has := labels[r.Key]
		return !r.Matches(value, has)
	})
}

// labelledPod has the fields of a pod that a policy depends on.
type labelledPod struct {
	rest.Object
	Metadata struct {
		rest.Metadata
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork bool `json:"hostNetwork"`
	} `json:"spec"`
}

// Policies returns the NetworkPolicies that select pods of this node, as NAMESPACE/NAME. It needs list on
// networkpolicies, and on pods if there are policies.
func (r *Registry) Policies(ctx context.Context) ([]string, error) {
	all := map[string][]policy{} // by namespace
	_, err := rest.List(ctx, r.client, "/apis/networking.k8s.io/v1/networkpolicies", func(p *policy) {
		all[p.Metadata.Namespace] = append(all[p.Metadata.Namespace], *p)
	})
	if err != nil {
		return nil, fmt.Errorf("list network policies: %w", err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	selecting := map[string]bool{}
	_, err = rest.ListWhere(ctx, r.client, "/api/v1/pods", url.Values{"fieldSelector": {"spec.nodeName=" + r.name}}, func(pod *labelledPod) {
		for i := range all[pod.Metadata.Namespace] {
			p := &all[pod.Metadata.Namespace][i]
			if !pod.Spec.HostNetwork && p.Spec.PodSelector.selects(pod.Metadata.Labels) {
				selecting[p.Metadata.Namespace+"/"+p.Metadata.Name] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", r.name, err)
	}
	return slices.Sorted(maps.Keys(selecting)), nil
}
