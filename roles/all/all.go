// Package all lists every role of the binary.
package all

import (
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/chained/bandwidth"
	"github.com/cnibox/cnibox/roles/chained/firewall"
	"github.com/cnibox/cnibox/roles/chained/portmap"
	"github.com/cnibox/cnibox/roles/chained/routeoverride"
	"github.com/cnibox/cnibox/roles/chained/sbr"
	"github.com/cnibox/cnibox/roles/chained/tuning"
	"github.com/cnibox/cnibox/roles/chained/vrf"
	"github.com/cnibox/cnibox/roles/cluster/agent"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/dhcpd"
	"github.com/cnibox/cnibox/roles/cluster/dranet"
	"github.com/cnibox/cnibox/roles/cluster/nodeipam"
	"github.com/cnibox/cnibox/roles/iface/azurevnet"
	"github.com/cnibox/cnibox/roles/iface/bond"
	"github.com/cnibox/cnibox/roles/iface/bridge"
	"github.com/cnibox/cnibox/roles/iface/dummy"
	"github.com/cnibox/cnibox/roles/iface/hostdevice"
	"github.com/cnibox/cnibox/roles/iface/ipvlan"
	"github.com/cnibox/cnibox/roles/iface/loopback"
	"github.com/cnibox/cnibox/roles/iface/macvlan"
	"github.com/cnibox/cnibox/roles/iface/ovs"
	"github.com/cnibox/cnibox/roles/iface/ptp"
	"github.com/cnibox/cnibox/roles/iface/routed"
	"github.com/cnibox/cnibox/roles/iface/sriov"
	"github.com/cnibox/cnibox/roles/iface/tap"
	"github.com/cnibox/cnibox/roles/iface/vlan"
	"github.com/cnibox/cnibox/roles/ipam/cloud"
	"github.com/cnibox/cnibox/roles/ipam/clusterrange"
	"github.com/cnibox/cnibox/roles/ipam/dhcp"
	"github.com/cnibox/cnibox/roles/ipam/hostlocal"
	"github.com/cnibox/cnibox/roles/ipam/static"
	"github.com/cnibox/cnibox/roles/meta/chain"
	"github.com/cnibox/cnibox/roles/meta/multi"
	"github.com/cnibox/cnibox/roles/meta/overlay"
)

// Table returns every role, ordered by kind and name. A new role is one line.
func Table() roles.Table {
	return roles.Table{
		{Names: "azure-vnet", Role: azurevnet.Role},
		{Names: "bond", Role: bond.Role},
		{Names: "bridge", Role: bridge.Role},
		{Names: "dummy", Role: dummy.Role},
		{Names: "host-device", Role: hostdevice.Role},
		{Names: "ipvlan", Role: ipvlan.Role},
		{Names: "loopback", Role: loopback.Role},
		{Names: "macvlan", Role: macvlan.Role},
		{Names: "ovs", Role: ovs.Role},
		{Names: "ptp", Role: ptp.Role},
		{Names: "routed", Role: routed.Role},
		{Names: "sriov", Role: sriov.Role},
		{Names: "tap", Role: tap.Role},
		{Names: "vlan", Role: vlan.Role},

		{Names: "cloud-ipam azure-vnet-ipam", Role: cloud.Role},
		{Names: "dhcp", Role: func() roles.Role { return dhcp.Role(dhcpd.Run) }},
		{Names: "host-local", Role: hostlocal.Role},
		{Names: "range whereabouts", Role: clusterrange.Role},
		{Names: "static", Role: static.Role},

		{Names: "bandwidth", Role: bandwidth.Role},
		{Names: "firewall", Role: firewall.Role},
		{Names: "portmap", Role: portmap.Role},
		{Names: "route-override", Role: routeoverride.Role},
		{Names: "sbr", Role: sbr.Role},
		{Names: "tuning", Role: tuning.Role},
		{Names: "vrf", Role: vrf.Role},

		{Names: "chain", Role: chain.Role},
		{Names: "vxlan flannel", Role: overlay.Role},
		{Names: "multi multus", Role: multi.Role},

		{Names: "agent flanneld", Role: func() roles.Role { return agent.Role(clusterrange.Demands) }},
		{Names: "dranet", Role: func() roles.Role { return dranet.Role(clusterrange.Devices) }},
		{Names: "nodeipam", Role: nodeipam.Role},
	}
}
