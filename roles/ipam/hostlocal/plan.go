package hostlocal

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
)

// plan is a configuration, parsed and found valid.
type plan struct {
	dataDir    string
	resolvConf string
	sets       []rangeSet
	routes     []*types.Route
	// requests are the addresses asked for by the configuration. They stand
	// above CNI_ARGS.
	requests []request
}

// request is one address that the runtime asks for.
type request struct {
	// path is where it was asked for.
	path string
	addr netip.Addr
	// env: it comes from CNI_ARGS, not from the configuration.
	env bool
}

// fault is an error that blames the request.
func (r request) fault(format string, a ...any) error {
	reason := fmt.Sprintf(format, a...)
	if r.env {
		return fmt.Errorf("%w: %s %s: %s", roles.ErrEnv, r.path, r.addr, reason)
	}
	return &roles.ConfError{Path: r.path, Reason: r.addr.String() + " " + reason}
}

// newPlan parses a configuration. Its error joins every fault.
func newPlan(c *Conf) (*plan, error) {
	var f roles.Faults
	if c.IPAM == nil {
		f.Addf("ipam", "is required")
		return nil, f.Err()
	}
	p := &plan{dataDir: filepath.Clean(c.IPAM.DataDir), resolvConf: c.IPAM.ResolvConf}
	for _, v := range []struct{ path, value string }{{"ipam.dataDir", p.dataDir}, {"ipam.resolvConf", p.resolvConf}} {
		if strings.ContainsRune(v.value, 0) {
			f.Addf(v.path, "holds a NUL byte")
		}
	}
	b := setBuilder{faults: &f, exclude: parseExclude(&f, "ipam.exclude", c.IPAM.Exclude)}
	for i, s := range c.RuntimeConfig.IPRanges {
		b.add(fmt.Sprintf("runtimeConfig.ipRanges[%d]", i), s)
	}
	b.addOld(c.IPAM)
	for i, s := range c.IPAM.Ranges {
		b.add(fmt.Sprintf("ipam.ranges[%d]", i), s)
	}
	if b.count == 0 && !c.Capabilities["ipRanges"] {
		f.Addf("ipam.ranges", "is required: a list of range sets, such as [[{\"subnet\": \"10.1.0.0/16\"}]]")
	}
	p.sets = b.finish(c.CNIVersion)
	p.routes = roles.ParseRoutes(&f, "ipam.routes", c.IPAM.Routes)
	p.requests = parseRequests(&f, c)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// parseRequests reads the addresses asked for: runtimeConfig.ips or, without
// them, args.cni.ips. Both are checked.
func parseRequests(f *roles.Faults, c *Conf) []request {
	high := parseRequestList(f, "runtimeConfig.ips", c.RuntimeConfig.IPs)
	low := parseRequestList(f, "args.cni.ips", c.Args.CNI.IPs)
	if len(c.RuntimeConfig.IPs) > 0 {
		return high
	}
	return low
}

func parseRequestList(f *roles.Faults, path string, texts []string) []request {
	var out []request
	for i, t := range texts {
		at := fmt.Sprintf("%s[%d]", path, i)
		a, err := parseAddrOrCIDR(t)
		if err != nil {
			f.Addf(at, "%v", err)
			continue
		}
		out = append(out, request{path: at, addr: a})
	}
	return out
}

// argsRequest reads the key IP of CNI_ARGS.
func argsRequest(args roles.Args) ([]request, error) {
	t := args.Get("IP")
	if t == "" {
		return nil, nil
	}
	a, err := parseAddrOrCIDR(t)
	if err != nil {
		return nil, fmt.Errorf("%w: CNI_ARGS: IP: %w", roles.ErrEnv, err)
	}
	return []request{{path: "CNI_ARGS: IP", addr: a, env: true}}, nil
}

// parseAddrOrCIDR reads an address and drops a prefix length.
func parseAddrOrCIDR(s string) (netip.Addr, error) {
	if a, err := roles.ParseAddr(s); err == nil {
		return a, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is neither an IP address nor a CIDR", s)
	}
	return p.Addr().Unmap(), nil
}
