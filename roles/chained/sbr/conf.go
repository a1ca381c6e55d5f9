// Package sbr is the CNI role "sbr", source based routing: what a container
// sends from an address of an interface leaves by that interface, with the keys
// of the reference plugin.
package sbr

import (
	"math"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the sbr role.
type Conf struct {
	roles.NetConf
	// Table is a routing table that somebody else fills: only the rules that
	// lead to it are made, and no routes are moved. Without it each address has a
	// table of its own, the next that is free from 100 on.
	Table *int `json:"table,omitempty"`
	// Gateways are next hops of the tables' default routes, at most one of each
	// family. They win over those of the interface's addresses and routes.
	Gateways []string `json:"gateways,omitempty"`
	// AddSourceHints leaves the routes to the interface's subnets in the main
	// table too, with the address as preferred source.
	AddSourceHints bool `json:"addSourceHints,omitempty"`
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if t := c.Table; t != nil && (*t < 1 || int64(*t) > math.MaxUint32 || *t == unix.RT_TABLE_LOCAL) {
		f.Addf("table", "%d is no table for routes of one's own: use 1 to %d, but not %d (local)", *t, uint32(math.MaxUint32), unix.RT_TABLE_LOCAL)
	}
	c.gateways(&f)
	return f.Err()
}

// gateway is the static one of a family, or the zero Addr.
func (c *Conf) gateway(is4 bool) netip.Addr {
	for _, gw := range c.gateways(new(roles.Faults)) {
		if gw.Is4() == is4 {
			return gw
		}
	}
	return netip.Addr{}
}

// gateways decodes the static ones.
func (c *Conf) gateways(f *roles.Faults) []netip.Addr {
	var all []netip.Addr
	for i, text := range c.Gateways {
		path := "gateways[" + strconv.Itoa(i) + "]"
		gw, err := roles.ParseAddr(text)
		switch {
		case err != nil:
			f.Addf(path, "%v", err)
		case gw.IsUnspecified() || gw.IsMulticast() || gw.IsLoopback():
			f.Addf(path, "%s is no address of a router", gw)
		case len(all) > 0 && all[0].Is4() == gw.Is4() || len(all) > 1:
			f.Addf(path, "%s is the second gateway of its family: keep one", gw)
		default:
			all = append(all, gw)
		}
	}
	return all
}
