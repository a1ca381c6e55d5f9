// Package macvlan is the CNI role "macvlan": it creates interfaces with their
// own MAC on top of an interface of the host. It has the keys of the reference
// plugin.
package macvlan

import (
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Conf is the network configuration of the macvlan role.
type Conf struct {
	roles.NetConf
	// Master is the lower interface. Default: the interface of the default
	// route.
	Master string `json:"master,omitempty"`
	// Mode is how interfaces on one master reach each other: "bridge" (default)
	// directly, "vepa" through the external switch, "private" not at all.
	// "passthru" gives the master to a single interface.
	Mode string `json:"mode,omitempty"`
	// MTU is at most the master's. 0 means the master's MTU.
	MTU int `json:"mtu,omitempty"`
	// MAC is the interface's MAC address. runtimeConfig and CNI_ARGS take
	// precedence over it. Default: a MAC derived from the network, container
	// and interface names; with passthru the master's MAC.
	MAC string `json:"mac,omitempty"`
	// LinkInContainer takes the master from the container's namespace instead
	// of the host's.
	LinkInContainer bool `json:"linkInContainer,omitempty"`
	// BCQueueLen is how many received broadcast frames may be queued. 0 leaves
	// it to the kernel. A master has one queue; its length is the largest value
	// requested.
	BCQueueLen uint32 `json:"bcqueuelen,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is the interface's MAC address. It takes precedence over CNI_ARGS
		// and mac.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

const (
	defaultMode = "bridge"
	// passthru is the mode in which the interface gets the master's MAC.
	passthru = "passthru"
)

// modes are the kernel's names (linux/if_link.h, MACVLAN_MODE_*), without
// "source", which the reference plugin does not support.
func modes() []string { return []string{defaultMode, "private", "vepa", passthru} }

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
	roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, {Path: "mac", Value: c.MAC}}.Check(&f)
	return f.Err()
}
