package wish

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/cnibox/cnibox/roles"
)

// noIP is the value of Extras.IP for no addresses.
const noIP = "none"

// NoIP reports whether the interface gets no addresses.
func (x Extras) NoIP() bool { return x.IP == noIP }

// readExtras reads the value of ExtrasKey. Unknown keys are faults.
func (e *element) readExtras(path string, raw json.RawMessage) {
	given := e.decodeObject(path, raw)
	for _, name := range sortedKeys(given) {
		if name != "ip" && name != "policyRoutes" {
			e.faults.Addf(path+"."+name, "is not known: use \"ip\" or \"policyRoutes\"")
		}
	}
	if ip, ok := given["ip"]; ok && e.decodeValue(path+".ip", ip, &e.to.Extras.IP) && e.to.Extras.IP != noIP {
		e.faults.Addf(path+".ip", "%q is not known: use %q, or ips for addresses of your choice", e.to.Extras.IP, noIP)
	}
	if routes, ok := given["policyRoutes"]; ok {
		e.readPolicyRoutes(path+".policyRoutes", routes)
	}
	if e.to.Extras.NoIP() && len(e.to.Extras.PolicyRoutes) > 0 {
		e.faults.Addf(path+".policyRoutes", "cannot be combined with ip %q: they need addresses of the interface", noIP)
	}
}

func (e *element) readPolicyRoutes(path string, raw json.RawMessage) {
	var list []struct {
		Dst string `json:"dst"`
		GW  string `json:"gw"`
	}
	if !e.decodeValue(path, raw, &list) {
		return
	}
	for i, r := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		dst, err := netip.ParsePrefix(r.Dst)
		if err != nil || dst.Addr().Is4In6() {
			e.faults.Addf(at+".dst", "%q is not a CIDR: use for example 10.20.0.0/16 or 0.0.0.0/0", r.Dst)
			continue
		}
		route := PolicyRoute{Dst: dst.Masked()}
		if r.GW != "" {
			route.GW, err = roles.ParseAddr(r.GW)
			if err != nil {
				e.faults.Addf(at+".gw", "%v", err)
			} else if route.GW.Is4() != dst.Addr().Is4() {
				e.faults.Addf(at+".gw", "%s is of another family than %s", route.GW, dst)
			}
		}
		e.to.Extras.PolicyRoutes = append(e.to.Extras.PolicyRoutes, route)
	}
}
