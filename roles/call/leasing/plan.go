package leasing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/store"
)

// Plan is the validated part of a configuration that describes its pools.
type Plan struct {
	// DataDir names the pool, together with the network.
	DataDir string
	Sets    []Set
	// Within returns the part of Sets that this node may give out now, with a set for each. Nil means
	// all. It is called in each transaction.
	Within func(tx *store.Tx, h *roles.Host) ([]Set, error)
	// Reuse is nil if addresses are given out round robin.
	Reuse *Reuse
	// Requested are the addresses that the configuration requests. They take precedence
	// over CNI_ARGS. CNI_ARGS take precedence over Annotated, the addresses in the pod's
	// annotation.
	Requested, Annotated []AddressRequest
	// Configured is used if no other source requests an address.
	Configured []AddressRequest
	// Lenient means that a request for a taken address is ignored.
	Lenient bool
	// Sticky is nil if addresses are not kept for pods.
	Sticky *sticky.Rules
	// MAC is the hardware address that the configuration requests, or "".
	MAC string
}

// sizes returns the number of IPv4 and of IPv6 addresses that the plan can give.
func (p *Plan) sizes() (n [2]float64) {
	for _, set := range p.Sets {
		for _, r := range set {
			for _, i := range r.Free {
				if i.Lo.Is6() {
					n[1] += i.about()
				} else {
					n[0] += i.about()
				}
			}
		}
	}
	return n
}

// Reuse says that the ranges of a set are in the order of preference. In each range,
// addresses that were never leased come first, then the one that has been free for
// the longest time. The pool must be one of store.CloudDataDir or store.RangeDataDir: an
// address that one network of this node has is not given to another with the same
// DataDir.
type Reuse struct {
	// Cooldown is the time after its release in which an address is given only to the
	// identity that it is kept for.
	Cooldown time.Duration
	// Hint is added to the error of an exhausted set.
	Hint string
}

// Requests is the object "ipam.requests".
type Requests struct {
	// Annotation is the pod's annotation with the addresses that it requests,
	// separated by commas or as a JSON list. With "." and the network's name
	// appended, it applies to this network only. It is read if the configuration
	// declares the capability io.kubernetes.cri.pod-annotations. Default
	// "cnibox.io/ips".
	Annotation string `json:"annotation,omitempty"`
	// Mode says what to do about a requested address that is taken: "strict", an
	// error that names the holder, or "prefer", another address. Default "strict".
	Mode string `json:"mode,omitempty"`
}

// Args is the object "args".
type Args struct {
	CNI CNIArgs `json:"cni,omitzero"`
}

// CNIArgs is the object "args.cni".
type CNIArgs struct {
	// IPs are requested addresses. runtimeConfig.ips replaces them.
	IPs []string `json:"ips,omitempty"`
	// MAC is the interface's hardware address. runtimeConfig.mac replaces it.
	MAC string `json:"mac,omitempty"`
}

// AddressRequest is one requested address. The zero AddressRequest means any address.
type AddressRequest struct {
	// path is the JSON path or variable of the request.
	path string
	addr netip.Addr
	// env means that the request comes from CNI_ARGS, not from the configuration.
	env bool
}

// NewRequest returns a request for the address at a path of the configuration.
func NewRequest(path string, a netip.Addr) AddressRequest { return AddressRequest{path: path, addr: a} }

// fault returns an error that names the request as its cause.
func (r AddressRequest) fault(format string, a ...any) error {
	reason := fmt.Sprintf(format, a...)
	if r.env {
		return fmt.Errorf("%w: %s %s: %s", roles.ErrEnv, r.path, r.addr, reason)
	}
	return &roles.ConfError{Path: r.path, Reason: r.addr.String() + " " + reason}
}

// RequestSources are the keys of a configuration that request addresses.
type RequestSources struct {
	// Network is the network's name.
	Network string
	// RuntimeIPs are runtimeConfig.ips. They replace ArgsIPs, which are args.cni.ips.
	RuntimeIPs, ArgsIPs []string
	// Configured is ipam.ipAddress. All other requests replace it.
	Configured  string
	Annotations map[string]string
	Requests    Requests
}

// Parse stores all requested addresses in a plan and adds every fault to f.
func (k RequestSources) Parse(f *roles.Faults, p *Plan) {
	high := parseRequests(f, "runtimeConfig.ips", k.RuntimeIPs)
	p.Requested = parseRequests(f, "args.cni.ips", k.ArgsIPs)
	if len(k.RuntimeIPs) > 0 {
		p.Requested = high
	}
	if len(k.Annotations) > 0 {
		path, addrs := sticky.Requested(f, k.Annotations, k.Requests.Annotation, k.Network)
		for _, a := range addrs {
			p.Annotated = append(p.Annotated, AddressRequest{path: path, addr: a})
		}
	}
	if k.Configured != "" {
		a, err := roles.ParseAddrOrCIDR(k.Configured)
		f.Check("ipam.ipAddress", err)
		p.Configured = []AddressRequest{{path: "ipam.ipAddress", addr: a}}
	}
	p.Lenient = !sticky.ParseMode(f, "ipam.requests.mode", k.Requests.Mode, "strict")
}

func parseRequests(f *roles.Faults, path string, texts []string) []AddressRequest {
	var out []AddressRequest
	for i, t := range texts {
		at := fmt.Sprintf("%s[%d]", path, i)
		a, err := roles.ParseAddrOrCIDR(t)
		if f.Check(at, err) {
			out = append(out, AddressRequest{path: at, addr: a})
		}
	}
	return out
}

// requestsFromArgs reads the key IP of CNI_ARGS.
func requestsFromArgs(args roles.Args) ([]AddressRequest, error) {
	t := args.Get("IP")
	if t == "" {
		return nil, nil
	}
	a, err := roles.ParseAddrOrCIDR(t)
	if err != nil {
		return nil, fmt.Errorf("%w: CNI_ARGS: IP: %w", roles.ErrEnv, err)
	}
	return []AddressRequest{{path: "CNI_ARGS: IP", addr: a, env: true}}, nil
}

// AddressRequests returns the requested address of each set. It uses the first of these
// sources that requests an address: runtimeConfig.ips, args.cni.ips, the key IP of
// CNI_ARGS, the pod's annotation, ipam.ipAddress.
func (p *Plan) AddressRequests(req *roles.Request) ([]AddressRequest, error) {
	if len(p.Sets) == 0 {
		return nil, &roles.ConfError{Path: "runtimeConfig.ipRanges", Reason: "is required, as ipam.ranges is empty"}
	}
	requests := p.Requested
	if len(requests) == 0 {
		var err error
		if requests, err = requestsFromArgs(req.Args); err != nil {
			return nil, err
		}
	}
	if len(requests) == 0 {
		requests = p.Annotated
	}
	if len(requests) == 0 {
		requests = p.Configured
	}
	return p.assign(requests)
}

// adopts reports whether one of the ranges contains the address of a rebuilt lease. If
// so, it sets the lease's set, source and NIC.
func (p *Plan) adopts(l *store.Lease) bool {
	in := p.rangeOf(l.Address)
	if in != nil {
		l.Set, l.Source, l.NIC = p.SetOf(l.Address), in.Source, in.NIC
	}
	return in != nil
}

// SetOf returns the index of the set with a range that contains an address, or 0.
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

// setName returns the name of a set for errors.
func (p *Plan) setName(set int) string {
	if p.Reuse == nil {
		return fmt.Sprintf("range set %d (%s)", set, p.Sets[set])
	}
	return "pool " + cmp.Or(p.Sets[set].String(), fmt.Sprint(set))
}
