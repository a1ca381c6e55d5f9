package bridge

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/node"
	"github.com/cnibox/cnibox/store"
)

// Unshared has removeEmptyBridge take the bridge and the VLAN's gateway away
// with the network's last attachment.
func (r *role) Unshared() []*netops.Link {
	if !r.conf.RemoveEmptyBridge {
		return nil
	}
	links := []*netops.Link{{In: netops.Host, Shared: true, Name: r.conf.Bridge, Kind: "bridge", Alias: node.SharedAlias}}
	if r.conf.IsGateway && r.conf.VLAN != 0 {
		links = append(links, &netops.Link{
			In: netops.Host, Shared: true, Name: r.conf.gatewayLink(), Kind: "veth", Alias: node.SharedAlias,
			Peer: &netops.Peer{In: netops.Host, Name: r.conf.gatewayPort()},
		})
	}
	return links
}

// gatewayPort is the bridge's port that leads to the VLAN's gateway.
func (c *Conf) gatewayPort() string {
	return node.HostLink(store.Key{Network: "gateway", ContainerID: c.Bridge, IfName: c.gatewayLink()})
}
