package netops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Move moves an existing link into another namespace, with a new name. The link
// is down afterwards, and its addresses and routes are lost, unless KeepNetwork is
// set. The link must not
// be a port of a bridge or bond, and must not belong to an attachment.
//
// The inverse moves the link back, even if it was renamed, and restores its
// name, alias, MTU, MAC address and state. If the container was deleted, the kernel returns a
// physical device to the initial namespace after a short delay, possibly under
// another name. The inverse finds it by its alias or its permanent MAC address.
// Virtual devices such as a veth are deleted with their namespace. An absent
// link is not an error. If the old name is taken, the link keeps a name that the
// kernel chooses, such as dev0.
type Move struct {
	// Name is the link's name in From, and As its name in To. An inverse
	// without a Name uses the second word of the link's alias. Without such
	// a word the link keeps its present name if that is free.
	From Place  `json:"from"`
	Name string `json:"name,omitempty"`
	To   Place  `json:"to"`
	As   string `json:"as"`
	// Alias is the label of the link while it is in To.
	Alias string `json:"alias"`
	// Back is the alias to restore, Up the state, MTU the MTU and Address the
	// MAC address. Kind and MAC identify the link. MAC is the permanent address
	// if the link has one. Plan sets these fields in the inverse.
	Back    string `json:"back,omitempty"`
	Up      bool   `json:"up,omitempty"`
	MTU     int    `json:"mtu,omitempty"`
	Address string `json:"address,omitempty"`
	Kind    string `json:"kind,omitempty"`
	MAC     string `json:"mac,omitempty"`
	// KeepNetwork makes the inverse restore the link's addresses of unlimited
	// lifetime and its routes. Plan sets Addresses and Routes in the inverse.
	KeepNetwork bool `json:"keepNetwork,omitempty"`
	// NameOnly makes the inverse restore the name and the alias, and leave the link down: the inverse of the VF that precedes this
	// object restores the rest.
	NameOnly  bool    `json:"nameOnly,omitempty"`
	Addresses []Addr  `json:"addresses,omitempty"`
	Routes    []Route `json:"routes,omitempty"`
}

// Where returns the namespace that the link comes from.
func (m *Move) Where() Place { return m.From }

// IsShared returns false: a moved link belongs to one attachment.
func (m *Move) IsShared() bool { return false }

// ref names the link after the move.
func (m *Move) ref() linkRef { return linkRef{m.To, m.As} }

// String describes the source, the destination and the new name.
func (m *Move) String() string {
	w := words{"move"}
	w.value("link", m.Name)
	w = append(w, "from", string(m.From), "to", string(m.To), "as", m.As, "alias", strconv.Quote(m.Alias))
	w.value("type", m.Kind)
	w.value("permaddr", m.MAC)
	if m.Back != "" {
		w = append(w, "back", strconv.Quote(m.Back))
	}
	w.number("mtu", m.MTU)
	if m.Address != m.MAC {
		w.value("address", m.Address)
	}
	w.flag(m.Up, "up")
	w.flag(m.KeepNetwork, "keep network")
	w.flag(m.NameOnly, "name only")
	return w.String()
}

func (m *Move) validate() error {
	errs := []error{checkPlace(m.From), checkPlace(m.To), rtnl.CheckName(m.As), checkAlias(m.Alias), checkAlias(m.Back), rtnl.CheckMAC(m.MAC), rtnl.CheckMAC(m.Address), rtnl.CheckMTU(m.MTU)}
	if m.Name != "" {
		errs = append(errs, rtnl.CheckName(m.Name))
	}
	if m.From == m.To {
		errs = append(errs, fmt.Errorf("a move from %s to %s: %w", m.From, m.To, ErrInvalid))
	}
	for i := range m.Addresses {
		errs = append(errs, m.Addresses[i].validate())
	}
	for i := range m.Routes {
		errs = append(errs, m.Routes[i].validate())
	}
	if m.Alias == "" {
		errs = append(errs, fmt.Errorf("a move without an alias: %w", ErrInvalid))
	}
	return errors.Join(errs...)
}

// plan validates the link and records its present settings for the inverse.
func (m *Move) plan(ctx context.Context, s *session) ([]Change, error) {
	if m.Name == "" {
		return nil, fmt.Errorf("%s: no name: %w", m, ErrInvalid)
	}
	have, err := s.link(ctx, m.From, m.Name)
	if err != nil {
		return nil, err
	}
	if err := m.checkMovable(ctx, s, have); err != nil {
		return nil, err
	}
	if !s.isAbsentPlace(m.To) {
		other, err := s.findLink(ctx, m.To, m.As)
		if err != nil {
			return nil, err
		}
		if other != nil {
			return nil, m.nameTakenError()
		}
	}
	back := *m
	back.Kind, back.MAC = have.Kind, have.MAC.String()
	if !m.NameOnly {
		back.Up, back.MTU, back.Address = have.IsUp(), have.MTU, have.MAC.String()
	}
	if len(have.Permanent) > 0 {
		back.MAC = have.Permanent.String()
	}
	if !isLabelled(have.Alias, m.Alias) {
		back.Back = have.Alias
	}
	if m.KeepNetwork {
		back.Addresses, back.Routes, err = s.networkOf(ctx, m.From, have)
		if err != nil {
			return nil, err
		}
	}
	arrived := *have
	arrived.Alias, arrived.Flags = m.Alias, have.Flags&^unix.IFF_UP
	if s.moved == nil {
		s.moved = map[linkRef]*rtnl.Link{}
	}
	s.made[m.ref()], s.moved[m.ref()] = true, &arrived
	return []Change{{Do: Step{VerbAdd, m}, Undo: &Step{VerbDel, &back}}}, nil
}

