package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/conntrack"
	"github.com/cnibox/cnibox/netops/internal/nft"
)

// Flows selects tracked connections to delete after a change. The kernel applies
// the NAT decision of a connection's first packet to all its packets, even if
// the NAT rules change. In a Spec, Flows is one change that deletes the
// connections after all other changes. Its inverse deletes them after all other
// inverses. It is not an error if no connection matches or the kernel has no
// connection tracking.
type Flows struct {
	In Place `json:"in"`
	// Proto is "tcp", "udp" or "sctp".
	Proto string `json:"proto"`
	// Port is the destination port of the connection's first packet. If End
	// is not 0, it is the range from Port to End.
	Port uint16 `json:"port"`
	End  uint16 `json:"end,omitempty"`
	// Dst is the destination address of the first packet. The zero value
	// matches any address. An unspecified address (0.0.0.0, ::) matches any
	// address of its family.
	Dst netip.Addr `json:"dst,omitzero"`
	// Src is the source address of the first packet. The zero value matches any
	// address.
	Src netip.Addr `json:"src,omitzero"`
	// ReplySrc is the source address of replies: the container's for a
	// mapped port. The zero value matches any address.
	ReplySrc netip.Addr `json:"replySrc,omitzero"`
	// Local skips connections whose first packet was not sent to an address
	// of the namespace, so that forwarded connections to the same port
	// continue.
	Local bool `json:"local,omitempty"`
}

// Where returns the namespace that tracks the connections.
func (f *Flows) Where() Place { return f.In }

// IsShared returns false: a client that still needs a deleted connection starts it again.
func (f *Flows) IsShared() bool { return false }

