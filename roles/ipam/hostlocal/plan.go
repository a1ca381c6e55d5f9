package hostlocal

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/sticky"
)

// plan is a configuration, parsed and found valid.
type plan struct {
	dataDir    string
	resolvConf string
	sets       []rangeSet
	routes     []*types.Route
	// requests are the addresses asked for by the configuration. They stand
	// above CNI_ARGS, and that above annotated, those of the pod's annotation.
	requests, annotated []request
	// lenient: a requested address that is taken is none.
	lenient bool
	// sticky is nil where addresses do not stick.
	sticky *sticky.Rules
	// mac is the hardware address that the configuration asks for, or empty.
	mac string
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
	p.annotated = parseAnnotation(&f, c)
	p.lenient = !sticky.ParseMode(&f, "ipam.requests.mode", c.IPAM.Requests.Mode, "strict")
	p.sticky = sticky.Parse(&f, "ipam.sticky", c.IPAM.Sticky)
	p.mac = cmp.Or(c.RuntimeConfig.MAC, c.Args.CNI.MAC)
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
		a, err := roles.ParseAddrOrCIDR(t)
		if err != nil {
			f.Addf(at, "%v", err)
			continue
		}
		out = append(out, request{path: at, addr: a})
	}
	return out
}

// parseAnnotation reads the addresses that the pod asks for.
func parseAnnotation(f *roles.Faults, c *Conf) []request {
	if len(c.RuntimeConfig.Annotations) == 0 {
		return nil
	}
	path, addrs := sticky.Requested(f, c.RuntimeConfig.Annotations, c.IPAM.Requests.Annotation, c.Name)
	var out []request
	for _, a := range addrs {
		out = append(out, request{path: path, addr: a})
	}
	return out
}

// argsRequest reads the key IP of CNI_ARGS.
func argsRequest(args roles.Args) ([]request, error) {
	t := args.Get("IP")
	if t == "" {
		return nil, nil
	}
	a, err := roles.ParseAddrOrCIDR(t)
	if err != nil {
		return nil, fmt.Errorf("%w: CNI_ARGS: IP: %w", roles.ErrEnv, err)
	}
	return []request{{path: "CNI_ARGS: IP", addr: a, env: true}}, nil
}
