// Package tap is the CNI role "tap": a tap device in the container, with the
// keys of the reference plugin.
package tap

import (
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the tap role.
type Conf struct {
	roles.NetConf
	// MultiQueue lets the device be opened once for each of several queues.
	MultiQueue bool `json:"multiQueue,omitempty"`
	// MTU of the device, 68 to 65521; 0 leaves it to the kernel.
	MTU int `json:"mtu,omitempty"`
	// MAC is the device's hardware address; CNI_ARGS' MAC and runtimeConfig win over it.
	MAC string `json:"mac,omitempty"`
	// Owner is the number of the user who may open the device without
	// CAP_NET_ADMIN. Without owner and group whoever can open /dev/net/tun may.
	Owner *uint32 `json:"owner,omitempty"`
	// Group is the number of the group whose members may open the device, those
	// of them that are the owner if both are set.
	Group *uint32 `json:"group,omitempty"`
	// SELinuxContext is refused: SELinux lets a process of several threads take
	// only a context that is bounded by its own to make the device in, and no
	// other program is run for it.
	SELinuxContext string `json:"selinuxContext,omitempty"`
	// Bridge in the container's namespace that the device becomes a port of.
	Bridge string `json:"bridge,omitempty"`
	// RuntimeConfig is what the runtime fills in for declared capabilities.
	RuntimeConfig struct {
		// MAC is the device's hardware address; it wins over CNI_ARGS and mac.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

const (
	// minMTU and maxMTU are the kernel's bounds: that of IPv4 (ETH_MIN_MTU), and
	// the largest packet with an Ethernet header before it.
	minMTU = 68
	maxMTU = 65535 - 14
	// nobody is the kernel's "no user" and "no group".
	nobody = 1<<32 - 1
)

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		f.Addf("mtu", "%d is out of range: use %d to %d, or 0 for the kernel's", c.MTU, minMTU, maxMTU)
	}
	roles.MACKeys{{Path: "mac", Value: c.MAC}, {Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}}.Check(&f)
	for _, id := range []struct {
		path  string
		value *uint32
	}{{"owner", c.Owner}, {"group", c.Group}} {
		if id.value != nil && *id.value == nobody {
			f.Addf(id.path, "%d is nobody's number: leave it away for none", *id.value)
		}
	}
	if c.SELinuxContext != "" {
		f.Addf("selinuxContext", "is not supported: leave it away, and allow the device in the host's policy")
	}
	if c.Bridge != "" {
		if err := roles.LinkName(c.Bridge); err != nil {
			f.Addf("bridge", "%v", err)
		}
	}
	return f.Err()
}

// mac is the device's hardware address by precedence, in the usual colon form,
// or "".
func (c *Conf) mac(args roles.Args) (string, error) { return args.MAC(c.RuntimeConfig.MAC, c.MAC) }
