package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops/egress"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

// askRequest is a request of an ADD: the pod whose attachment is recorded. Or it is that of a person, for a packet.
type askRequest struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`

	From netip.Addr `json:"from,omitzero"`
	To   netip.Addr `json:"to,omitzero"`
}

// askAnswer says why the pod must not start, or how a packet leaves.
type askAnswer struct {
	Error string `json:"error,omitempty"`
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

// serveTime bounds the work for one ADD.
const serveTime = 5 * time.Second

// serve returns a function that answers an ADD, until ctx ends.
func (k *Keeper) serve(ctx context.Context) func(net.Conn) {
	return func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(serveTime))
		go func() {
			defer c.Close() //nolint:errcheck // the client has its answer, or has ended
			ctx, stop := context.WithTimeout(ctx, serveTime)
			defer stop()
			line, err := bufio.NewReader(io.LimitReader(c, enforce.MaxMessage)).ReadBytes('\n')
			var r askRequest
			if err == nil {
				err = json.Unmarshal(line, &r)
			}
			var a askAnswer
			switch {
			case err != nil:
			case r.From.IsValid() && r.To.IsValid():
				a, err = k.explain(&r)
			default:
				err = k.admit(ctx, &r)
			}
			if err != nil {
				a.Error = fmt.Sprintf("%.500s", err)
			}
			_ = json.NewEncoder(c).Encode(a)
		}()
	}
}

// admit makes the kernel recognise the packets of a pod, and tells the holders of it.
func (k *Keeper) admit(ctx context.Context, r *askRequest) error {
	k.mu.Lock()
	synced := k.isSynced()
	k.mu.Unlock()
	if !synced {
		return errUnsynced
	}
	if err := k.compare(ctx); err != nil {
		return err
	}
	k.comparing.Lock()
	unmatched := k.last.unmatched[r.Namespace+"/"+r.Name]
	k.comparing.Unlock()
	if unmatched {
		return fmt.Errorf("namespace %s has the annotation %s, and the pod's interface has no MAC address by which its packets are recognised: use bridge or ptp", r.Namespace, Annotation)
	}
	_ = k.publish(ctx) // it is tried again, and until then the holder drops the pod's packets
	return nil
}

// explain returns how a packet of a pod of this node leaves.
func (k *Keeper) explain(r *askRequest) (a askAnswer, err error) {
	k.comparing.Lock()
	defer k.comparing.Unlock()
	if k.last == nil {
		return a, errUnsynced
	}
	to, has := k.last.assigned[r.From]
	if !has || k.last.inside(r.To) {
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
