package netops

import (
	"context"
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/refplugins"
)

// Foreign names an attachment that the reference plugins made.
type Foreign = refplugins.Attachment

// ForeignPort is a port of the node that the reference's portmap leads to a container.
type ForeignPort = refplugins.Port

// leftovers are what the reference plugins left on the host.
func (n *Net) leftovers() *refplugins.Leftovers {
	return &refplugins.Leftovers{NFT: n.nft, IPTables: n.iptables}
}

// HasForeign tells whether there is anything that the reference's
// bridge, ptp or portmap may have made for the attachment. It is quick where
// there is nothing.
func (n *Net) HasForeign(ctx context.Context, f Foreign) (bool, error) {
	return n.leftovers().Has(ctx, f)
}

// RemoveForeignMasquerade removes what the reference's bridge and ptp made for
// ipMasq with either backend. Their iptables backend knows no interface names:
// a container's chain goes with the last rule that leads to it.
func (n *Net) RemoveForeignMasquerade(ctx context.Context, f Foreign) error {
	return n.leftovers().RemoveMasquerade(ctx, f)
}

// RemoveForeignHostPorts removes what the reference's portmap made with either
// backend.
func (n *Net) RemoveForeignHostPorts(ctx context.Context, f Foreign) error {
	return n.leftovers().RemoveHostPorts(ctx, f)
}

// HasForeignForward tells whether there is anything that the reference's firewall
// may have made: its chain, or a firewalld that it told of addresses. It is quick
// where there is nothing.
func (n *Net) HasForeignForward(ctx context.Context) (bool, error) {
	return n.leftovers().HasForward(ctx)
}

// RemoveForeignForward removes the two rules that the reference's firewall
// made in CNI-FORWARD for each of the addresses. They name nothing else: the
// caller makes sure that nobody else has these addresses now.
func (n *Net) RemoveForeignForward(ctx context.Context, addresses []netip.Addr) error {
	return n.leftovers().RemoveForward(ctx, addresses)
}

// MissingForeignMasquerade lists those of the attachment's addresses that no
// rule of the reference's bridge or ptp masquerades.
func (n *Net) MissingForeignMasquerade(ctx context.Context, f Foreign) ([]netip.Addr, error) {
	return n.leftovers().MissingMasquerade(ctx, f)
}

// ForeignHostPorts counts the ports of the node that the reference's portmap
// leads to the attachment's addresses of one family, with either backend.
func (n *Net) ForeignHostPorts(ctx context.Context, f Foreign, is6 bool) (int, error) {
	return n.leftovers().HostPorts(ctx, f, is6)
}

// MissingForeignForward lists the addresses that lack one of the two rules that
// the reference's firewall makes for them in CNI-FORWARD.
func (n *Net) MissingForeignForward(ctx context.Context, addresses []netip.Addr) ([]netip.Addr, error) {
	return n.leftovers().MissingForward(ctx, addresses)
}

// CollectForeignMasquerade removes what the reference's bridge and ptp made on
// a network for containers that are none of the valid attachments'.
func (n *Net) CollectForeignMasquerade(ctx context.Context, network string, valid []Foreign) error {
	return n.leftovers().CollectMasquerade(ctx, network, valid)
}

// CollectForeignHostPorts does the same for the iptables backend of the
// reference's portmap. The rules of its nftables backend tell the container and
// not the network: only an attachment's own DEL knows them.
func (n *Net) CollectForeignHostPorts(ctx context.Context, network string, valid []Foreign) error {
	return n.leftovers().CollectHostPorts(ctx, network, valid)
}

// ForeignPorts lists those ports of one family that are wanted and that the
// reference's portmap leads to a container, with either backend. Where it never
// did, that is one request.
func (n *Net) ForeignPorts(ctx context.Context, is6 bool, wanted func(proto string, port uint16) bool) ([]ForeignPort, error) {
	return n.leftovers().Ports(ctx, is6, wanted)
}
