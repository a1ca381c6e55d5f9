package netops

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// rtConn is an rtnetlink socket in one namespace.
type rtConn struct{ *nlconn.Conn }

// openRTConn opens a socket in the calling thread's network namespace.
func openRTConn() (*rtConn, error) {
	c, err := nlconn.Open(unix.NETLINK_ROUTE, "rtnetlink")
	if err != nil {
		return nil, err
	}
	return &rtConn{c}, nil
}
