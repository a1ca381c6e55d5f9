// Package tap is the CNI role "tap": it creates a tap device in the container.
// It has the keys of the reference plugin.
package tap

import (
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the tap role.
type Conf struct {
	roles.NetConf
	// MultiQueue allows several queues: a program can open the device once for
	// each of them.
	MultiQueue bool `json:"multiQueue,omitempty"`
	// MTU of the device, 68 to 65521. 0 leaves it to the kernel.
	MTU int `json:"mtu,omitempty"`
	// MAC is the device's MAC address. CNI_ARGS and runtimeConfig take
	// precedence over it.
	MAC string `json:"mac,omitempty"`
	// Owner is the user ID that may open the device without CAP_NET_ADMIN.
	// Without owner and group, every process that can open /dev/net/tun may
	// open the device.
	Owner *uint32 `json:"owner,omitempty"`
	// Group is the group ID whose members may open the device without
	// CAP_NET_ADMIN. If owner is set too, a process must match both.
	Group *uint32 `json:"group,omitempty"`
	// SELinuxContext is refused. To create a device in another context, a
	// process must change its own context. SELinux allows that to a process
	// with several threads only for a context bounded by its own, and cnibox
	// does not start another program for it.
	SELinuxContext string `json:"selinuxContext,omitempty"`
	// Bridge is the bridge in the container's namespace that the device is
	// attached to.
	Bridge string `json:"bridge,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is the device's MAC address. It takes precedence over CNI_ARGS
		// and mac.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
}

const (
	// minMTU and maxMTU are the kernel's bounds: the smallest MTU of IPv4
	// (ETH_MIN_MTU), and the largest packet minus an Ethernet header.
	minMTU = 68
	maxMTU = 65535 - 14
	// invalidID is the kernel's value for "no user" and "no group" (INVALID_UID,
	// INVALID_GID).
	invalidID = 1<<32 - 1
)

// Validate reports every invalid key with its JSON path.
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
		if id.value != nil && *id.value == invalidID {
			f.Addf(id.path, "%d means no user and no group in the kernel: remove the key", *id.value)
		}
	}
	if c.SELinuxContext != "" {
		f.Addf("selinuxContext", "is not supported: remove it, and allow the device in the host's SELinux policy")
	}
	f.CheckLink("bridge", c.Bridge)
	return f.Err()
}
