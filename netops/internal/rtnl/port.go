package rtnl

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Port holds the flags of a bridge port (IFLA_BRPORT_*).
type Port struct {
	Hairpin  bool `json:"hairpin,omitempty"`
	Isolated bool `json:"isolated,omitempty"`
	// NeighSuppress has the bridge answer ARP requests and neighbour solicitations
	// that come in by other ports for what it has a neighbour and a forwarding entry
	// at this one, and send none of those out of it. Learning takes the sources of
	// frames that come in by the port into the forwarding table. nil leaves them as
	// they are: learning is on at a new port.
	NeighSuppress *bool `json:"neighSuppress,omitempty"`
	Learning      *bool `json:"learning,omitempty"`
}

// Is reports whether a port that is there has all that p sets.
func (p *Port) Is(have *Port) bool {
	same := func(want, have *bool) bool { return want == nil || have != nil && *want == *have }
	return p.Hairpin == have.Hairpin && p.Isolated == have.Isolated &&
		same(p.NeighSuppress, have.NeighSuppress) && same(p.Learning, have.Learning)
}

// AddSettings adds what p sets of that to a request.
func (p *Port) AddSettings(attr *nl.RtAttr) {
	if p.NeighSuppress != nil {
		attr.AddRtAttr(nl.IFLA_BRPORT_NEIGH_SUPPRESS, BoolAttr(*p.NeighSuppress))
	}
	if p.Learning != nil {
		attr.AddRtAttr(nl.IFLA_BRPORT_LEARNING, BoolAttr(*p.Learning))
	}
}

// parseSetting reads one of these.
func (p *Port) parseSetting(kind uint16, v []byte) {
	on := nlconn.Byte(v) != 0
	switch kind {
	case nl.IFLA_BRPORT_NEIGH_SUPPRESS:
		p.NeighSuppress = &on
	case nl.IFLA_BRPORT_LEARNING:
		p.Learning = &on
	}
}
