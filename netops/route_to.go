package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// RouteLink returns the name of the link that the kernel's route to an address
// uses. A nil ns is the host's namespace. The error wraps ErrNotExist if there
// is no route.
func (n *Net) RouteLink(ctx context.Context, ns *Namespace, to netip.Addr) (string, error) {
	l, err := n.LinkToward(ctx, ns, to)
	return l.Name, err
}

// LinkToward is like RouteLink and returns the link's properties. Master,
// ParentName and Addresses are empty.
func (n *Net) LinkToward(ctx context.Context, ns *Namespace, to netip.Addr) (LinkInfo, error) {
	index, c, err := n.routeTo(ctx, ns, to)
	if err != nil {
		return LinkInfo{}, err
	}
	l, err := c.LinkByIndex(ctx, index)
	if err != nil {
		return LinkInfo{}, err
	}
	return newLinkInfo(l), nil
}

// CheckRoute is like RouteLink without the link. It returns nil if there is a
// route.
func (n *Net) CheckRoute(ctx context.Context, ns *Namespace, to netip.Addr) error {
	_, _, err := n.routeTo(ctx, ns, to)
	return err
}

// routeTo returns the index of the link that the route to an address uses, and
// the connection of the namespace.
func (n *Net) routeTo(ctx context.Context, ns *Namespace, to netip.Addr) (index int, c *rtnl.Conn, err error) {
	if err := checkAddr("destination", to); err != nil || !to.IsValid() {
		return 0, nil, errors.Join(err, fmt.Errorf("route to %q: %w", to, ErrInvalid))
	}
	r, c, err := n.route(ctx, ns, Packet{To: to})
	if err == nil && (r.Kind != unix.RTN_UNICAST || r.Link == 0) {
		err = fmt.Errorf("route to %s: %w", to, ErrNotExist)
	}
	return r.Link, c, err
}
