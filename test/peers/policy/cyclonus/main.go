// Command cyclonus asks cyclonus, an evaluator of NetworkPolicies. It reads JSON objects with policies and connections from standard input,
// and writes for each a JSON list that reports which of the connections are allowed.
//
// Where cyclonus differs from the documentation of Kubernetes, the question is put in another way:
//   - A requirement NotIn also selects objects without the key (Labels and Selectors, "Set-based requirement"), and cyclonus never selects
//     these. So each peer and each policy whose selector has NotIn is doubled, with DoesNotExist in place of NotIn. Peers of a rule and
//     policies of a pod are alternatives.
//   - cyclonus expects policyTypes, whose default the API server writes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type question struct {
	Policies []*networking.NetworkPolicy
	Traffic  []*matcher.Traffic
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q question
		err := in.Decode(&q)
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = out.Encode(q.answer())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cyclonus:", err)
			os.Exit(1)
		}
	}
}

func (q *question) answer() []bool {
	var policies []*networking.NetworkPolicy
	for _, p := range q.Policies {
		defaults(&p.Spec)
		for i := range p.Spec.Ingress {
			p.Spec.Ingress[i].From = peers(p.Spec.Ingress[i].From)
		}
		for i := range p.Spec.Egress {
			p.Spec.Egress[i].To = peers(p.Spec.Egress[i].To)
		}
		for _, s := range alternatives(&p.Spec.PodSelector) {
			one := *p
			one.Spec.PodSelector = *s
			policies = append(policies, &one)
		}
	}
	policy := matcher.BuildNetworkPolicies(false, policies)
	allowed := make([]bool, len(q.Traffic))
	for i, t := range q.Traffic {
		allowed[i] = policy.IsTrafficAllowed(t).IsAllowed()
	}
	return allowed
}

// defaults sets the policyTypes that the API server writes.
func defaults(s *networking.NetworkPolicySpec) {
	if len(s.PolicyTypes) > 0 {
		return
	}
	s.PolicyTypes = []networking.PolicyType{networking.PolicyTypeIngress}
	if len(s.Egress) > 0 {
		s.PolicyTypes = append(s.PolicyTypes, networking.PolicyTypeEgress)
	}
}

func peers(all []networking.NetworkPolicyPeer) (out []networking.NetworkPolicyPeer) {
	for _, p := range all {
		for _, namespaces := range alternatives(p.NamespaceSelector) {
			for _, pods := range alternatives(p.PodSelector) {
				out = append(out, networking.NetworkPolicyPeer{NamespaceSelector: namespaces, PodSelector: pods, IPBlock: p.IPBlock})
			}
		}
	}
	return out
}

// alternatives returns selectors that together select what s selects.
func alternatives(s *meta.LabelSelector) []*meta.LabelSelector {
	if s == nil {
		return []*meta.LabelSelector{nil}
	}
	all := []*meta.LabelSelector{{MatchLabels: s.MatchLabels}}
	for _, e := range s.MatchExpressions {
		either := []meta.LabelSelectorRequirement{e}
		if e.Operator == meta.LabelSelectorOpNotIn {
			either = append(either, meta.LabelSelectorRequirement{Key: e.Key, Operator: meta.LabelSelectorOpDoesNotExist})
		}
		var longer []*meta.LabelSelector
		for _, a := range all {
			for _, one := range either {
				longer = append(longer, &meta.LabelSelector{MatchLabels: a.MatchLabels, MatchExpressions: append(slices.Clone(a.MatchExpressions), one)})
			}
		}
		all = longer
	}
	return all
}
