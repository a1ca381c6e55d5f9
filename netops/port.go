package netops

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// words are the port's flags in the form of bridge link.
func (p *Port) words() []string {
	w := []string{"hairpin", onOff(p.Hairpin), "isolated", onOff(p.Isolated)}
	if p.NeighSuppress != nil {
		w = append(w, "neigh_suppress", onOff(*p.NeighSuppress))
	}
	if p.Learning != nil {
		w = append(w, "learning", onOff(*p.Learning))
	}
	return w
}

// is tells whether a port that is there has all that p sets.
func (p *Port) is(have *Port) bool {
	same := func(want, have *bool) bool { return want == nil || have != nil && *want == *have }
	return p.Hairpin == have.Hairpin && p.Isolated == have.Isolated &&
		same(p.NeighSuppress, have.NeighSuppress) && same(p.Learning, have.Learning)
}

// verify compares what p may leave open.
func (p *Port) verify(have *Port, d *differences) {
	compare := func(what string, want, have *bool) {
		if want != nil {
			d.compare(what, onOff(*want), onOff(have != nil && *have))
		}
	}
	compare("neigh_suppress", p.NeighSuppress, have.NeighSuppress)
	compare("learning", p.Learning, have.Learning)
}

// addSettings adds what p sets of that to a request.
func (p *Port) addSettings(attr *nl.RtAttr) {
	if p.NeighSuppress != nil {
		attr.AddRtAttr(nl.IFLA_BRPORT_NEIGH_SUPPRESS, boolAttr(*p.NeighSuppress))
	}
	if p.Learning != nil {
		attr.AddRtAttr(nl.IFLA_BRPORT_LEARNING, boolAttr(*p.Learning))
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
