package path

import (
	"context"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// egressAnswer is the agent's answer about a packet.
type egressAnswer struct {
	Holder  string     `json:"holder"`
	Dropped string     `json:"dropped"`
	Address netip.Addr `json:"address"`
	Mark    uint32     `json:"mark"`
	Held    bool       `json:"held"`
}

// egressTime bounds the wait for the agent.
const egressTime = 5 * time.Second

// askEgress asks the agent whether a packet leaves the cluster with an address of the pod's namespace.
func askEgress(ctx context.Context, s *store.Store, from, to netip.Addr) (a egressAnswer, err error) {
	ctx, stop := context.WithTimeout(ctx, egressTime)
	defer stop()
	err = service.Ask(ctx, s.AgentSocket(), service.EgressExplain, map[string]netip.Addr{"from": from, "to": to}, service.Into(&a))
	return a, err
}

// delegated finds out whether the packet leaves the cluster with the address that another node, or this one, holds for the pod's namespace. It
// reports whether the path goes on.
func (w *walker) delegated(p *netops.Packet) bool {
	o, err := doctor.ReadOverlay(w.host, w.node)
	if err != nil || o.Egress == nil {
		return true // there are no such addresses
	}
	a, err := w.heldEgress(p.From, p.To)
	switch {
	case err != nil:
		w.step(view.HostName, "egress", "the agent does not say whether another node sends it on: %s", err)
	case a.Dropped != "":
		w.stop("", "it is dropped: %s", a.Dropped)
		return false
	case a.Address.IsValid() && a.Held:
		w.step(view.HostName, "source", "it leaves with %s, which this node holds for the namespace of %s", a.Address, p.From)
	case a.Address.IsValid():
		p.Mark = a.Mark
		w.step(view.HostName, "egress", "it leaves with %s, which node %s holds: it is sent there with the mark %#x", a.Address, a.Holder, a.Mark)
	}
	return true
}
