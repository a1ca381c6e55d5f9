// Package all lists every role of the binary.
package all

import (
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/chained/bandwidth"
	"github.com/cnibox/cnibox/roles/chained/firewall"
	"github.com/cnibox/cnibox/roles/chained/portmap"
	"github.com/cnibox/cnibox/roles/chained/sbr"
	"github.com/cnibox/cnibox/roles/chained/tuning"
	"github.com/cnibox/cnibox/roles/chained/vrf"
	"github.com/cnibox/cnibox/roles/daemon/agent"
	"github.com/cnibox/cnibox/roles/daemon/nodeipam"
	"github.com/cnibox/cnibox/roles/iface/azurevnet"
	"github.com/cnibox/cnibox/roles/iface/bridge"
	"github.com/cnibox/cnibox/roles/iface/dummy"
	"github.com/cnibox/cnibox/roles/iface/hostdevice"
	"github.com/cnibox/cnibox/roles/iface/ipvlan"
	"github.com/cnibox/cnibox/roles/iface/loopback"
	"github.com/cnibox/cnibox/roles/iface/macvlan"
	"github.com/cnibox/cnibox/roles/iface/ptp"
	"github.com/cnibox/cnibox/roles/iface/routed"
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
		azurevnet.Role(),
		bridge.Role(),
		dummy.Role(),
		hostdevice.Role(),
		ipvlan.Role(),
		loopback.Role(),
		macvlan.Role(),
		ptp.Role(),
		routed.Role(),
		tap.Role(),
		vlan.Role(),

		cloud.Role(),
		dhcp.Role(),
		hostlocal.Role(),
		clusterrange.Role(),
		static.Role(),

		bandwidth.Role(),
		firewall.Role(),
		portmap.Role(),
		sbr.Role(),
		tuning.Role(),
		vrf.Role(),

		chain.Role(),
		overlay.Role(),
		multi.Role(),

		agent.Role(clusterrange.Demands),
		nodeipam.Role(),
	}
}
