// Package ptp is the CNI role "ptp": it connects a container to the host by a
// pair of interfaces and routes. It has the keys of the reference plugin.
package ptp

import (
	"net/netip"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Conf is the network configuration of the ptp role.
type Conf struct {
	roles.NetConf
	attach.PairConf
	// IPMasq masquerades traffic that leaves the subnet.
	IPMasq bool `json:"ipMasq,omitempty"`
	// IPMasqBackend is "nftables" (default). "iptables" is accepted with a
	// warning, and nftables is used.
	IPMasqBackend string `json:"ipMasqBackend,omitempty"`
	// EgressAddress is an address of the node that masqueraded traffic gets in place
	// of the interface's: a string, or a list of one IPv4 and one IPv6 address. A
	// family without one gets the interface's. It is outside of the containers'
	// subnet, and requires ipMasq.
	EgressAddress roles.StringList `json:"egressAddress,omitempty"`
	// EgressExcept are networks that the containers reach as without egressAddress.
	// The types vxlan and flannel set it. With it, egressAddress does not require
	// ipMasq, because another program may masquerade.
	EgressExcept []netip.Prefix `json:"egressExcept,omitempty"`
	// MTU of both ends of the pair. 0 leaves it to the kernel.
	MTU int `json:"mtu,omitempty"`
	// HostAddressing gives the container its addresses as /32 and /128,
	// whatever the subnet's prefix length. The container then reaches the
	// gateway directly, and everything else through the routes that IPAM gives.
	// The gateway may be outside the subnet (169.254.1.1, fe80::1). It requires
	// ipam.
	HostAddressing bool `json:"hostAddressing,omitempty"`
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	c.masquerade().Check(&f)
	c.CheckPair(&f)
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the kernel's) to 65535", c.MTU)
	}
	if c.HostAddressing && c.IPAM.Type == "" {
		f.Addf("hostAddressing", "requires addresses: set ipam")
	}
	return f.Err()
}

// masquerade is the configured masquerading.
func (c *Conf) masquerade() attach.Masquerade {
	return attach.Masquerade{On: c.IPMasq, Key: "ipMasq", Backend: c.IPMasqBackend, Egress: c.EgressAddress, Except: c.EgressExcept}
}
