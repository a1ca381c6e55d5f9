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
	data, err := c.Query(ctx, nlconn.Message{Kind: unix.RTM_GETNSID, Data: []nl.NetlinkRequestData{
		nl.NewRtGenMsg(), nl.NewRtAttr(netnsaFD, nl.Uint32Attr(uint32(fd))),
	}})
	if err != nil {
		return 0, err
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
