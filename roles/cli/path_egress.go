package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// delegated asks the agent whether the packet leaves the cluster with the address that another node, or this one, holds for the pod's
// namespace. It reports whether the path goes on.
func (w *walker) delegated(p *netops.Packet) bool {
	o, err := store.ReadOverlay(w.node.Store.OverlayPath())
	if err != nil || o.Egress == nil {
		return true // there are no such addresses
	}
	question, err := json.Marshal(map[string]netip.Addr{"from": p.From, "to": p.To})
	if w.fail(err) {
		return false
	}
	var a struct {
		Error, Holder, Dropped string
		Address                netip.Addr
		Mark                   uint32
		Held                   bool
	}
	ctx, stop := context.WithTimeout(w.ctx, egressTime)
	defer stop()
	raw, err := enforce.Exchange(ctx, w.node.Store.EgressSocket(), question, maxEgressAnswer)
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	switch {
	case err != nil:
		w.step(hostName, "egress", "the agent does not say whether another node sends it on: %s", err)
		return true
	case a.Dropped != "":
		w.stop("", "it is dropped: %s", a.Dropped)
		return false
	case a.Address.IsValid() && a.Held:
		w.step(hostName, "source", "it leaves with %s, which this node holds for the namespace of %s", a.Address, p.From)
	case a.Address.IsValid():
		p.Mark = a.Mark
		w.step(hostName, "egress", "it leaves with %s, which node %s holds: it is sent there with the mark %#x", a.Address, a.Holder, a.Mark)
	}
	return true
}

// egressTime bounds the wait for the agent, and maxEgressAnswer its answer in bytes.
const (
	egressTime      = 5 * time.Second
	maxEgressAnswer = 64 << 10
)
