// Package sbr is the CNI role "sbr", source based routing: packets that a
// container sends from an interface's address leave through that interface. It
// has the keys of the reference plugin.
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
	// Table is an existing routing table that another program fills. The role
	// then adds only the rules that select the table, and moves no routes.
	// Without this key each address gets its own table, the next free one from
	// 100 on.
	Table *int `json:"table,omitempty"`
	// Gateways are the next hops of the tables' default routes, at most one for
	// each address family. They take precedence over the gateways of the
	// interface's addresses and routes.
	Gateways []string `json:"gateways,omitempty"`
	// AddSourceHints keeps the routes to the interface's subnets in the main
	// table too, with the address as preferred source.
	AddSourceHints bool `json:"addSourceHints,omitempty"`
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if t := c.Table; t != nil && (*t < 1 || int64(*t) > math.MaxUint32 || *t == unix.RT_TABLE_LOCAL) {
		f.Addf("table", "%d cannot be used as the table: use 1 to %d, but not %d (local)", *t, uint32(math.MaxUint32), unix.RT_TABLE_LOCAL)
	}
	c.parseGateways(&f)
	return f.Err()
}

// gateway is the configured gateway of an address family, or the zero Addr.
func (c *Conf) gateway(is4 bool) netip.Addr {
	for _, gw := range c.parseGateways(new(roles.Faults)) {
		if gw.Is4() == is4 {
			return gw
		}
	}
	return netip.Addr{}
}

// parseGateways decodes the configured gateways and reports the invalid ones.
func (c *Conf) parseGateways(f *roles.Faults) []netip.Addr {
	var all []netip.Addr
	for i, text := range c.Gateways {
		path := "gateways[" + strconv.Itoa(i) + "]"
		gw, err := roles.ParseAddr(text)
		switch {
		case err != nil:
			f.Addf(path, "%v", err)
		case gw.IsUnspecified() || gw.IsMulticast() || gw.IsLoopback():
			f.Addf(path, "%s is not the address of a router", gw)
		case len(all) > 0 && all[0].Is4() == gw.Is4() || len(all) > 1:
			f.Addf(path, "%s is the second gateway of its family: keep one", gw)
		default:
			all = append(all, gw)
		}
	}
	return all
}
