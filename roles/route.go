package roles

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
)

// Route is a route in an IPAM configuration. It is copied to the result (CNI spec 1.1.0,
// "routes").
type Route struct {
	// Dst is a CIDR. Required.
	Dst string `json:"dst,omitempty"`
	// GW is the next hop; empty means the gateway of the address.
	GW string `json:"gw,omitempty"`
	// MTU is the path MTU.
	MTU int `json:"mtu,omitempty"`
	// AdvMSS is the maximum segment size to advertise.
	AdvMSS int `json:"advmss,omitempty"`
	// Priority is the metric; lower is preferred.
	Priority int `json:"priority,omitempty"`
	// Table is a routing table, by number.
	Table *int `json:"table,omitempty"`
	// Scope is by number: 0 universe, 253 link, 254 host.
	Scope *int `json:"scope,omitempty"`
}

// ParseRoutes parses the routes at a JSON path and adds every fault to f. It keeps the
// host bits of a destination, as the reference plugin does.
func ParseRoutes(f *Faults, path string, in []Route) []*types.Route {
	var out []*types.Route
	for i, r := range in {
		at := fmt.Sprintf("%s[%d]", path, i)
		dst, err := netip.ParsePrefix(r.Dst)
		if err != nil || dst.Addr().Is4In6() {
			f.Addf(at+".dst", "%q is not a CIDR, such as 0.0.0.0/0", r.Dst)
			continue
		}
		route := &types.Route{
			Dst: IPNet(dst),
			MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: r.Scope,
		}
		if r.GW != "" {
			gw, err := ParseAddr(r.GW)
			f.Check(at+".gw", err)
			route.GW = gw.AsSlice()
		}
		checkNumber(f, at+".mtu", &r.MTU, math.MaxUint32)
		checkNumber(f, at+".advmss", &r.AdvMSS, math.MaxUint32)
		checkNumber(f, at+".priority", &r.Priority, math.MaxUint32)
		checkNumber(f, at+".table", r.Table, math.MaxUint32)
		checkNumber(f, at+".scope", r.Scope, math.MaxUint8)
		out = append(out, route)
	}
	return out
}

func checkNumber(f *Faults, path string, n *int, limit int64) {
	if n != nil && (*n < 0 || int64(*n) > limit) {
		f.Addf(path, "%d is not between 0 and %d", *n, limit)
	}
}
