package netops

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// returnPatience limits the wait for a device whose namespace is being
	// deleted. The kernel returns the device when it destroys the namespace,
	// usually within 0.1 s. A busy node destroys namespaces one after the
	// other.
	returnPatience = 10 * time.Second
	// freeName makes the kernel choose a free name. The kernel uses the same
	// pattern for a returned device whose name is taken.
	freeName = "dev%d"
)

// undo reverts a move that was completed, partly done or not started.
func (m *Move) undo(ctx context.Context, s *session, _ Verb) error {
	if !s.isAbsentPlace(m.To) {
		there, err := m.search(ctx, s, m.To)
		if err != nil {
			return err
		}
		if there != nil {
			m = m.withName(there)
			if err := m.moveToHost(ctx, s, there); err != nil {
				return err
			}
		}
	}
	back, err := m.search(ctx, s, m.From)
	if err == nil && back == nil && m.mayReturn(ctx, s) {
		back, err = m.await(ctx, s)
	}
	if err != nil || back == nil {
		return err
	}
	return m.withName(back).restore(ctx, s, back)
}

// withName returns the inverse with the name from the link's alias, if the inverse
// has no name.
func (m *Move) withName(l *rtnl.Link) *Move {
	name := aliasName(l.Alias)
	if m.Name != "" || name == "" {
		return m
	}
	known := *m
	known.Name = name
	return &known
}

// aliasName returns the name that the second word of an alias is, or "".
func aliasName(alias string) string {
	words := strings.Fields(alias)
	if len(words) < 2 || rtnl.CheckName(words[1]) != nil {
		return ""
	}
	return words[1]
}

// search finds the link in one of the two namespaces, and returns nil if it
// finds none. The container can change the link's name, alias and address, and
// can give the label to another link.
func (m *Move) search(ctx context.Context, s *session, p Place) (*rtnl.Link, error) {
	c, err := s.conn(p)
	if err != nil {
		return nil, err
	}
	all, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	for _, is := range []func(*rtnl.Link, Place) bool{m.isCertain, m.isUnlabelled, m.isLabelled} {
		if i := slices.IndexFunc(all, func(l *rtnl.Link) bool { return is(l, p) }); i >= 0 {
			return all[i], nil
		}
	}
	return nil, nil
}

// isCertain reports whether both the label and the MAC address are as recorded.
func (m *Move) isCertain(l *rtnl.Link, p Place) bool {
	mac := l.Permanent
	if len(mac) == 0 {
		mac = l.MAC
	}
	return m.isLabelled(l, p) && rtnl.SameMAC(m.MAC, mac)
}

// isLabelled reports whether the link has the label, and no other name in its alias:
// an attachment can have moved several links. In the container the link
// must also have the recorded kind. A container cannot create a link of a
// physical device's kind, so it cannot get a link of its own moved into the
// host.
func (m *Move) isLabelled(l *rtnl.Link, p Place) bool {
	name := aliasName(l.Alias)
	return isLabelled(l.Alias, m.Alias) && (m.Name == "" || name == "" || name == m.Name) && (p == m.From || m.MAC == "" || l.Kind == m.Kind)
}

// isUnlabelled reports whether a link without a label is the link that was
// moved. It must have the recorded permanent MAC address, or the recorded name
// and MAC address at the destination.
func (m *Move) isUnlabelled(l *rtnl.Link, p Place) bool {
	if m.MAC == "" || l.Kind != m.Kind || ownLabel(l.Alias) != "" {
		return false
	}
	return l.Kind == "" && rtnl.SameMAC(m.MAC, l.Permanent) || p == m.To && l.Name == m.As && rtnl.SameMAC(m.MAC, l.MAC)
}

// moveToHost moves the link back, with its old name if that name is free. It restores
// a removed label, so that a later call can find the link in its old namespace.
func (m *Move) moveToHost(ctx context.Context, s *session, l *rtnl.Link) error {
	home, err := s.handle(m.From)
	if err != nil {
		return err
	}
	defer home.release()
	c, err := s.conn(m.To)
	if err != nil {
		return err
	}
	if !m.isLabelled(l, m.To) {
		label, err := (&Link{Alias: m.Alias}).setAt(ctx, s, l.Index)
		if err != nil {
			return err
		}
		if err := c.One(ctx, label); err != nil {
			return err
		}
	}
	err = c.One(ctx, home.moveMessage(l.Index, m.Name))
	if errors.Is(err, unix.EEXIST) {
		err = c.One(ctx, home.moveMessage(l.Index, freeName))
	}
	if nlconn.IsAbsent(err) { // the link was moved but not renamed
		return nil
	}
	return err
}

// mayReturn reports whether the kernel is going to return the link: it is a
// physical device, its namespace was deleted, and it is not back yet.
func (m *Move) mayReturn(ctx context.Context, s *session) bool {
	if !s.isAbsentPlace(m.To) || m.Kind != "" || m.MAC == "" {
		return false
	}
	home, err := s.findLink(ctx, m.From, m.Name)
	return err == nil && (home == nil || home.Kind != m.Kind || !rtnl.SameMAC(m.MAC, home.MAC))
}

