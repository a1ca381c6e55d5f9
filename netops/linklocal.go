package netops

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// EnsureLinkLocal returns a link-local IPv6 address of a container's link that can be
// used at once. The link must be up. EnsureLinkLocal enables IPv6 on the link. An
// address that is still in duplicate address detection, or failed it, is deleted and
// added again without the detection. If the link has no link-local address,
// EnsureLinkLocal makes one from the MAC (RFC 4291, appendix A).
func (n *Net) EnsureLinkLocal(ctx context.Context, ns *Namespace, link string) (netip.Addr, error) {
	key := "net/ipv6/conf/" + link + "/disable_ipv6"
	if err := n.Ensure(ctx, Spec{Objects: []Object{&Sysctl{In: Container, Shared: true, Key: key, Value: "0"}}}, ns); err != nil {
		return netip.Addr{}, err
	}
	c, l, err := n.linkIn(ctx, ns, link)
	if err != nil {
		return netip.Addr{}, err
	}
	all, err := c.Addresses(ctx, l.Index)
	if err != nil {
		return netip.Addr{}, err
	}
	var waiting *Addr
	for _, a := range all {
		if !a.Prefix.Addr().IsLinkLocalUnicast() || !a.Prefix.Addr().Is6() {
			continue
		}
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			return a.Prefix.Addr(), nil
		}
		waiting = &Addr{In: Container, Shared: true, Link: link, Address: a.Prefix}
	}
	if waiting == nil {
		addr, err := LinkLocal(l.MAC.String())
		if err != nil {
			return netip.Addr{}, fmt.Errorf("link %q: %w", link, err)
		}
		waiting = &Addr{In: Container, Shared: true, Link: link, Address: netip.PrefixFrom(addr, 64)}
	} else if err := n.Undo(ctx, []Change{{Do: Step{VerbAdd, waiting}, Undo: &Step{VerbDel, waiting}}}, ns); err != nil {
		return netip.Addr{}, err
	}
	return waiting.Address.Addr(), n.Ensure(ctx, Spec{Objects: []Object{waiting}}, ns)
}

// LinkLocal returns the link-local address with the modified EUI-64 identifier of a MAC.
func LinkLocal(mac string) (netip.Addr, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return netip.Addr{}, fmt.Errorf("%q is not an Ethernet address: %w", mac, ErrInvalid)
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: hw[0] ^ 2, 9: hw[1], 10: hw[2], 11: 0xff, 12: 0xfe, 13: hw[3], 14: hw[4], 15: hw[5]}), nil
}