// String formats the selection like conntrack(8).
func (f *Flows) String() string {
	w := words{"flows", "proto", f.Proto, "dport", strconv.Itoa(int(f.Port))}
	if f.End != 0 {
		w[len(w)-1] += "-" + strconv.Itoa(int(f.End))
	}
	if f.Src.IsValid() {
		w.value("src", f.Src.String())
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
	errs := []error{checkPlace(f.In), checkAddr("original source", f.Src), checkAddr("original destination", f.Dst), checkAddr("reply source", f.ReplySrc)}
	if protoNumber(f.Proto) == 0 {
		errs = append(errs, fmt.Errorf("protocol %q is not tcp, udp or sctp: %w", f.Proto, ErrInvalid))
	}
	if f.Port == 0 || f.End != 0 && f.End < f.Port {
		errs = append(errs, fmt.Errorf("ports %d to %d: %w", f.Port, f.End, ErrInvalid))
	}
	if f.Dst.IsValid() && f.ReplySrc.IsValid() && f.Dst.Is4() != f.ReplySrc.Is4() {
		errs = append(errs, fmt.Errorf("original destination %s and reply source %s are of two families: %w", f.Dst, f.ReplySrc, ErrInvalid))
	}
	return errors.Join(errs...)
}

// protoNumber returns the number of an IP protocol, or 0 if Flows does not support the
// protocol.
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

// plan returns one change, even if no connection matches now: connections that begin
// before the change is applied must be deleted too. It returns none if the namespace is
// not known, because there are no connections then.
func (f *Flows) plan(_ context.Context, s *session) ([]Change, error) { //nolint:unparam // the error is that of kernelObject
	if s.isAbsentPlace(f.In) {
		return nil, nil
	}
	return []Change{{Do: Step{VerbDel, f}, Undo: &Step{VerbDel, f}}}, nil
}

// verify reports no difference: connections come and go.
func (f *Flows) verify(context.Context, *session) ([]Difference, error) { return nil, nil }

func (f *Flows) batchKey(Verb) string { return "flows" }

// apply deletes the tracked connections of one namespace in one pass.
func (f *Flows) apply(ctx context.Context, run *applier, batch []Change) error {
	all := make([]*Flows, len(batch))
	for i, c := range batch {
		all[i] = c.Do.Object.(*Flows)
	}
	err := run.deleteFlows(ctx, all)
	if err == nil {
		run.done = append(run.done, batch...)
	}
	return err
}

func (f *Flows) undo(ctx context.Context, s *session, _ Verb) error {
	return s.deleteFlows(ctx, []*Flows{f})
}

func (f *Flows) undoPhase() undoPhase { return undoFlows }

// undoGroup deletes the tracked connections of each namespace in one pass. With a
// probe each of flows has its own pass.
func (f *Flows) undoGroup(ctx context.Context, s *session, steps []Step) error {
	var errs []error
	for _, p := range []Place{Host, Container} {
		var all []*Flows
		for _, st := range steps {
			f := st.Object.(*Flows)
			switch {
			case f.In != p || s.isAbsentPlace(p):
			case s.net.probe == nil:
				all = append(all, f)
			default:
				errs = append(errs, s.probed(st, func() error { return f.undo(ctx, s, st.Verb) }))
			}
		}
		errs = append(errs, s.deleteFlows(ctx, all))
	}
	return errors.Join(errs...)
}

// deleteFlows deletes the tracked connections that match one of the selections. All
// selections are for one namespace. It does nothing if the kernel tracks no connection,
// or cannot list connections.
func (s *session) deleteFlows(ctx context.Context, flows []*Flows) error {
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
	var local map[netip.Addr]bool
	if slices.ContainsFunc(flows, func(f *Flows) bool { return f.Local }) {
		if local, err = ns.addresses(ctx); err != nil {
			return err
		}
	}
	all := make([]conntrack.Selection, len(flows))
	for i, f := range flows {
		all[i] = f.selection()
		all[i].Addresses = local
	}
	return c.Delete(ctx, all)
}

func (f *Flows) selection() conntrack.Selection {
	return conntrack.Selection{Proto: protoNumber(f.Proto), Port: f.Port, End: f.End, Src: f.Src, Dst: f.Dst, ReplySrc: f.ReplySrc, Local: f.Local}
}

// Contains reports whether f selects a connection of a namespace that has the addresses local.
func (f *Flows) Contains(c Connection, local map[netip.Addr]bool) bool {
	s := f.selection()
	s.Addresses = local
	return s.Matches(c)
}

// conntrack returns the namespace's ctnetlink socket and opens it on first use.
func (ns *Namespace) conntrack() (*conntrack.Conn, error) {
	if ns.ct != nil {
		return ns.ct, nil
	}
	err := ns.visit(func() (err error) {
		ns.ct, err = conntrack.Open()
		return err
	})
	return ns.ct, err
}

// addresses returns the addresses of the namespace.
func (ns *Namespace) addresses(ctx context.Context) (map[netip.Addr]bool, error) {
	c, err := ns.socket()
	if err != nil {
		return nil, err
	}
	addrs, err := c.Addresses(ctx, 0)
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		local[a.Prefix.Addr()] = true
	}
	return local, err
}

// SeenSources returns the addresses that the receiver of the host's tracked connections between two addresses sees as their sender:
// those after NAT. There are none if the connections are not tracked.
func (n *Net) SeenSources(ctx context.Context, from, to netip.Addr) ([]netip.Addr, error) {
	c, err := n.host.conntrack()
	if err != nil {
		return nil, err
	}
	return c.Sources(ctx, from, to)
}

// Connection is a tracked connection: its client's address before, and its server's address and port after translation.
type Connection = conntrack.Tracked

// Connections lists the tracked connections of the host's namespace that are of a protocol, or all for 0.
func (n *Net) Connections(ctx context.Context, protocol uint8) ([]Connection, error) {
	c, err := n.host.conntrack()
	if err != nil {
		return nil, err
	}
	return c.All(ctx, protocol)
}

// ProtocolName returns the name of an IP protocol in lower case, or its number.
func ProtocolName(number uint8) string { return nft.ProtocolName(number) }
