// Package vlan is the CNI role "vlan": one VLAN of one of the host's interfaces,
// with the keys of the reference plugin.
package vlan

import (
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Conf is the network configuration of the vlan role.
type Conf struct {
	roles.NetConf
	// Master is the interface that carries the VLAN. Required.
	Master string `json:"master,omitempty"`
	// VLANID is the VLAN's number, 0-4094; 0 (default) is for frames with a
	// priority only. A master carries each number once: in one container.
	VLANID int `json:"vlanId,omitempty"`
	// MTU is at most the master's; 0 takes the master's.
	MTU int `json:"mtu,omitempty"`
	// LinkInContainer looks for the master in the container's namespace.
	LinkInContainer bool `json:"linkInContainer,omitempty"`
}

// maxVLAN is the largest number of a VLAN (IEEE 802.1Q; 4095 is reserved).
const maxVLAN = 4094

// upper is what the role shares with others on top of a master.
func (c *Conf) upper() attach.Upper {
	return attach.Upper{Kind: kind, Net: c.NetConf, Master: c.Master, MTU: c.MTU, InContainer: c.LinkInContainer}
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.Master == "" {
		f.Addf("master", "is required: name the interface that carries the VLAN")
	}
	u := c.upper()
	u.Validate(&f)
	if c.VLANID < 0 || c.VLANID > maxVLAN {
		f.Addf("vlanId", "%d is out of range: use 0 to %d", c.VLANID, maxVLAN)
	}
	return f.Err()
}
