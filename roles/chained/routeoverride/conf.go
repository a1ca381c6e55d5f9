// Package routeoverride is the CNI role "route-override": it deletes and adds routes of a container's interface. It has the keys of
// route-override-cni.
package routeoverride

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/roles"
)

// Keys are the role's keys.
type Keys struct {
	// FlushRoutes deletes all routes through gateways, and the default routes, before addroutes are added.
	FlushRoutes *bool `json:"flushroutes,omitempty"`
	// FlushGateway deletes the default routes, and the gateways of the result's addresses.
	FlushGateway *bool `json:"flushgateway,omitempty"`
	// DelRoutes are the destinations of routes of prevResult that are deleted. A gateway in them has no effect.
	DelRoutes []Route `json:"delroutes,omitempty"`
	// AddRoutes are added.
	AddRoutes []Route `json:"addroutes,omitempty"`
	// SkipCheck makes CHECK succeed whatever the routes are.
	SkipCheck *bool `json:"skipcheck,omitempty"`
}

// Route is a route of the configuration.
type Route struct {
	// Dst is the destination as a CIDR.
	Dst string `json:"dst"`
	// GW is the next hop. Without it the destination is on the link.
	GW string `json:"gw,omitempty"`
}

// Conf is the network configuration of the route-override role.
type Conf struct {
	roles.NetConf
	Keys
	// Args holds args.cni, whose keys take precedence over those above.
	Args Args `json:"args,omitzero"`
}

// Args is the "args" object.
type Args struct {
	CNI Keys `json:"cni,omitzero"`
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	c.check(&f, "")
	c.Args.CNI.check(&f, "args.cni.")
	return f.Err()
}

func (k *Keys) check(f *roles.Faults, path string) {
	parse(f, path+"delroutes", k.DelRoutes)
	parse(f, path+"addroutes", k.AddRoutes)
}

// keys returns the keys that are in force.
func (c *Conf) keys() Keys {
	k, a := c.Keys, c.Args.CNI
	for _, key := range []struct{ into, from **bool }{{&k.FlushRoutes, &a.FlushRoutes}, {&k.FlushGateway, &a.FlushGateway}, {&k.SkipCheck, &a.SkipCheck}} {
		if *key.from != nil {
			*key.into = *key.from
		}
	}
	if a.DelRoutes != nil {
		k.DelRoutes = a.DelRoutes
	}
	if a.AddRoutes != nil {
		k.AddRoutes = a.AddRoutes
	}
	return k
}

func isSet(b *bool) bool { return b != nil && *b }

// route is a parsed Route. via is invalid without a gateway.
type route struct {
	dst netip.Prefix
	via netip.Addr
}

// parse decodes routes and reports the invalid ones.
func parse(f *roles.Faults, path string, all []Route) (out []route) {
	for i, r := range all {
		path := path + "[" + strconv.Itoa(i) + "]"
		dst, err := netip.ParsePrefix(r.Dst)
		if err != nil || dst.Addr().Is4In6() {
			f.Addf(path+".dst", "%.80q is not a CIDR, such as 192.168.0.0/16", r.Dst)
			continue
		}
		one := route{dst: dst.Masked()}
		if r.GW != "" {
			one.via, err = roles.ParseAddr(r.GW)
			switch {
			case err != nil:
				f.Addf(path+".gw", "%v", err)
				continue
			case one.via.Is4() != dst.Addr().Is4():
				f.Addf(path+".gw", "%s is of another address family than %s", one.via, dst)
				continue
			}
		}
		if slices.Contains(out, one) {
			f.Addf(path, "%s is listed twice", dst)
			continue
		}
		out = append(out, one)
	}
	return out
}
