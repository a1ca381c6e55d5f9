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
//  3. The third sets the master of a veth's peer and brings the peer up. The first request
//     cannot name that master. The kernel brings a peer up only if both ends exist
//     (ENOTCONN on 6.1).
func (l *Link) create(ctx context.Context, s *session) ([]nlconn.Message, error) {
	ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
	if l.choosesIndex() {
		ifi.Index = int32(l.chosenIndex())
	}
	rtnl.SetFlag(ifi, l.Up, l.Down, unix.IFF_UP)
	l.modeFlags(ifi, Unset{})
	m := nlconn.Message{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Data: []nl.NetlinkRequestData{ifi, rtnl.NameAttr(l.Name)}}
	m.Data = append(m.Data, l.ownAttrs()...)
	if l.Peer != nil {
		m.Data = append(m.Data, rtnl.OneQueue()...)
	}
	if l.Master != "" {
		master, err := s.indexOf(ctx, l.In, l.Master)
		if err != nil {
			return nil, fmt.Errorf("master of %s: %w", l.title(), err)
		}
		m.Data = append(m.Data, nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	}
	parent, err := l.parentAttrs(ctx, s)
	if err != nil {
		return nil, err
	}
	m.Data = append(m.Data, parent...)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(l.Kind))
	if err := l.addInfo(s, info); err != nil {
		return nil, err
	}
	m.Data = append(m.Data, info)
	if l.Peer != nil {
		m.Echo = func(data []byte) { l.cacheIndexes(s, data) }
	}
	msgs := []nlconn.Message{m}
	if rest := (Link{In: l.In, Name: l.Name, MAC: l.laterMAC(), Alias: l.Alias, Port: l.Port}); rest.MAC != "" || l.Alias != "" || l.Port != nil {
		m, err := rest.setAt(ctx, s, int(ifi.Index))
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	if p := l.Peer; p != nil && (p.Up || p.Master != "") {
		rest := &Link{In: p.In, Name: p.Name, Up: p.Up, Master: p.Master}
		m, err := rest.set(ctx, s)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}

// cacheIndexes stores the indexes of both ends of a veth from the kernel's notification. That
// saves a request for the index of the end in the container.
func (l *Link) cacheIndexes(s *session, data []byte) {
	have, err := rtnl.ParseLink(data)
	if err != nil || have.Name != l.Name || have.Peer == 0 || have.PeerElsewhere != (l.Peer.In != l.In) {
		return
	}
	s.index[l.ref()] = have.Index
	s.index[linkRef{l.Peer.In, l.Peer.Name}] = have.Peer
}

// addInfo adds the attributes that only some kinds have to IFLA_LINKINFO.
func (l *Link) addInfo(s *session, info *nl.RtAttr) error {
	switch {
	case l.Kind == "veth" && l.Peer == nil:
		return fmt.Errorf("%s: a veth has two ends: %w", l.title(), ErrInvalid)
	case l.Peer != nil:
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		return l.Peer.add(s, l.In, data.AddRtAttr(nl.VETH_INFO_PEER, nil))
	case l.Bridge != nil && l.Bridge.VLANFiltering:
		info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_BR_VLAN_FILTERING, nl.Uint8Attr(1))
	default:
		l.addKindData(s, info)
	}
	return nil
}

// add adds the attributes of a veth's peer to attr. own is the place of the first end.
func (p *Peer) add(s *session, own Place, attr *nl.RtAttr) error {
	nl.NewIfInfomsgChild(attr, unix.AF_UNSPEC)
	attr.AddChild(rtnl.NameAttr(p.Name))
	for _, a := range append(rtnl.HardwareAttrs(p.MAC, p.MTU), rtnl.OneQueue()...) {
		attr.AddChild(a)
	}
	if p.In == own {
		return nil
	}
	ns, err := s.namespace(p.In)
	if err != nil {
		return err
	}
	attr.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.fd)))
	return nil
}

// set returns the request that changes the attributes that l sets. It addresses the link
// by name.
func (l *Link) set(ctx context.Context, s *session) (nlconn.Message, error) {
	return l.setAt(ctx, s, 0)
}

// setAt returns the same request as set. It addresses the link by index, or by name if
// the index is 0.
func (l *Link) setAt(ctx context.Context, s *session, index int) (nlconn.Message, error) {
	var unset Unset
	if l.Unset != nil {
		unset = *l.Unset
	}
	ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
	rtnl.SetFlag(ifi, l.Up, l.Down, unix.IFF_UP)
	l.modeFlags(ifi, unset)
	m := nlconn.Message{Kind: unix.RTM_NEWLINK, Data: append(make([]nl.NetlinkRequestData, 0, 6), ifi)}
	ifi.Index = int32(index)
	if index == 0 {
		m.Data = append(m.Data, rtnl.NameAttr(l.Name))
	}
	m.Data = append(m.Data, l.ownAttrs()...)
	if l.Alias != "" || unset.Alias {
		m.Data = append(m.Data, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(l.Alias)))
	}
	if l.Master != "" || unset.Master {
		index := 0
		if l.Master != "" {
			var err error
			if index, err = s.indexOf(ctx, l.In, l.Master); err != nil {
				return m, fmt.Errorf("master of %s: %w", l.title(), err)
			}
		}
		m.Data = append(m.Data, nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(index))))
	}
	if l.Port != nil {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated(rtnl.KindBridge))
		port := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
		port.AddRtAttr(nl.IFLA_BRPORT_MODE, rtnl.BoolAttr(l.Port.Hairpin))
		port.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, rtnl.BoolAttr(l.Port.Isolated))
		l.Port.AddSettings(port)
		m.Data = append(m.Data, info)
	}
	return m, nil
}

// linkMessage returns a request for the link with an index.
func linkMessage(kind uint16, index int, attrs ...nl.NetlinkRequestData) nlconn.Message {
	ifi := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ifi.Index = int32(index)
	return nlconn.Message{Kind: kind, Data: append([]nl.NetlinkRequestData{ifi}, attrs...)}
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
	return c.One(ctx, linkMessage(unix.RTM_DELLINK, have.Index))
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
