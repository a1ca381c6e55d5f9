package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/egress"
)

// explanation says how a packet leaves.
type explanation struct {
	// Address is the one that a packet leaves with. It is invalid for a packet that stays as it is.
	Address netip.Addr `json:"address,omitzero"`
	// Holder is the node that has it, Via the gateway to it and Mark the mark of the packet. Held is true on the holder itself.
	Holder string     `json:"holder,omitempty"`
	Via    netip.Addr `json:"via,omitzero"`
	Mark   uint32     `json:"mark,omitempty"`
	Held   bool       `json:"held,omitempty"`
	// Dropped is why the packet is dropped.
	Dropped string `json:"dropped,omitempty"`
}

// errUnsynced is the answer before everything was read.
var errUnsynced = errors.New("the agent has not read the egress addresses of the namespaces yet")

func (k *Keeper) handlers() map[string]service.Handler {
	return map[string]service.Handler{service.EgressAdmit: k.admit, service.EgressExplain: k.explain}
}

// admitTime bounds the work for one ADD.
const admitTime = 5 * time.Second

// admit makes the kernel recognise the packets of a pod whose attachment is recorded, and tells the holders of it. An error is why the pod must
// not start.
func (k *Keeper) admit(ctx context.Context, asked *service.Request) (any, error) {
	ctx, stop := context.WithTimeout(ctx, admitTime)
	defer stop()
	var pod struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	if err := asked.Decode(&pod); err != nil {
		return nil, err
	}
	k.mu.Lock()
	synced := k.isSynced()
	k.mu.Unlock()
	if !synced {
		return nil, errUnsynced
	}
	if err := k.compare(ctx); err != nil {
		return nil, err
	}
	k.comparing.Lock()
	unmatched := k.last.unmatched[pod.Namespace+"/"+pod.Name]
	k.comparing.Unlock()
	if unmatched {
		return nil, fmt.Errorf("namespace %s has the annotation %s, and the pod's interface has no MAC address by which its packets are recognised: use bridge or ptp", pod.Namespace, Annotation)
	}
	_ = k.publish(ctx) // it is tried again, and until then the holder drops the pod's packets
	return nil, nil
}

// explain returns how a packet of a pod of this node leaves.
func (k *Keeper) explain(_ context.Context, asked *service.Request) (any, error) {
	var packet struct {
		From netip.Addr `json:"from"`
		To   netip.Addr `json:"to"`
	}
	if err := asked.Decode(&packet); err != nil {
		return nil, err
	}
	k.comparing.Lock()
	defer k.comparing.Unlock()
	if k.last == nil {
		return nil, errUnsynced
	}
	a := &explanation{}
	to, has := k.last.assigned[packet.From]
	if !has || k.last.inside(packet.To) {
		return a, nil
	}
	if !to.IsValid() {
		a.Dropped = "the annotation " + Annotation + " of its namespace cannot be followed: 'cnibox agent status' says why"
		return a, nil
	}
	a.Address = to
	i := slices.IndexFunc(k.last.spec.Addresses, func(one egress.Address) bool { return one.Addr == to })
	one := &k.last.spec.Addresses[i] // what is assigned has an index
	a.Mark, a.Held, a.Via, a.Holder = one.Mark(), one.Held, one.Via, k.last.holders[to]
	switch {
	case a.Held:
		a.Holder = k.Node
	case !a.Via.IsValid():
		a.Dropped = fmt.Sprintf("no node that this one reaches holds %s", to)
	}
	return a, nil
}
