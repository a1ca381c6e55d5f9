// Package rtnl encodes rtnetlink requests and decodes the kernel's messages:
// links, addresses, routes, neighbours and policy rules.
package rtnl

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Conn is an rtnetlink socket in one namespace.
type Conn struct{ *nlconn.Conn }

// Open opens a socket in the calling thread's network namespace.
func Open() (*Conn, error) {
	c, err := nlconn.Open(unix.NETLINK_ROUTE, "rtnetlink")
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}