// networkOf returns the link's addresses and routes that do not come back by
// themselves: the kernel makes addresses of link scope and their routes, and who
// gave an address or a route a lifetime gives it again.
func (s *session) networkOf(ctx context.Context, p Place, l *rtnl.Link) ([]Addr, []Route, error) {
	c, err := s.conn(p)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := c.Addresses(ctx, l.Index)
	if err != nil {
		return nil, nil, err
	}
	var keep []Addr
	for _, a := range addrs {
		if a.Scope < unix.RT_SCOPE_LINK && a.Flags&unix.IFA_F_PERMANENT != 0 {
			keep = append(keep, Addr{In: p, Link: l.Name, Address: a.Prefix, NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0})
		}
	}
	routes, err := c.Routes(ctx, l.Index, 0)
	if err != nil {
		return nil, nil, err
	}
	var over []Route
	for _, r := range routes {
		if !r.Expires && r.Protocol != unix.RTPROT_RA && !r.Dst.Addr().IsLinkLocalUnicast() {
			over = append(over, *routeOf(&r, p, l.Name))
		}
	}
	// A gateway must be reachable by a route of a narrower scope.
	sorting.Stable(over, func(a, b Route) int { return cmp.Compare(*b.Scope, *a.Scope) })
	return keep, over, nil
}

// checkMovable refuses a link that other objects depend on.
func (m *Move) checkMovable(ctx context.Context, s *session, have *rtnl.Link) error {
	label := ownLabel(have.Alias)
	switch {
	case have.Flags&unix.IFF_LOOPBACK != 0:
		return fmt.Errorf("interface %q is the loopback device, which cannot be moved: %w", m.Name, ErrInvalid)
	case label != "" && !isLabelled(have.Alias, m.Alias):
		return fmt.Errorf("interface %q is an attachment's, with the alias %q: %w", m.Name, have.Alias, ErrConflict)
	case have.Master != 0:
		master, err := s.linkName(ctx, m.From, have.Master)
		if err != nil {
			return err
		}
		return fmt.Errorf("interface %q belongs to %q: %w", m.Name, master, ErrConflict)
	}
	return nil
}

func (m *Move) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.findLink(ctx, m.To, m.As)
	if err != nil || have == nil {
		return absentIf(err, m)
	}
	d := differences{object: m}
	if !isLabelled(have.Alias, m.Alias) {
		d.compare("label", m.Alias, have.Alias)
	}
	return d.list, nil
}

// made returns the link in its new place.
func (m *Move) made() []linkRef { return []linkRef{m.ref()} }

func (m *Move) configuration() *Link { return &Link{In: m.To, Name: m.As, Alias: m.Alias} }

// apply labels the link and moves it in one request. If the process is killed,
// the link is either unchanged or can be found by its alias.
func (m *Move) apply(ctx context.Context, run *applier, batch []Change) error {
	c := batch[0]
	have, err := run.link(ctx, m.From, m.Name)
	if err != nil {
		return describeStep(c.Do, err)
	}
	delete(run.index, linkRef{m.From, m.Name})
	to, err := run.handle(m.To)
	if err != nil {
		return describeStep(c.Do, err)
	}
	defer to.release()
	conn, err := run.conn(m.From)
	if err != nil {
		return describeStep(c.Do, err)
	}
	label, err := (&Link{Alias: m.Alias}).setAt(ctx, run.session, have.Index)
	if err != nil {
		return describeStep(c.Do, err)
	}
	results, broken := conn.Exchange(ctx, []nlconn.Message{label, to.moveMessage(have.Index, m.As)})
	for _, r := range results {
		if r == nil || errors.Is(r, nlconn.ErrUnknown) {
			run.done = append(run.done, c)
			break
		}
	}
	if errors.Is(results[1], unix.EEXIST) {
		return m.nameTakenError()
	}
	return describeStep(c.Do, errors.Join(append(results, broken)...))
}

// nameTakenError is the error for a link name that already exists at the destination.
func (m *Move) nameTakenError() error {
	return peerExists(&Peer{In: m.To, Name: m.As})
}

// handle is a namespace with a file descriptor for netlink requests.
type handle struct {
	*Namespace
	// own reports whether release must close the namespace.
	own bool
}

// handle returns the namespace of p. The namespace of the process has no file
// descriptor yet, so handle opens it.
func (s *session) handle(p Place) (handle, error) {
	ns, err := s.namespace(p)
	if err != nil || ns.fd != 0 {
		return handle{Namespace: ns}, err
	}
	ns, err = openNamespace(threadNamespace)
	return handle{ns, true}, err
}

func (h handle) release() {
	if h.own {
		_ = h.Close() // opened for reading
	}
}

// moveMessage is the request that moves a link into the namespace and renames it. It
// succeeds even if the namespace has another link with the old name. The kernel
// sets a link that it moves down; Linux up to 6.2 renames only such links. An
// empty name keeps the present name.
func (h handle) moveMessage(index int, name string) nlconn.Message {
	m := rtnl.LinkMessage(unix.RTM_SETLINK, index)
	m.Uint32(unix.IFLA_NET_NS_FD, uint32(h.fd))
	if name != "" {
		m.Text(unix.IFLA_IFNAME, name)
	}
	return m
}
