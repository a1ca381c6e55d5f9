// Package vlan is the CNI role "vlan": it creates a VLAN interface on an
// interface of the host. It has the keys of the reference plugin.
package vlan

import (
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Conf is the network configuration of the vlan role.
type Conf struct {
	roles.NetConf
	// Master is the interface that carries the VLAN. Required.
	Master string `json:"master,omitempty"`
	// VLANID is the VLAN ID, 0-4094. 0 (default) receives priority-tagged
	// frames only. A master carries each VLAN ID once, so one container has it.
	VLANID int `json:"vlanId,omitempty"`
	// MTU is at most the master's. 0 means the master's MTU.
	MTU int `json:"mtu,omitempty"`
	// LinkInContainer takes the master from the container's namespace instead
	// of the host's.
	LinkInContainer bool `json:"linkInContainer,omitempty"`
}

// maxVLAN is the largest VLAN ID (IEEE 802.1Q; 4095 is reserved).
const maxVLAN = 4094

// upper is the configuration of the code that all roles on top of a master
// share.
func (c *Conf) upper() attach.Upper {
	return attach.Upper{Kind: kind, Net: c.NetConf, Master: c.Master, MTU: c.MTU, InContainer: c.LinkInContainer}
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.Master == "" {
		f.Addf("master", "is required: set the interface that carries the VLAN")
	}
	u := c.upper()
	u.Validate(&f)
	if c.VLANID < 0 || c.VLANID > maxVLAN {
		f.Addf("vlanId", "%d is out of range: use 0 to %d", c.VLANID, maxVLAN)
	}
	return f.Err()
}
