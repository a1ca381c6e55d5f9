package static

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
)

// plan is a parsed and valid configuration.
type plan struct {
	// own are ipam.addresses. CNI_ARGS can add more.
	own []address
	// instead are the addresses of runtimeConfig or args. If there are any, they replace all others.
	instead []address
	routes  []*types.Route
	dns     types.DNS
	// single means that results have one address of each family (spec before 0.3.0).
	single bool
}

// address is one address of the container, with its network's prefix length.
type address struct {
	netip.Prefix
	// gateway is the zero Addr if there is none.
	gateway netip.Addr
}

// newPlan parses a configuration. Its error joins all faults.
func newPlan(c *Conf) (*plan, error) {
	var f roles.Faults
	if c.IPAM == nil {
		f.Addf("ipam", "is required")
		return nil, f.Err()
	}
	p := &plan{
		dns: c.IPAM.DNS, routes: roles.ParseRoutes(&f, "ipam.routes", c.IPAM.Routes),
		single: c.CNIVersion == "" || strings.HasPrefix(c.CNIVersion, "0.1.") || strings.HasPrefix(c.CNIVersion, "0.2."),
	}
	p.own = parseAddresses(&f, c.IPAM.Addresses)
	used, path := p.own, "ipam.addresses[%d].address"
	for _, list := range []struct {
		name string
		ips  []string
	}{{"args.cni.ips", c.Args.CNI.IPs}, {"runtimeConfig.ips", c.RuntimeConfig.IPs}} {
		if parsed := parseList(&f, list.name, list.ips); len(parsed) > 0 {
			p.instead, used, path = parsed, parsed, list.name+"[%d]"
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	for i := range used {
		f.Check(fmt.Sprintf(path, i), p.checkFamily(used[:i], used[i]))
	}
	return p, f.Err()
}

// checkFamily returns an error if an address and one before it are of the same family and
// results hold one of each. Only addresses that no others replace are checked.
func (p *plan) checkFamily(before []address, a address) error {
	sameFamily := func(o address) bool { return o.Addr().BitLen() == a.Addr().BitLen() }
	if !p.single || !slices.ContainsFunc(before, sameFamily) {
		return nil
	}
	return fmt.Errorf("%s is the second of its family: cniVersion before 0.3.0 allows one, use a newer one", a.Prefix)
}

// parseAddresses parses ipam.addresses.
func parseAddresses(f *roles.Faults, in []Address) []address {
	var out []address
	for i, a := range in {
		at := fmt.Sprintf("ipam.addresses[%d]", i)
		if a.Address == "" {
			f.Addf(at+".address", "is required, an address with a prefix length such as 10.1.0.5/24")
			continue
		}
		addr, err := parseAddress(string(a.Address), out)
		if !f.Check(at+".address", err) {
			continue
		}
		if a.Gateway != "" {
			addr.gateway, err = roles.ParseAddr(a.Gateway)
			if err == nil && addr.gateway.BitLen() != addr.Addr().BitLen() {
				err = fmt.Errorf("%s is of another address family than %s", addr.gateway, addr)
			}
			f.Check(at+".gateway", err)
		}
		out = append(out, addr)
	}
	return out
}

// parseList parses addresses of the runtime.
func parseList(f *roles.Faults, path string, texts []string) []address {
	var out []address
	for i, t := range texts {
		a, err := parseAddress(t, out)
		if f.Check(fmt.Sprintf("%s[%d]", path, i), err) {
			out = append(out, a)
		}
	}
	return out
}

// parseAddress parses an address and compares it with the ones before it.
func parseAddress(text string, before []address) (address, error) {
	n, err := netip.ParsePrefix(text)
	if err != nil || n.Addr().Is4In6() {
		return address{}, fmt.Errorf("%q is not an address with a prefix length, such as 10.1.0.5/24", text)
	}
	if n.Bits() == 0 {
		return address{}, fmt.Errorf("%s has the prefix length 0, which puts the whole Internet on the link: give the network's prefix length", n)
	}
	if err := roles.CheckNetwork(netip.PrefixFrom(n.Addr(), n.Addr().BitLen())); err != nil {
		return address{}, err
	}
	for _, o := range before {
		if o.Addr() == n.Addr() {
			return address{}, fmt.Errorf("%s is listed twice", n.Addr())
		}
	}
	return address{Prefix: n}, nil
}

// addresses returns the container's addresses: those of the configuration, then those of IP in
// CNI_ARGS. Each address in GATEWAY is the gateway of all addresses whose network contains it.
func (p *plan) addresses(args roles.Args) ([]address, error) {
	var faults []error
	note := func(key string, err error) {
		faults = append(faults, &roles.EnvError{Name: "CNI_ARGS: " + key, Reason: err.Error()})
	}
	list := slices.Clone(p.own)
	for _, t := range values(args, "IP") {
		a, err := parseAddress(t, list)
		if err == nil && len(p.instead) == 0 {
			err = p.checkFamily(list, a)
		}
		if err != nil {
			note("IP", err)
			continue
		}
		list = append(list, a)
	}
	for _, t := range values(args, "GATEWAY") {
		gw, err := roles.ParseAddr(t)
		if err != nil {
			note("GATEWAY", err)
		}
		for i := range list {
			if list[i].Contains(gw) {
				list[i].gateway = gw
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if len(p.instead) > 0 {
		list = p.instead
	}
	if len(list) == 0 {
		return nil, &roles.ConfError{
			Path:   "ipam.addresses",
			Reason: "is required, such as [{\"address\": \"10.1.0.5/24\"}], because the runtime gives no address in runtimeConfig.ips, args.cni.ips or CNI_ARGS",
		}
	}
	return list, nil
}

// values returns the items of a comma-separated list in CNI_ARGS.
func values(args roles.Args, key string) []string {
	text := args.Get(key)
	if text == "" {
		return nil
	}
	list := strings.Split(text, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}
