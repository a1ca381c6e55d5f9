package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/conntrack"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Feature is a feature of the kernel that only some roles need, or that has a
// substitute.
type Feature struct {
	Name string
	// Option is the kernel's configuration option, and Since the first version that
	// has the feature, if that is newer than the oldest supported one.
	Option, Since string
	// Use is what needs the feature, and Without what happens if it is absent.
	Use, Without string
	// has returns ErrNotSupported if the feature is absent. It is nil for a feature that
	// only the change itself shows.
	has func(context.Context, *Net) error
}

// Features lists the features, in the order of the documentation.
func Features() []Feature {
	refused := "an error that names it"
	kind := func(kind, option, use string) Feature {
		return Feature{
			Name: "link-" + kind, Option: option, Use: use, Without: refused,
			has: func(ctx context.Context, n *Net) error { return n.HasKind(ctx, kind) },
		}
	}
	netkit := kind(rtnl.KindNetkit, "CONFIG_NETKIT", "`ptp` and `routed` with `linkType` netkit")
	netkit.Since = "6.7"
	return []Feature{
		kind("veth", "CONFIG_VETH", "`bridge`, `ptp`, `routed`, `azure-vnet`"),
		netkit,
		kind("bridge", "CONFIG_BRIDGE", "`bridge`, `azure-vnet`"),
		kind("vlan", "CONFIG_VLAN_8021Q", "`vlan`, `azure-vnet` with VLANs"),
		kind("macvlan", "CONFIG_MACVLAN", "`macvlan`"),
		kind("ipvlan", "CONFIG_IPVLAN", "`ipvlan`"),
		kind("dummy", "CONFIG_DUMMY", "`dummy`"),
		kind("bond", "CONFIG_BONDING", "`bond`"),
		kind("vrf", "CONFIG_NET_VRF", "`vrf`"),
		kind("ifb", "CONFIG_IFB", "`bandwidth` with egress limits"),
		kind("vxlan", "CONFIG_VXLAN", "`agent` with the backend vxlan"),
		kind("wireguard", "CONFIG_WIREGUARD", "`agent` with the backend wireguard"),
		{Name: "tun", Option: "CONFIG_TUN", Use: "`tap`", Without: refused, has: hasTun},
		{Name: "nftables", Option: "CONFIG_NF_TABLES_INET, CONFIG_NFT_FIB_INET", Use: "`ipMasq`, `portmap`, `firewall`, `macspoofchk`, `agent`", Without: refused, has: hasNFTables},
		{
			Name: "nftables-bridge", Option: "CONFIG_NF_TABLES_BRIDGE", Use: "`macspoofchk`, `azure-vnet`", Without: refused,
			has: func(ctx context.Context, n *Net) error { return n.hasFamily(ctx, unix.NFPROTO_BRIDGE) },
		},
		{
			Name: "iptables-rules", Option: "CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_MATCH_CONNTRACK", Use: "`firewall` and `agent` beside an iptables policy of DROP",
			Without: refused, has: hasCompat,
		},
		{
			Name: "conntrack-filter", Option: "CONFIG_NF_CT_NETLINK", Since: "6.11", Use: "`portmap`: connections to a host port end with it",
			Without: "they are listed, and deleted one by one", has: hasConntrackFilter,
		},
		{Name: "link-echo", Since: "6.2", Use: "the kernel's answer to a new link has its index", Without: "the link is read"},
		{Name: "link-rename-up", Since: "6.3", Use: "`host-device` renames links that are up", Without: "they are set down first"},
	}
}

// IsProbed reports whether HasFeature can answer for the feature.
func (f *Feature) IsProbed() bool { return f.has != nil }

// HasFeature reports whether this kernel has a feature. The kernel may load the feature's
// module. The probe changes nothing else. It needs CAP_NET_ADMIN.
func (n *Net) HasFeature(ctx context.Context, f *Feature) (bool, error) {
	err := f.has(ctx, n)
	if errors.Is(err, ErrNotSupported) {
		return false, nil
	}
	return err == nil, err
}

func hasTun(context.Context, *Net) error {
	if _, err := os.Stat(tunDevice); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	return nil
}

func hasNFTables(ctx context.Context, n *Net) error { return n.hasFamily(ctx, unix.NFPROTO_INET) }

// hasFamily makes a chain in a transaction that the kernel undoes: its last request is
// for a table that exists then.
func (n *Net) hasFamily(ctx context.Context, family byte) error {
	t := nft.Table{Family: family, Name: "cnibox_probe"}
	chain := nft.Chain{Name: "probe", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING}
	err := n.nft.Commit(ctx, 0, t.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE), chain.Message(t),
		t.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL))
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL): // the chain's type, or nftables
		return ErrNotSupported
	}
	return nlconn.Explain(err, "probe nftables")
}

// Constants of linux/netfilter/nf_tables_compat.h and linux/netfilter/nfnetlink.h.
const (
	nfnlSubsysCompat = 11
	nftaCompatName   = 1
	nftaCompatRev    = 2
	nftaCompatType   = 3
)

// hasCompat asks nft_compat for the match conntrack, as iptables-nft does.
func hasCompat(ctx context.Context, n *Net) error {
	m := nft.Request(0, 0, unix.NFPROTO_IPV4)
	m.Kind = nfnlSubsysCompat << 8
	m.Text(nftaCompatName, "conntrack")
	m.Net32(nftaCompatRev, 3)
	m.Net32(nftaCompatType, 0)
	has, err := n.nft.Exists(ctx, m)
	if err == nil && !has || errors.Is(err, unix.EINVAL) {
		return ErrNotSupported
	}
	return nlconn.Explain(err, "probe nft_compat")
}

// hasConntrackFilter deletes the connections to a port of an address for documentation
// (RFC 5737), where no host is.
func hasConntrackFilter(ctx context.Context, n *Net) error {
	c, err := n.host.conntrack()
	if err != nil {
		return err
	}
	err = c.DeleteInKernel(ctx, []conntrack.Selection{{Proto: unix.IPPROTO_UDP, Port: 9, Dst: netip.MustParseAddr("192.0.2.1")}})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return ErrNotSupported
	}
	return err
}

// HasKind returns nil if the kernel can make links of a kind. Otherwise the error wraps
// ErrNotSupported, or ErrPermission without CAP_NET_ADMIN. The kernel loads the kind's module, but HasKind makes no link: it
// requests a link with 0 queues. The kernel looks up the kind first and then refuses
// that request (rtnl_create_link in net/core/rtnetlink.c). HasKind does not work for
// "tun", because netlink cannot make such links.
func (n *Net) HasKind(ctx context.Context, kind string) error {
	c, err := n.host.socket()
	if err != nil {
		return err
	}
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, 0)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	(&rtnl.Link{Kind: kind}).AddKind(&m.Body)
	m.Uint32(unix.IFLA_NUM_TX_QUEUES, 0)
	err = c.One(ctx, m)
	if errors.Is(err, unix.EPERM) {
		return nlconn.Explain(err, fmt.Sprintf("probe links of kind %q", kind))
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil // EINVAL: the kind exists, and the queues or the kind's attributes are invalid.
	}
	return fmt.Errorf("links of kind %q: %w: it has no module rtnl-link-%s", kind, ErrNotSupported, kind)
}
