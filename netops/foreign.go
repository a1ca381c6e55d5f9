package netops

import (
	"context"
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/refplugins"
)

// Foreign identifies an attachment that the reference plugins made.
type Foreign = refplugins.Attachment

// ForeignPort is a port of the node that the reference's portmap maps to a container.
type ForeignPort = refplugins.Port

// leftovers gives access to the rules of the reference plugins on the host.
func (n *Net) leftovers() *refplugins.Leftovers {
	return &refplugins.Leftovers{NFT: n.nft, IPTables: n.iptables}
}

// HasForeign reports whether there may be rules that the reference's bridge, ptp or
// portmap made for the attachment. It is fast if there are none.
func (n *Net) HasForeign(ctx context.Context, f Foreign) (bool, error) {
	return n.leftovers().Has(ctx, f)
}

// RemoveForeignMasquerade removes the rules that the reference's bridge and ptp made for
// ipMasq, with either backend. Their iptables backend does not record interface names.
// Therefore a container's chain is deleted with the last rule that jumps to it.
func (n *Net) RemoveForeignMasquerade(ctx context.Context, f Foreign) error {
	return n.leftovers().RemoveMasquerade(ctx, f)
}

// RemoveForeignHostPorts removes the rules that the reference's portmap made, with
// either backend.
func (n *Net) RemoveForeignHostPorts(ctx context.Context, f Foreign) error {
	return n.leftovers().RemoveHostPorts(ctx, f)
}

// HasForeignForward reports whether the reference's firewall may have been used: its
// chain exists, or firewalld has rules in the kernel. It is fast if neither is the case.
func (n *Net) HasForeignForward(ctx context.Context) (bool, error) {
	return n.leftovers().HasForward(ctx)
}

// RemoveForeignForward removes the two rules that the reference's firewall made in
// CNI-FORWARD for each of the addresses. The rules name only the address. The caller
// must ensure that no other attachment has one of these addresses now.
func (n *Net) RemoveForeignForward(ctx context.Context, addresses []netip.Addr) error {
	return n.leftovers().RemoveForward(ctx, addresses)
}

// MissingForeignMasquerade lists the attachment's addresses that no rule of the
// reference's bridge or ptp masquerades.
func (n *Net) MissingForeignMasquerade(ctx context.Context, f Foreign) ([]netip.Addr, error) {
	return n.leftovers().MissingMasquerade(ctx, f)
}

// ForeignHostPorts counts the ports of the node that the reference's portmap maps to
// the attachment's addresses of one family, with either backend.
func (n *Net) ForeignHostPorts(ctx context.Context, f Foreign, is6 bool) (int, error) {
	return n.leftovers().HostPorts(ctx, f, is6)
}

// MissingForeignForward lists the addresses that lack one of the two rules that
// the reference's firewall makes for them in CNI-FORWARD.
func (n *Net) MissingForeignForward(ctx context.Context, addresses []netip.Addr) ([]netip.Addr, error) {
	return n.leftovers().MissingForward(ctx, addresses)
}

// CollectForeignMasquerade removes the rules that the reference's bridge and ptp made
// on a network, except those for containers of the valid attachments.
func (n *Net) CollectForeignMasquerade(ctx context.Context, network string, valid []Foreign) error {
	return n.leftovers().CollectMasquerade(ctx, network, valid)
}

// CollectForeignHostPorts removes the rules that the iptables backend of the
// reference's portmap made on a network, except those for containers of the valid
// attachments. It ignores the rules of the nftables backend, because they name the
// container but not the network. Only the DEL of an attachment can identify them.
func (n *Net) CollectForeignHostPorts(ctx context.Context, network string, valid []Foreign) error {
	return n.leftovers().CollectHostPorts(ctx, network, valid)
}

// ForeignPorts lists the ports of one family that the reference's portmap maps to a
// container, with either backend, and for which wanted returns true. It needs one
// request if the reference's portmap was never used.
func (n *Net) ForeignPorts(ctx context.Context, is6 bool, wanted func(proto string, port uint16) bool) ([]ForeignPort, error) {
	return n.leftovers().Ports(ctx, is6, wanted)
}
