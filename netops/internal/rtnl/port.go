package rtnl

import (
	"github.com/vishvananda/netlink/nl"

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

// AddSettings adds NeighSuppress and Learning to a request if they are set.
func (p *Port) AddSettings(b *nlconn.Body) {
	if p.NeighSuppress != nil {
		b.Bool(nl.IFLA_BRPORT_NEIGH_SUPPRESS, *p.NeighSuppress)
	}
	if p.Learning != nil {
		b.Bool(nl.IFLA_BRPORT_LEARNING, *p.Learning)
	}
}

// parseSetting reads NeighSuppress or Learning.
func (p *Port) parseSetting(kind uint16, v []byte) {
	on := nlconn.Byte(v) != 0
	switch kind {
	case nl.IFLA_BRPORT_NEIGH_SUPPRESS:
		p.NeighSuppress = &on
	case nl.IFLA_BRPORT_LEARNING:
		p.Learning = &on
	}
}
