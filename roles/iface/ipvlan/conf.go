// Package ipvlan is the CNI role "ipvlan": interfaces that share the MAC of one
// of the host's, with the keys of the reference plugin.
package ipvlan

import (
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Conf is the network configuration of the ipvlan role.
type Conf struct {
	roles.NetConf
	// Master is the interface below. Default: the one that the plugin before
	// made, else that of the default route.
	Master string `json:"master,omitempty"`
	// Mode is "l2" (default), "l3" or "l3s": whether the host hands frames to
	// containers or routes packets to them. A master has one mode: that of the
	// last attachment, for all.
	Mode string `json:"mode,omitempty"`
	// MTU is at most the master's; 0 takes the master's.
	MTU int `json:"mtu,omitempty"`
	// LinkInContainer looks for the master in the container's namespace.
	LinkInContainer bool `json:"linkInContainer,omitempty"`
}

const defaultMode = "l2"

// modes are the kernel's names (linux/if_link.h, IPVLAN_MODE_*).
func modes() []string { return []string{defaultMode, "l3", "l3s"} }

// SetDefaults fills in what the documentation calls default.
func (c *Conf) SetDefaults() {
	if c.Mode == "" {
		c.Mode = defaultMode
	}
}

// upper is what the role shares with others on top of a master.
func (c *Conf) upper() attach.Upper {
	return attach.Upper{Kind: kind, Net: c.NetConf, Master: c.Master, MTU: c.MTU, InContainer: c.LinkInContainer}
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	u := c.upper()
	u.Validate(&f)
	if !slices.Contains(modes(), c.Mode) {
		f.Addf("mode", "%q is not known: use %s", c.Mode, strings.Join(modes(), ", "))
	}
	return f.Err()
}
