package netops

import (
	"context"
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/refplugins"
)

// ReferencePluginAttachment identifies an attachment that the reference plugins made.
type ReferencePluginAttachment = refplugins.Attachment

// ReferencePluginPort is a port of the node that the reference's portmap maps to a container,
// or kube-proxy to a Service.
type ReferencePluginPort = refplugins.Port

// leftovers gives access to the rules of the reference plugins on the host.
func (n *Net) leftovers() *refplugins.Leftovers {
	return &refplugins.Leftovers{NFT: n.nft, IPTables: n.iptables}
}

// HasReferencePluginRules reports whether there may be rules that the reference's bridge, ptp or
// portmap made for the attachment. It is fast if there are none.
func (n *Net) HasReferencePluginRules(ctx context.Context, f ReferencePluginAttachment) (bool, error) {
	return n.leftovers().Has(ctx, f)
}

// RemoveReferencePluginMasquerade removes the rules that the reference's bridge and ptp made for
// ipMasq, with either backend. Their iptables backend does not record interface names.
// Therefore a container's chain is deleted with the last rule that jumps to it.
func (n *Net) RemoveReferencePluginMasquerade(ctx context.Context, f ReferencePluginAttachment) error {
	return n.leftovers().RemoveMasquerade(ctx, f)
}

// RemoveReferencePluginHostPorts removes the rules that the reference's portmap made, with
// either backend.
func (n *Net) RemoveReferencePluginHostPorts(ctx context.Context, f ReferencePluginAttachment) error {
	return n.leftovers().RemoveHostPorts(ctx, f)
}

// HasReferencePluginForward reports whether the reference's firewall may have been used: its
// chain exists, or firewalld has rules in the kernel. It is fast if neither is the case.
func (n *Net) HasReferencePluginForward(ctx context.Context) (bool, error) {
	return n.leftovers().HasForward(ctx)
}

// RemoveReferencePluginForward removes the two rules that the reference's firewall made in
// CNI-FORWARD for each of the addresses. The rules name only the address. The caller
// must ensure that no other attachment has one of these addresses now.
func (n *Net) RemoveReferencePluginForward(ctx context.Context, addresses []netip.Addr) error {
	return n.leftovers().RemoveForward(ctx, addresses)
}

// MissingReferencePluginMasquerade lists the attachment's addresses that no rule of the
// reference's bridge or ptp masquerades.
func (n *Net) MissingReferencePluginMasquerade(ctx context.Context, f ReferencePluginAttachment) ([]netip.Addr, error) {
	return n.leftovers().MissingMasquerade(ctx, f)
}

// CountReferencePluginHostPorts counts the ports of the node that the reference's portmap maps to
// the attachment's addresses of one family, with either backend.
func (n *Net) CountReferencePluginHostPorts(ctx context.Context, f ReferencePluginAttachment, is6 bool) (int, error) {
	return n.leftovers().HostPorts(ctx, f, is6)
}

// MissingReferencePluginForward lists the addresses that lack one of the two rules that
// the reference's firewall makes for them in CNI-FORWARD.
func (n *Net) MissingReferencePluginForward(ctx context.Context, addresses []netip.Addr) ([]netip.Addr, error) {
	return n.leftovers().MissingForward(ctx, addresses)
}

// CollectReferencePluginMasquerade removes the rules that the reference's bridge and ptp made
// on a network, except those for containers of the valid attachments.
func (n *Net) CollectReferencePluginMasquerade(ctx context.Context, network string, valid []ReferencePluginAttachment) error {
	return n.leftovers().CollectMasquerade(ctx, network, valid)
}

// CollectReferencePluginHostPorts removes the rules that the iptables backend of the
// reference's portmap made on a network, except those for containers of the valid
// attachments. It ignores the rules of the nftables backend, because they name the
// container but not the network. Only the DEL of an attachment can identify them.
func (n *Net) CollectReferencePluginHostPorts(ctx context.Context, network string, valid []ReferencePluginAttachment) error {
	return n.leftovers().CollectHostPorts(ctx, network, valid)
}

// ReferencePluginPorts lists the ports of one family that the reference's portmap maps to a
// container, or kube-proxy to a Service, with either backend, and for which wanted returns
// true. It needs one request if neither was ever used.
func (n *Net) ReferencePluginPorts(ctx context.Context, is6 bool, wanted func(proto string, port uint16) bool) ([]ReferencePluginPort, error) {
	return n.leftovers().Ports(ctx, is6, wanted)
}

// FlannelRules lists flanneld's chains of iptables, of both backends, and its nftables tables.
func (n *Net) FlannelRules(ctx context.Context) ([]string, error) { return n.leftovers().Flannel(ctx) }

// RemoveFlannelRules removes what FlannelRules lists, and the jumps to it. A running flanneld makes
// them again every few seconds.
func (n *Net) RemoveFlannelRules(ctx context.Context) error { return n.leftovers().RemoveFlannel(ctx) }
