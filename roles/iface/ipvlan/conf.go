// Package ipvlan is the CNI role "ipvlan": it creates interfaces that share the
// MAC of an interface of the host. It has the keys of the reference plugin.
package ipvlan

import (
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Conf is the network configuration of the ipvlan role.
type Conf struct {
	roles.NetConf
	// Master is the lower interface. Default: the interface that the previous
	// plugin of the list created, else the interface of the default route.
	Master string `json:"master,omitempty"`
	// Mode is "l2" (default), "l3" or "l3s". In "l2" the host passes frames to
	// the containers; in "l3" and "l3s" it routes packets to them. A master has
	// one mode: the last attachment sets it for all.
	Mode string `json:"mode,omitempty"`
	// MTU is at most the master's. 0 means the master's MTU.
	MTU int `json:"mtu,omitempty"`
	// LinkInContainer takes the master from the container's namespace instead
	// of the host's.
	LinkInContainer bool `json:"linkInContainer,omitempty"`
}

const defaultMode = "l2"

// modes are the kernel's names (linux/if_link.h, IPVLAN_MODE_*).
func modes() []string { return []string{defaultMode, "l3", "l3s"} }

// SetDefaults sets the documented default values.
func (c *Conf) SetDefaults() {
	if c.Mode == "" {
		c.Mode = defaultMode
	}
}

// upper is the configuration of the code that all roles on top of a master
// share.
func (c *Conf) upper() attach.Upper {
	return attach.Upper{Kind: kind, Net: c.NetConf, Master: c.Master, MTU: c.MTU, InContainer: c.LinkInContainer}
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	u := c.upper()
	u.Validate(&f)
	if !slices.Contains(modes(), c.Mode) {
		f.Addf("mode", "%q is not known: use %s", c.Mode, strings.Join(modes(), ", "))
	}
	return f.Err()
}
