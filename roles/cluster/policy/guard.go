package policy

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy/choice"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// guard restores what another program deleted while the source was not read yet: an agent that starts beside a server that does not answer must
// not leave pods open. Elements get the chains of the policies that an earlier agent saved. Without the chains, the pods that these policies
// select are denied everything, and without the saved policies all pods are. What the node itself sends and receives passes.
func (k *Keeper) guard(ctx context.Context) error {
	err := k.tryGuard(ctx)
	k.report(errors.Join(k.remembered(), err, k.markErr))
	return err
}

func (k *Keeper) tryGuard(ctx context.Context) error {
	saved, unread := enforce.ReadSaved(k.Host.Store)
	if unread != nil && !k.hasSaved {
		return nil // no policy was ever in force
	}
	rules, err := podfilter.Counters(ctx)
	if err != nil {
		return err
	}
	if err := k.local.read(ctx); err != nil {
		return err
	}
	isWhole := len(rules) > 0
	if isWhole && unread != nil {
		return nil // which elements are absent is not known
	}
	denied, count := podfilter.NewRuleset(), 0
	denied.Form.KeepEstablished = k.KeepEstablished
	denied.SetLinks(k.local.links()) // pods that no policy selects are open
	for _, p := range k.local.all() {
		want := choose(saved, p)
		if want.Egress+want.Ingress == "" {
			continue
		}
		count++
		switch {
		case !isWhole:
			deny(denied, want)
		default:
			if err := k.restore(ctx, want); err != nil {
				return err
			}
		}
	}
	if isWhole || count == 0 {
		return nil
	}
	k.Host.Log.Warn("another program deleted the rules of network policies before the agent knows these: the pods that they select are denied everything until then", "pods", count)
	return k.filter.Ensure(ctx, denied)
}

// choose returns the pod with the chains that the saved policies have for it, or, without these, with the one that drops everything.
func choose(saved *choice.Saved, p *podRequest) *podRequest {
	want := *p
	want.Egress, want.Ingress = podfilter.Deny, podfilter.Deny
	if saved != nil && p.Name != "" {
		want.Egress, want.Ingress = saved.Choose(p.Namespace, p.Name, p.UID, p.Network, p.Labels)
	}
	return &want
}

// restore adds the elements of a pod that the kernel lacks.
func (k *Keeper) restore(ctx context.Context, p *podRequest) error {
	lacks, err := k.Host.Net.LacksPodPolicy(ctx, p)
	if err != nil || !lacks {
		return err
	}
	k.Host.Log.Warn("another program deleted elements of network policies", "pod", p.Namespace+"/"+p.Name)
	return k.Host.Net.RestorePodPolicy(ctx, p)
}

// deny puts a pod into a Ruleset in which the chain that drops everything takes the place of its own.
func deny(r *podfilter.Ruleset, p *podRequest) {
	pod := podfilter.Pod{Label: p.Label, Port: p.Port, Bridge: p.Bridge}
	if p.Egress != "" {
		pod.Egress = podfilter.Deny
	}
	if p.Ingress != "" {
		pod.Ingress = podfilter.Deny
	}
	for _, a := range p.Addresses {
		r.PutPod(a, pod, false)
	}
}