// await waits for the kernel to return the link. It returns nil after
// returnPatience.
func (m *Move) await(ctx context.Context, s *session) (*rtnl.Link, error) {
	ctx, cancel := context.WithTimeout(ctx, returnPatience)
	defer cancel()
	events, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer events.Close() //nolint:errcheck // it sends no request
	if err := events.Join(unix.RTNLGRP_LINK); err != nil {
		return nil, nlconn.Explain(err, "listen to links")
	}
	for {
		// Search after each event. The first search finds a link that
		// returned before the socket was open.
		if l, err := m.search(ctx, s, m.From); l != nil || err != nil {
			return l, err
		}
		err := events.Receive(ctx, func(unix.NlMsghdr, []byte) {})
		switch {
		case ctx.Err() != nil, errors.Is(err, unix.ETIMEDOUT):
			return nil, nil
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return nil, err
		}
	}
}

// restore resets the name, MTU, MAC address, alias and state of the returned link. A
// link without the label was never changed. If the name is taken, or the old MTU or
// address is impossible now, the link keeps what it has.
func (m *Move) restore(ctx context.Context, s *session, l *rtnl.Link) error {
	rename := m.Name != "" && l.Name != m.Name
	if !rename && !m.isLabelled(l, m.From) {
		return nil
	}
	c, err := s.conn(m.From)
	if err != nil {
		return err
	}
	rest := &Link{Alias: m.Back, Up: m.Up, Down: !m.Up, Unset: &Unset{Alias: true}}
	last, err := rest.setAt(ctx, s, l.Index)
	if err != nil {
		return err
	}
	change, err := m.changeMessages(ctx, s, l, rename)
	if err != nil {
		return err
	}
	network, err := m.networkMessages(ctx, s, l.Index)
	if err != nil {
		return err
	}
	results, broken := c.Exchange(ctx, slices.Concat(change, network, []nlconn.Message{last}))
	for i, err := range results[:len(change)+len(network)] {
		if i < len(change) && i > 0 && (errors.Is(err, unix.EEXIST) || isImpossible(err)) || i >= len(change) && isRestored(err) {
			results[i] = nil
		}
	}
	return errors.Join(append(results, broken)...)
}

// changeMessages returns the requests that restore the MTU, the MAC address and the name, if one differs. The link is down meanwhile.
func (m *Move) changeMessages(ctx context.Context, s *session, l *rtnl.Link, rename bool) (msgs []nlconn.Message, err error) {
	all := m.settings(l)
	if len(all) == 0 && !rename {
		return nil, nil
	}
	for _, set := range append([]*Link{{Down: true}}, all...) {
		msg, err := set.setAt(ctx, s, l.Index)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, msg)
	}
	if rename {
		msgs = append(msgs, renameMessage(l.Index, m.Name))
	}
	return msgs, nil
}

// networkMessages returns the requests that restore the recorded addresses and
// routes. They need the link up. They come before its label is taken away, so that
// a call that continues after a killed one repeats them.
func (m *Move) networkMessages(ctx context.Context, s *session, index int) ([]nlconn.Message, error) {
	if len(m.Addresses) == 0 && len(m.Routes) == 0 {
		return nil, nil
	}
	var msgs []nlconn.Message
	for i := range m.Addresses {
		msgs = append(msgs, m.Addresses[i].message(index, VerbAdd))
	}
	if !m.Up {
		return msgs, nil
	}
	up, err := (&Link{Up: true}).setAt(ctx, s, index)
	if err != nil {
		return nil, err
	}
	msgs = append(msgs, up)
	for i := range m.Routes {
		msgs = append(msgs, m.Routes[i].message(index, VerbAdd))
	}
	return msgs, nil
}

// isRestored reports whether an address or route exists, or cannot exist any more.
func isRestored(err error) bool { return errors.Is(err, unix.EEXIST) || isRefusedRoute(err) }

// isImpossible reports whether a link cannot have a value again: the kernel refuses the value, another link has the MAC, or the driver does
// not let the host change it, as of a virtual function that its physical function configures. Without a privilege the other requests fail.
func isImpossible(err error) bool {
	for _, e := range []error{unix.EADDRINUSE, unix.EADDRNOTAVAIL, unix.EOPNOTSUPP, unix.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isInvalid(err)
}

// settings returns what the link must get again, one attribute each.
func (m *Move) settings(l *rtnl.Link) (all []*Link) {
	if m.MTU != 0 && m.MTU != l.MTU {
		all = append(all, &Link{MTU: m.MTU})
	}
	if m.Address != "" && !rtnl.SameMAC(m.Address, l.MAC) {
		all = append(all, &Link{MAC: m.Address})
	}
	return all
}

// renameMessage is the request that renames a link. Linux up to 6.2 requires that the
// link is down.
func renameMessage(index int, name string) nlconn.Message {
	m := rtnl.LinkMessage(unix.RTM_SETLINK, index)
	m.Text(unix.IFLA_IFNAME, name)
	return m
}
