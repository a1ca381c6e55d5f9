package rtnl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Port holds the flags of a bridge port (IFLA_BRPORT_*).
type Port struct {
	Hairpin  bool `json:"hairpin,omitempty"`
	Isolated bool `json:"isolated,omitempty"`
	// NeighSuppress makes the bridge answer ARP requests and neighbour
	// solicitations that arrive at other ports, if it has a neighbour entry and a
	// forwarding entry at this port for the address. It sends none of them out of
	// this port. Learning adds the source MACs of the frames that arrive at this
	// port to the forwarding table. nil leaves a setting unchanged; a new port
	// has learning on.
	NeighSuppress *bool `json:"neighSuppress,omitempty"`
	Learning      *bool `json:"learning,omitempty"`
}

// Is reports whether the existing port have has all settings of p.
func (p *Port) Is(have *Port) bool {
	same := func(want, have *bool) bool { return want == nil || have != nil && *want == *have }
	return p.Hairpin == have.Hairpin && p.Isolated == have.Isolated &&
		same(p.NeighSuppress, have.NeighSuppress) && same(p.Learning, have.Learning)
}

func (p *Port) attrs() []nlconn.Attr {
	return []nlconn.Attr{
		{Kind: nl.IFLA_BRPORT_MODE, At: &p.Hairpin, Zero: true},
		{Kind: nl.IFLA_BRPORT_ISOLATED, At: &p.Isolated, Zero: true},
		{Kind: nl.IFLA_BRPORT_NEIGH_SUPPRESS, At: &p.NeighSuppress},
		{Kind: nl.IFLA_BRPORT_LEARNING, At: &p.Learning},
	}
}

// AddTo appends IFLA_LINKINFO with the flags.
func (p *Port) AddTo(b *nlconn.Body) {
	kind := KindBridge
	b.Attrs([]nlconn.Attr{{Kind: unix.IFLA_LINKINFO, At: []nlconn.Attr{
		{Kind: nl.IFLA_INFO_SLAVE_KIND, At: &kind}, {Kind: nl.IFLA_INFO_SLAVE_DATA, At: p.attrs()},
	}}})
}
