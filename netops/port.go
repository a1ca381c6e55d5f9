package netops

import "github.com/cnibox/cnibox/netops/internal/rtnl"

// Port holds the flags of a bridge port.
type Port = rtnl.Port

// portWords formats a port's flags as bridge link does.
func portWords(p *Port) []string {
	w := []string{"hairpin", onOff(p.Hairpin), "isolated", onOff(p.Isolated)}
	if p.NeighSuppress != nil {
		w = append(w, "neigh_suppress", onOff(*p.NeighSuppress))
	}
	if p.Learning != nil {
		w = append(w, "learning", onOff(*p.Learning))
	}
	return w
}

// verifyPort compares the flags that p sets. A nil flag is not compared.
func verifyPort(p, have *Port, d *differences) {
	compare := func(what string, want, have *bool) {
		if want != nil {
			d.compare(what, onOff(*want), onOff(have != nil && *have))
		}
	}
	compare("neigh_suppress", p.NeighSuppress, have.NeighSuppress)
	compare("learning", p.Learning, have.Learning)
}
