package attachment

import (
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// PublishedFlows are the tracked connections to UDP ports that an attachment publishes.
type PublishedFlows struct {
	Owner store.Key
	*netops.Flows
}

// UDPFlows returns the tracked connections to the UDP ports of claims.
func UDPFlows(claims []store.Claim) (all []PublishedFlows) {
	for _, c := range claims {
		p := c.Resource().Ports
		if p.Protocol != "udp" {
			continue
		}
		f := &netops.Flows{In: netops.Host, Proto: p.Protocol, Port: p.First, End: p.Last, Dst: p.Address}
		if !f.Dst.IsValid() {
			f.Local, f.Dst = true, netip.IPv4Unspecified()
			if p.Family == "IPv6" {
				f.Dst = netip.IPv6Unspecified()
			}
		}
		all = append(all, PublishedFlows{c.Owner, f})
	}
	return all
}
