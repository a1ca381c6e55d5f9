package rtnl

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Attributes of RTM_GETNSID (linux/net_namespace.h).
const (
	netnsaNSID = 1
	netnsaFD   = 3
)

// NamespaceID returns the number that the connection's namespace has for an open
// namespace, or a negative number for none (rtnetlink(7), NETNSA_NSID).
func (c *Conn) NamespaceID(ctx context.Context, fd int) (int, error) {
	m := nlconn.Message{Kind: unix.RTM_GETNSID, Header: nl.NewRtGenMsg(), Fleeting: true}
	m.Uint32(netnsaFD, uint32(fd))
	data, err := c.Query(ctx, m)
	if err != nil {
		return 0, err
	}
	return parseNamespaceID(data)
}

// parseNamespaceID reads the body of RTM_NEWNSID.
func parseNamespaceID(b []byte) (int, error) {
	if len(b) < unix.NLMSG_ALIGNTO {
		return -1, fmt.Errorf("namespace message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	id, err := nlconn.Find(b[unix.NLMSG_ALIGNTO:], netnsaNSID)
	return attrSigned(id), err
}
