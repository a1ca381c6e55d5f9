package netops

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// seenPort is what the ways of pods' packets depend on.
type seenPort struct {
	name, mac        string
	master, parent   int
	group            uint32
	filter4, filter6 bool
}

func newSeenPort(l *rtnl.Link) seenPort {
	p := seenPort{name: l.Name, master: l.Master, group: l.Group, filter4: l.Filter4, filter6: l.Filter6}
	if l.Kind == rtnl.KindBridge {
		p.mac = l.MAC.String()
	}
	if !l.PeerElsewhere && !rtnl.IsPairEnd(l.Kind) {
		p.parent = l.Peer
	}
	return p
}

// ports are the last known states of links, by index.
type ports map[int]seenPort

// OpenPortMonitor starts a LinkMonitor that notifies of what changes the ways of pods' packets: another name, group or master of a link, another
// MAC of a bridge, a switch of br_netfilter, and a new bridge or device on another link. What ADD makes for a pod is none of these.
func (n *Net) OpenPortMonitor(ctx context.Context) (*LinkMonitor, error) {
	seen := ports{}
	m, err := n.openMonitor(seen.isRelevant, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, err
	}
	_, links, _, err := n.linksIn(ctx, nil) // after the first notification can arrive
	if err != nil {
		_ = m.events.Close()
		return nil, err
	}
	for _, l := range links {
		seen[l.Index] = newSeenPort(l)
	}
	m.start() //nolint:contextcheck // it outlives the call
	return m, nil
}

func (s ports) isRelevant(kind uint16, data []byte) bool {
	if len(data) > 0 && data[0] == unix.AF_BRIDGE {
		return false // a bridge's notification about a port
	}
	l, err := rtnl.ParseLink(data)
	if err != nil {
		return false
	}
	was, known := s[l.Index]
	if kind == unix.RTM_DELLINK {
		delete(s, l.Index)
		return was.parent != 0
	}
	now := newSeenPort(l)
	s[l.Index] = now
	if !known {
		return l.Kind == rtnl.KindBridge || now.parent != 0
	}
	return was != now
}
