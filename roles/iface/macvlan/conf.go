// Package macvlan is the CNI role "macvlan": interfaces with addresses of their
// own on top of one of the host's, with the keys of the reference plugin.
package macvlan

import (
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// Conf is the network configuration of the macvlan role.
type Conf struct {
	roles.NetConf
	// Master is the interface below. Default: that of the default route.
	Master string `json:"master,omitempty"`
	// Mode tells how interfaces on one master see each other: "bridge" (default)
	// directly, "vepa" through the switch outside, "private" not at all;
	// "passthru" gives the master to one interface alone.
	Mode string `json:"mode,omitempty"`
	// MTU is at most the master's; 0 takes the master's.
	MTU int `json:"mtu,omitempty"`
	// MAC is the interface's hardware address; runtimeConfig and CNI_ARGS win
	// over it. Default: one that follows from network, container and interface;
	// with passthru the master's.
	MAC string `json:"mac,omitempty"`
	// LinkInContainer looks for the master in the container's namespace.
	LinkInContainer bool `json:"linkInContainer,omitempty"`
	// BCQueueLen is how many received broadcast frames may wait; 0 leaves it to
	// the kernel. The master has one queue, as long as the longest asked for.
	BCQueueLen uint32 `json:"bcqueuelen,omitempty"`
	// RuntimeConfig is what the runtime fills in for declared capabilities.
	RuntimeConfig struct {
		// MAC is the interface's hardware address; it wins over CNI_ARGS and mac.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

const (
	defaultMode = "bridge"
	// passthru is the mode in which the kernel gives the interface the master's MAC.
	passthru = "passthru"
)

// modes are the kernel's names (linux/if_link.h, MACVLAN_MODE_*); "source" is
// not the reference's.
func modes() []string { return []string{defaultMode, "private", "vepa", passthru} }

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
	roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, {Path: "mac", Value: c.MAC}}.Check(&f)
	return f.Err()
}

// mac is the hardware address by precedence, in the usual colon form, or "".
func (c *Conf) mac(args roles.Args) (string, error) { return args.MAC(c.RuntimeConfig.MAC, c.MAC) }
