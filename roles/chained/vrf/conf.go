// Package vrf is the CNI role "vrf": it puts the container's interface into a
// VRF, an own routing domain within the container, with the keys of the
// reference plugin.
package vrf

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the vrf role.
type Conf struct {
	roles.NetConf
	// VRFName is the VRF's device in the container. It is made with the first
	// interface in it and removed with the last. Required.
	VRFName string `json:"vrfname,omitempty"`
	// Table is the VRF's routing table. By default that of the VRF that there
	// is, else the first from 1 that no VRF has and no route is in. A VRF with
	// another table is an error.
	Table uint32 `json:"table,omitempty"`
}

// Validate reports every fault of a configuration.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.VRFName == "" {
		f.Addf("vrfname", "is required: name the VRF, at most 15 characters")
	} else if err := roles.LinkName(c.VRFName); err != nil {
		f.Addf("vrfname", "%s", err)
	}
	if c.Table == unix.RT_TABLE_LOCAL {
		f.Addf("table", "%d is the kernel's table of local addresses: choose another or leave it out", c.Table)
	}
	return f.Err()
}
