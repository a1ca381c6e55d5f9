package bridge

import (
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// RemovableShared is the bridge and the VLAN's gateway interface if removeEmptyBridge
// is set: DEL of the network's last attachment removes them.
func (r *role) RemovableShared() []netops.Object {
	if !r.conf.RemoveEmptyBridge {
		return nil
	}
	ours := []netops.Object{&netops.Link{In: netops.Host, Shared: true, Name: r.conf.Bridge, Kind: "bridge", Alias: attachment.SharedAlias}}
	if r.conf.IsGateway && r.conf.VLAN != 0 {
		ours = append(ours, &netops.Link{In: netops.Host, Shared: true, Name: r.conf.gatewayLink(), Kind: "veth", Alias: attachment.SharedAlias})
	}
	return ours
}
