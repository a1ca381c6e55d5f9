package netops

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/refplugins"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// ReferencePluginAttachment identifies an attachment that the reference plugins made.
type ReferencePluginAttachment = refplugins.Attachment

// ReferencePluginPort is a port of the node that the reference's portmap maps to a container,
// or kube-proxy to a Service.
type ReferencePluginPort = refplugins.Port

// DropRule is another program's rule that drops all forwarded packets of some addresses or
// devices.
type DropRule = refplugins.DropRule

// Leftovers gives access to the rules of the reference plugins, flanneld, kube-proxy and
// other programs on the host.
func (n *Net) Leftovers() *refplugins.Leftovers {
	own := nft.Table{Family: unix.NFPROTO_INET, Name: ruleset.TableName}
	return &refplugins.Leftovers{NFT: n.nft, IPTables: n.iptables, Own: own}
}
