package netops

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// HostEnd is the host's end of a veth pair whose other end is the link in ns.
// The error wraps ErrNotExist where there is none: the link is absent, of
// another kind, or its other end is in another namespace than the host's.
func (n *Net) HostEnd(ctx context.Context, ns *Namespace, link string) (LinkInfo, error) {
	if err := checkName(link); err != nil {
		return LinkInfo{}, err
	}
	inside, err := ns.socket()
	if err != nil {
		return LinkInfo{}, err
	}
	own, err := inside.link(ctx, link)
	if err != nil {
		return LinkInfo{}, err
	}
	if own.kind != "veth" {
		return LinkInfo{}, fmt.Errorf("host's end of link %q, which is of kind %q, not \"veth\": %w", link, own.kind, ErrNotExist)
	}
	host, err := n.host.socket()
	if err != nil {
		return LinkInfo{}, err
	}
	// An index counts in one namespace only: that of the link's other end, which
	// is the host's if the host knows the link's namespace as its other end's.
	have, err := host.linkByIndex(ctx, own.peer)
	if err != nil {
		return LinkInfo{}, fmt.Errorf("host's end of link %q: %w", link, err)
	}
	id, err := host.namespaceID(ctx, ns)
	if err != nil {
		return LinkInfo{}, err
	}
	if have.kind != "veth" || have.peer != own.index || !have.peerElsewhere || have.peerNamespace != id {
		return LinkInfo{}, fmt.Errorf("host's end of link %q: %w in the host's namespace", link, ErrNotExist)
	}
	return have.info(), nil
}

// Attributes of RTM_GETNSID (linux/net_namespace.h).
const (
	netnsaNSID = 1
	netnsaFD   = 3
)

// namespaceID is the number that the connection's namespace knows another one
// by, negative for none (rtnetlink(7), NETNSA_NSID).
func (c *rtConn) namespaceID(ctx context.Context, ns *Namespace) (int, error) {
	data, err := c.Query(ctx, nlconn.Message{Kind: unix.RTM_GETNSID, Data: []nl.NetlinkRequestData{
		nl.NewRtGenMsg(), nl.NewRtAttr(netnsaFD, nl.Uint32Attr(uint32(ns.fd))),
	}})
	if err != nil {
		return 0, nlconn.Explain(err, fmt.Sprintf("number of namespace %q", ns.path))
	}
	return parseNamespaceID(data)
}

// parseNamespaceID reads the body of RTM_NEWNSID.
func parseNamespaceID(b []byte) (int, error) {
	id := -1
	if len(b) < unix.NLMSG_ALIGNTO {
		return id, fmt.Errorf("namespace message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	err := nlconn.EachAttr(b[unix.NLMSG_ALIGNTO:], func(kind uint16, v []byte) error {
		if kind == netnsaNSID {
			id = attrSigned(v)
		}
		return nil
	})
	return id, err
}

// attrSigned is a signed 32-bit attribute's value, -1 for one of another length.
func attrSigned(v []byte) int {
	if len(v) < 4 {
		return -1
	}
	return int(int32(nlconn.Int(v)))
}
