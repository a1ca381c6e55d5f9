package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Where is the namespace that tracks the connections.
func (f *Flows) Where() Place { return f.In }

// IsShared is false: connections are made anew by whoever still wants them.
func (f *Flows) IsShared() bool { return false }

func (f *Flows) object() {}

// String is the selection in the form of conntrack(8).
func (f *Flows) String() string {
	w := words{"flows", "proto", f.Proto, "dport", strconv.Itoa(int(f.Port))}
	if f.End != 0 {
		w[len(w)-1] += "-" + strconv.Itoa(int(f.End))
	}
	if f.Dst.IsValid() {
		w.value("dst", f.Dst.String())
	}
	if f.ReplySrc.IsValid() {
		w.value("reply-src", f.ReplySrc.String())
	}
	w.flag(f.Local, "local")
	w.place(f.In)
	return w.String()
}

func (f *Flows) validate() error {
	errs := []error{checkPlace(f.In), checkAddr("original destination", f.Dst), checkAddr("reply source", f.ReplySrc)}
	if protoNumber(f.Proto) == 0 {
		errs = append(errs, fmt.Errorf("protocol %q is none of tcp, udp and sctp: %w", f.Proto, ErrInvalid))
	}
	if f.Port == 0 || f.End != 0 && f.End < f.Port {
		errs = append(errs, fmt.Errorf("ports %d to %d: %w", f.Port, f.End, ErrInvalid))
	}
	if f.Dst.IsValid() && f.ReplySrc.IsValid() && f.Dst.Is4() != f.ReplySrc.Is4() {
		errs = append(errs, fmt.Errorf("original destination %s and reply source %s are of two families: %w", f.Dst, f.ReplySrc, ErrInvalid))
	}
	return errors.Join(errs...)
}

// protoNumber is the IP protocol's number, 0 for one without tracked ports.
func protoNumber(name string) uint8 {
	switch name {
	case "tcp":
		return unix.IPPROTO_TCP
	case "udp":
		return unix.IPPROTO_UDP
	case "sctp":
		return unix.IPPROTO_SCTP
	}
	return 0
}

// plan is one change, whatever is tracked at the moment: what begins until it
// is applied has to go as well. A container that is not there tracks nothing.
func (f *Flows) plan(_ context.Context, s *session) ([]Change, error) {
	if s.unknown(f.In) {
		return nil, nil
	}
	return []Change{{Do: Step{VerbDel, f}, Undo: &Step{VerbDel, f}}}, nil
}

// verify finds no fault: connections come and go.
func (f *Flows) verify(context.Context, *session) ([]Difference, error) { return nil, nil }

// flowsLast moves the changes of flows behind all others: a packet between
// them and the rule that is added or deleted would be tracked as before.
func flowsLast(changes []Change) []Change {
	var rest, flows []Change
	for _, c := range changes {
		if _, ok := c.Do.Object.(*Flows); ok {
			flows = append(flows, c)
		} else {
			rest = append(rest, c)
		}
	}
	return append(rest, flows...)
}

// flush deletes the tracked connections that one of the selections matches, all
// of one namespace, in one pass. Where the kernel tracks none, or cannot list
// what it tracks (without nf_conntrack_netlink), there is nothing to do: what
// is tracked then expires when it is idle, as after a refused flush.
func (s *session) flush(ctx context.Context, flows []*Flows) error {
	if len(flows) == 0 {
		return nil
	}
	ns, err := s.namespace(flows[0].In)
	if err != nil {
		return err
	}
	count, err := ns.sysctl("net/netfilter/nf_conntrack_count")
	if count == "0" || errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := ns.conntrack()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	if flows, err = s.withLocal(ctx, ns, flows); err != nil {
		return err
	}
	err = c.forgetBy(ctx, flows)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = c.forgetListed(ctx, flows)
	}
	if errors.Is(err, unix.EINVAL) { // the answer for a subsystem that is not there
		return nil
	}
	return err
}

// filter is what the kernel can judge of the selection: no range, no IPv6
// address and nothing of what is local. There it lets through what does not match (seen on 6.18, which takes
// ipv6_addr_cmp's 0 for a difference).
func (f *Flows) filter() (filter flowFilter, whole bool) {
	filter, whole = flowFilter{proto: protoNumber(f.Proto), port: f.Port}, !f.Local
	if f.End > f.Port {
		filter.port, whole = 0, false
	}
	for _, a := range []struct{ from, to *netip.Addr }{{&f.Dst, &filter.dst}, {&f.ReplySrc, &filter.replySrc}} {
		if !a.from.IsValid() {
			continue
		}
		filter.family = rtnl.Family(*a.from)
		switch {
		case a.from.IsUnspecified():
		case a.from.Is4():
			*a.to = *a.from
		default:
			whole = false
		}
	}
	return filter, whole
}

// matches tells whether the connection is one of those selected.
func (f *Flows) matches(t *trackedFlow) bool {
	is := func(want, have netip.Addr) bool {
		return !want.IsValid() || want == have || want.IsUnspecified() && want.Is4() == have.Is4()
	}
	return t.proto == protoNumber(f.Proto) && f.Port <= t.port && t.port <= max(f.Port, f.End) &&
		is(f.Dst, t.dst) && is(f.ReplySrc, t.replySrc) && (!f.Local || t.dst.IsLoopback() || f.local[t.dst])
}

// withLocal is the selections, and what those need to know that are of local
// connections only.
func (s *session) withLocal(ctx context.Context, ns *Namespace, flows []*Flows) ([]*Flows, error) {
	if !slices.ContainsFunc(flows, func(f *Flows) bool { return f.Local }) {
		return flows, nil
	}
	c, err := ns.socket()
	if err != nil {
		return nil, err
	}
	addrs, err := c.Addresses(ctx, 0)
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		local[a.Prefix.Addr()] = true
	}
	all := make([]*Flows, len(flows))
	for i, f := range flows {
		knowing := *f
		knowing.local = local
		all[i] = &knowing
	}
	return all, err
}

// common is what both filters let through, and perhaps more.
func (f flowFilter) common(other flowFilter) flowFilter {
	if f.family != other.family {
		f.family = 0
	}
	if f.proto != other.proto {
		f.proto = 0
	}
	if f.port != other.port || f.proto == 0 { // a port is one of a protocol
		f.port = 0
	}
	if f.dst != other.dst {
		f.dst = netip.Addr{}
	}
	if f.replySrc != other.replySrc {
		f.replySrc = netip.Addr{}
	}
	return f
}
