package netops

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// messages returns the requests that make or set the link. session.deleteLink deletes
// links, always by index.
func (l *Link) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	if v == VerbAdd {
		return l.create(ctx, s)
	}
	index := 0
	if l.Index != 0 {
		have, err := s.findByIndex(ctx, l)
		if err != nil {
			return nil, err
		}
		index = have.Index
	}
	m, err := l.setAt(ctx, s, index)
	return []nlconn.Message{m}, err
}

// create returns up to three requests:
//
//  1. The first makes the link. It is for the parent's namespace if the link and its
//     parent are in different namespaces. The others are for the link's namespace.
//  2. The second sets the alias, the port flags and the MAC of laterMAC, which the kernel
//     ignores in the first.
//  3. The third sets the master of a pair's other end and brings the peer up. The first request
//     cannot name that master. The kernel brings a peer up only if both ends exist
//     (ENOTCONN on 6.1).
func (l *Link) create(ctx context.Context, s *session) ([]nlconn.Message, error) {
	index := 0
	if l.choosesIndex() {
		index = l.chosenIndex()
	}
	m := nlconn.Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Header: l.header(index)}
	m.Text(unix.IFLA_IFNAME, l.Name)
	l.addOwn(&m.Body)
	if l.Peer != nil {
		rtnl.AddOneQueue(&m.Body)
	}
	if l.DevGroup != 0 {
		m.Uint32(unix.IFLA_GROUP, l.DevGroup)
	}
	if l.Master != "" {
		master, err := s.indexOf(ctx, l.In, l.Master)
		if err != nil {
			return nil, fmt.Errorf("master of %s: %w", l.title(), err)
		}
		m.Uint32(unix.IFLA_MASTER, uint32(master))
	}
	if err := l.addParent(ctx, s, &m.Body); err != nil {
		return nil, err
	}
	switch {
	case l.Peer != nil:
		if err := l.addPeer(s, &m.Body); err != nil {
			return nil, err
		}
		m.Echo = func(data []byte) { l.cacheIndexes(s, data) }
	case l.IsPairEnd():
		return nil, fmt.Errorf("%s: a %s has two ends: %w", l.title(), l.Kind, ErrInvalid)
	default:
		l.kindState(s).AddKind(&m.Body)
	}
	msgs := []nlconn.Message{m}
	if rest := (Link{In: l.In, Name: l.Name, MAC: l.laterMAC(), Alias: l.Alias, Port: l.Port}); rest.MAC != "" || l.Alias != "" || l.Port != nil {
		m, err := rest.setAt(ctx, s, index)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	if p := l.Peer; p != nil && (p.Up || p.Master != "") {
		m, err := (&Link{In: p.In, Name: p.Name, Up: p.Up, Master: p.Master}).setAt(ctx, s, 0)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}

// cacheIndexes stores the indexes of both ends of a pair from the kernel's notification. That
// saves a request for the index of the end in the container.
func (l *Link) cacheIndexes(s *session, data []byte) {
	have, err := rtnl.ParseLink(data)
	if err != nil || have.Name != l.Name || have.Peer == 0 || have.PeerElsewhere != (l.Peer.In != l.In) {
		return
	}
	s.index[l.ref()] = have.Index
	s.index[linkRef{l.Peer.In, l.Peer.Name}] = have.Peer
}

// addPeer appends IFLA_LINKINFO of a pair: the header and the attributes of its peer.
func (l *Link) addPeer(s *session, b *nlconn.Body) error {
	p, peer := l.Peer, nlconn.Body(nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize())
	peer.Text(unix.IFLA_IFNAME, p.Name)
	rtnl.AddHardware(&peer, p.MAC, p.MTU)
	rtnl.AddOneQueue(&peer)
	if p.In != l.In {
		ns, err := s.namespace(p.In)
		if err != nil {
			return err
		}
		peer.Uint32(unix.IFLA_NET_NS_FD, uint32(ns.fd))
	}
	k := l.kindState(s)
	k.PeerInfo = peer
	k.AddKind(b)
	return nil
}

// setAt returns the request that changes the attributes that l sets. It addresses the link by
// index, or by name if the index is 0.
func (l *Link) setAt(ctx context.Context, s *session, index int) (nlconn.Message, error) {
	unset := l.unset()
	m := nlconn.Message{Kind: unix.RTM_NEWLINK, Header: l.header(index)}
	if index == 0 {
		m.Text(unix.IFLA_IFNAME, l.Name)
	}
	l.addOwn(&m.Body)
	if l.Alias != "" || unset.Alias {
		m.Bytes(unix.IFLA_IFALIAS, []byte(l.Alias))
	}
	if l.Master != "" || unset.Master {
		index := 0
		if l.Master != "" {
			var err error
			if index, err = s.indexOf(ctx, l.In, l.Master); err != nil {
				return m, fmt.Errorf("master of %s: %w", l.title(), err)
			}
		}
		m.Uint32(unix.IFLA_MASTER, uint32(index))
	}
	if l.Port != nil {
		l.Port.AddTo(&m.Body)
	}
	if l.VXLAN != nil {
		// kindState takes the parent's index from those that the session has looked up.
		if err := l.addParent(ctx, s, &m.Body); err != nil {
			return m, err
		}
		l.kindState(s).AddKind(&m.Body)
	}
	return m, nil
}

// deleteLink deletes the link that was made from l. In the container it finds the link
// even if it was renamed. The label in the link's alias must be the label of l. If l has
// no label, the kind must be the same. Another program's link with that name is left
// alone.
//
// A link without an alias is deleted too if it has the MAC or the index that was chosen
// for it. A process may have died between the requests that make and label the link.
func (s *session) deleteLink(ctx context.Context, l *Link) error {
	have, err := s.findLink(ctx, l.In, l.Name)
	if err == nil && l.In == Container && (have == nil || !l.isMade(have)) {
		have, err = s.findRenamed(ctx, l)
	}
	if err != nil || have == nil || !l.isMade(have) {
		return err
	}
	delete(s.index, l.ref())
	c, err := s.conn(l.In)
	if err != nil {
		return err
	}
	return c.One(ctx, rtnl.LinkMessage(unix.RTM_DELLINK, have.Index))
}

// isMade reports whether the link have was made from l.
func (l *Link) isMade(have *rtnl.Link) bool {
	label := ownLabel(l.Alias)
	unlabelled := have.Alias == "" &&
		(l.MAC != "" && rtnl.SameMAC(l.MAC, have.MAC) || l.choosesIndex() && l.chosenIndex() == have.Index)
	if label != "" && !unlabelled {
		return ownLabel(have.Alias) == label
	}
	return l.Kind == "" || have.Kind == l.Kind
}

// findRenamed finds a link in the container by its label and kind, because the container may
// have renamed it. It returns nil if there is none.
func (s *session) findRenamed(ctx context.Context, l *Link) (*rtnl.Link, error) {
	label := ownLabel(l.Alias)
	if label == "" {
		return nil, nil
	}
	c, err := s.conn(l.In)
	if err != nil {
		return nil, err
	}
	all, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	for _, have := range all {
		if ownLabel(have.Alias) == label && have.Kind == l.Kind {
			return have, nil
		}
	}
	return nil, nil
}

// findByIndex finds the link that the inverse l restores. The index identifies it, because the
// container may have renamed it and given its name to another link. The error wraps
// ErrNotExist if the link does not exist.
func (s *session) findByIndex(ctx context.Context, l *Link) (*rtnl.Link, error) {
	have, err := s.findLink(ctx, l.In, l.Name)
	if err != nil || have != nil && have.Index == l.Index {
		return have, err
	}
	c, err := s.conn(l.In)
	if err != nil {
		return nil, err
	}
	return c.LinkByIndex(ctx, l.Index)
}
