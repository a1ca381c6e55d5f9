// Package vrf is the CNI role "vrf": it attaches the container's interface to a
// VRF, a separate routing domain within the container. It has the keys of the
// reference plugin.
package vrf

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the vrf role.
type Conf struct {
	roles.NetConf
	// VRFName is the name of the VRF device in the container. The device is
	// created with its first interface and removed with its last. Required.
	VRFName string `json:"vrfname,omitempty"`
	// Table is the VRF's routing table. Default: the table of the existing VRF,
	// else the first table from 1 on that has no VRF and no route. An existing
	// VRF with another table is an error.
	Table uint32 `json:"table,omitempty"`
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.VRFName == "" {
		f.Addf("vrfname", "is required: set the name of the VRF, at most 15 characters")
	} else if err := roles.LinkName(c.VRFName); err != nil {
		f.Addf("vrfname", "%s", err)
	}
	if c.Table == unix.RT_TABLE_LOCAL {
		f.Addf("table", "%d is the kernel's table of local addresses: use another table, or remove the key", c.Table)
	}
	return f.Err()
}
