package enforce

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Recorded returns the pod for which an attachment's ADD asked for policies, or nil. An ADD that makes the interface before it has addresses, as for
// DHCP, records the pod twice: the last one has them.
func Recorded(a *store.Attachment) (p *netops.PodPolicy) {
	for i := range a.Parts {
		var changes []struct {
			Undo struct {
				PodPolicy *netops.PodPolicy `json:"podPolicy"`
			} `json:"undo"`
		}
		if json.Unmarshal(a.Parts[i].Changes, &changes) != nil {
			continue
		}
		for _, c := range changes {
			if c.Undo.PodPolicy != nil {
				p = c.Undo.PodPolicy
			}
		}
	}
	return p
}

// lostTime is the time after which Lost looks again at what the kernel lacks: the agent may be changing it.
const lostTime = time.Second

// Lost returns the recorded pods whose elements another program deleted, with the chains of the policies that the agent saved last.
func Lost(ctx context.Context, h *roles.Host) (lost []*netops.PodPolicy, err error) {
	for again := false; ; again = true {
		if lost, err = lostNow(ctx, h); err != nil || len(lost) == 0 || again {
			return lost, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lostTime):
		}
	}
}

func lostNow(ctx context.Context, h *roles.Host) (lost []*netops.PodPolicy, err error) {
	on, err := Marked(ctx, h.Store)
	if err != nil || !on {
		return nil, err
	}
	saved, err := ReadSaved(h.Store)
	if err != nil {
		return nil, nil //nolint:nilerr // what is wanted is not known: no pod is attached then, and doctor says so
	}
	all, err := store.Read(ctx, h.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Attachments("") })
	if err != nil {
		return nil, err
	}
	for i := range all {
		p := Recorded(&all[i])
		if p == nil {
			continue
		}
		want := *p
		want.Egress, want.Ingress = saved.Choose(p.Namespace, p.Name, p.UID, p.Network, p.Labels)
		lacks, err := h.Net.LacksPodPolicy(ctx, &want)
		if err != nil {
			return nil, err
		}
		if lacks {
			lost = append(lost, &want)
		}
	}
	return lost, nil
}
