package netops

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// HasAddress reports whether the host has an address: on an interface, also while duplicate address
// detection runs, or by a route of the type local. If not, link is the one to which the route to it
// leads, or "".
func (n *Net) HasAddress(ctx context.Context, a netip.Addr) (has bool, link string, err error) {
	way, err := n.Way(ctx, nil, Packet{To: a})
	if err != nil && !errors.Is(err, ErrNotExist) || way.Local {
		return way.Local, "", err
	}
	c, err := n.host.socket()
	if err != nil {
		return false, "", err
	}
	all, err := c.Addresses(ctx, 0)
	isUsable := func(h rtnl.Addr) bool { return h.Prefix.Addr() == a && h.Flags&unix.IFA_F_DADFAILED == 0 }
	if slices.ContainsFunc(all, isUsable) {
		return true, "", nil
	}
	return false, way.Link, err
}

// EgressOf returns the address with which the packets of an attachment leave the host, if o makes that.
func EgressOf(o Object) (a netip.Addr, is bool) {
	e, is := o.(*Element)
	if !is || e.Set != EgressSet+"4" && e.Set != EgressSet+"6" || len(e.Value) != 1 {
		return a, false
	}
	a, err := netip.ParseAddr(e.Value[0])
	return a, err == nil
}

// Masquerades reports whether an object makes packets of containers leave the host with one of its addresses.
func Masquerades(o Object) bool {
	e, is := o.(*Element)
	return is && slices.Contains([]string{"masq", "masq_kind", "routed", "routed_kind", EgressSet}, strings.TrimRight(e.Set, "46"))
}

// EgressAddress returns the address that a packet leaves the host with because of an egressAddress, or the
// zero Addr. link is that on which it arrives.
func (n *Net) EgressAddress(ctx context.Context, link string, from, to netip.Addr) (netip.Addr, error) {
	digit := FamilyDigit(from)
	pods, err := n.Elements(ctx, EgressSet+digit)
	isFrom := func(e *Element) bool { return e.Key[0] == link && e.Key[1] == from.String() }
	i := slices.IndexFunc(pods, isFrom)
	if err != nil || i < 0 || to.IsMulticast() {
		return netip.Addr{}, err
	}
	near, err := n.Elements(ctx, EgressNearSet+digit)
	isNear := func(e *Element) bool {
		p, err := netip.ParsePrefix(e.Key[1])
		return err == nil && e.Key[0] == link && p.Contains(to)
	}
	if err != nil || slices.ContainsFunc(near, isNear) {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(pods[i].Value[0])
}
