package leasing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/sticky"
	"github.com/cnibox/cnibox/store"
)

// Plan is what a configuration says of its pools, parsed and found valid.
type Plan struct {
	// DataDir names the pool together with the network.
	DataDir string
	Sets    []Set
	// Reuse is nil where addresses are handed out round robin.
	Reuse *Reuse
	// Asked are the addresses asked for by the configuration. They stand above
	// CNI_ARGS, and that above Annotated, those of the pod's annotation.
	Asked, Annotated []Ask
	// Configured is asked for when nothing else is.
	Configured []Ask
	// Lenient: a requested address that is taken is none.
	Lenient bool
	// Sticky is nil where addresses do not stick.
	Sticky *sticky.Rules
	// MAC is the hardware address that the configuration asks for, or empty.
	MAC string
}

// Reuse says that the ranges of a set are in order of preference, and that of
// each those addresses come first that nobody had yet, then the one that is free
// for longest. The pool must be one of store.CloudDataDir: an address that a
// network of this node has no other gets.
type Reuse struct {
	// Cooldown is how long a released address is nobody's but the identity's that
	// it is kept for.
	Cooldown time.Duration
	// Hint is said of a set that has nothing left.
	Hint string
}

// Requests is the object "ipam.requests".
type Requests struct {
	// Annotation is the pod's annotation that holds the addresses it asks for,
	// with commas between them or as a JSON list; with "." and the network's name
	// behind it, it is about this network alone. It is read where the
	// configuration declares the capability io.kubernetes.cri.pod-annotations.
	// Default "cnibox.io/ips".
	Annotation string `json:"annotation,omitempty"`
	// Mode is what becomes of an address that somebody else has: "strict", an
	// error that names the holder, or "prefer", another address. Default "strict".
	Mode string `json:"mode,omitempty"`
}

// Args is the object "args".
type Args struct {
	CNI CNIArgs `json:"cni,omitzero"`
}

// CNIArgs is the object "args.cni".
type CNIArgs struct {
	// IPs are requested addresses; runtimeConfig.ips replaces them.
	IPs []string `json:"ips,omitempty"`
	// MAC is the interface's hardware address; runtimeConfig.mac replaces it.
	MAC string `json:"mac,omitempty"`
}

// Ask is one address that the runtime asks for; the zero Ask is for any.
type Ask struct {
	// path is where it was asked for.
	path string
	addr netip.Addr
	// env: it comes from CNI_ARGS, not from the configuration.
	env bool
}

// fault is an error that blames the request.
func (r Ask) fault(format string, a ...any) error {
	reason := fmt.Sprintf(format, a...)
	if r.env {
		return fmt.Errorf("%w: %s %s: %s", roles.ErrEnv, r.path, r.addr, reason)
	}
	return &roles.ConfError{Path: r.path, Reason: r.addr.String() + " " + reason}
}

// Asking is what a configuration says of the addresses that are asked for.
type Asking struct {
	// Network is the configuration's name.
	Network string
	// RuntimeIPs are runtimeConfig.ips, which replace ArgsIPs, args.cni.ips.
	RuntimeIPs, ArgsIPs []string
	// Configured is ipam.ipAddress, which all of them replace.
	Configured  string
	Annotations map[string]string
	Requests    Requests
}

// Parse reads all addresses asked for into a plan and notes every fault.
func (k Asking) Parse(f *roles.Faults, p *Plan) {
	high := parseAsks(f, "runtimeConfig.ips", k.RuntimeIPs)
	p.Asked = parseAsks(f, "args.cni.ips", k.ArgsIPs)
	if len(k.RuntimeIPs) > 0 {
		p.Asked = high
	}
	if len(k.Annotations) > 0 {
		path, addrs := sticky.Requested(f, k.Annotations, k.Requests.Annotation, k.Network)
		for _, a := range addrs {
			p.Annotated = append(p.Annotated, Ask{path: path, addr: a})
		}
	}
	if k.Configured != "" {
		a, err := roles.ParseAddrOrCIDR(k.Configured)
		if err != nil {
			f.Addf("ipam.ipAddress", "%v", err)
		}
		p.Configured = []Ask{{path: "ipam.ipAddress", addr: a}}
	}
	p.Lenient = !sticky.ParseMode(f, "ipam.requests.mode", k.Requests.Mode, "strict")
}

func parseAsks(f *roles.Faults, path string, texts []string) []Ask {
	var out []Ask
	for i, t := range texts {
		at := fmt.Sprintf("%s[%d]", path, i)
		a, err := roles.ParseAddrOrCIDR(t)
		if err != nil {
			f.Addf(at, "%v", err)
			continue
		}
		out = append(out, Ask{path: at, addr: a})
	}
	return out
}

// argsAsk reads the key IP of CNI_ARGS.
func argsAsk(args roles.Args) ([]Ask, error) {
	t := args.Get("IP")
	if t == "" {
		return nil, nil
	}
	a, err := roles.ParseAddrOrCIDR(t)
	if err != nil {
		return nil, fmt.Errorf("%w: CNI_ARGS: IP: %w", roles.ErrEnv, err)
	}
	return []Ask{{path: "CNI_ARGS: IP", addr: a, env: true}}, nil
}

// Asks finds out which addresses are asked for, by the highest of
// runtimeConfig.ips, args.cni.ips, CNI_ARGS' IP, the pod's annotation and
// ipam.ipAddress, and of which sets.
func (p *Plan) Asks(req *roles.Request) ([]Ask, error) {
	if len(p.Sets) == 0 {
		return nil, &roles.ConfError{Path: "runtimeConfig.ipRanges", Reason: "is required, as ipam.ranges is empty"}
	}
	asked := p.Asked
	if len(asked) == 0 {
		var err error
		if asked, err = argsAsk(req.Args); err != nil {
			return nil, err
		}
	}
	if len(asked) == 0 {
		asked = p.Annotated
	}
	if len(asked) == 0 {
		asked = p.Configured
	}
	return p.assign(asked)
}

// adopts tells whether a lease, of which no more than its address is known, is of
// any of the ranges, and notes what follows from that.
func (p *Plan) adopts(l *store.Lease) bool {
	in := p.rangeOf(l.Address)
	if in != nil {
		l.Set, l.Source, l.NIC = p.SetOf(l.Address), in.Source, in.NIC
	}
	return in != nil
}

// SetOf is the index of the set whose range contains an address, 0 for none.
func (p *Plan) SetOf(a netip.Addr) int {
	return max(slices.IndexFunc(p.Sets, func(s Set) bool { return s.RangeOf(a) != nil }), 0)
}

// rangeOf returns the range whose bounds contain an address, or nil.
func (p *Plan) rangeOf(a netip.Addr) *Range {
	for _, s := range p.Sets {
		if r := s.RangeOf(a); r != nil {
			return r
		}
	}
	return nil
}

// setName names a set in errors.
func (p *Plan) setName(set int) string {
	if p.Reuse == nil {
		return fmt.Sprintf("range set %d (%s)", set, p.Sets[set])
	}
	return "pool " + cmp.Or(p.Sets[set].String(), fmt.Sprint(set))
}
