// Package tuning is the CNI role "tuning": it changes sysctls of the
// container's namespace and attributes of its interface, and restores them on
// DEL. It has the keys of the reference plugin.
package tuning

import (
	"cmp"
	"fmt"
	"math"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the tuning role.
type Conf struct {
	roles.NetConf
	// Sysctl are sysctls of the container's namespace below net/ and their
	// values as strings: {"net.ipv4.conf.IFNAME.arp_filter":"1"}. IFNAME stands
	// for the interface's name. The first dot or slash of a name is the
	// separator; the other character stands for a dot within a part of the
	// name. They are set in this order. If /etc/cni/tuning/allowlist.conf
	// exists (one regular expression per line), it must allow them.
	Sysctl Settings `json:"sysctl,omitempty"`
	// MAC is the MAC address. CNI_ARGS, runtimeConfig and args, in this order,
	// take precedence over it.
	MAC string `json:"mac,omitempty"`
	// Promisc turns promiscuous mode on or off. Without the key it is not
	// changed.
	Promisc *bool `json:"promisc,omitempty"`
	// MTU is set on both ends of a veth pair. 0 means no change.
	MTU int `json:"mtu,omitempty"`
	// TxQLen is the length of the transmit queue in packets.
	TxQLen *int `json:"txQLen,omitempty"`
	// AllMulti turns the reception of all multicast frames on or off. Without
	// the key it is not changed.
	AllMulti *bool `json:"allmulti,omitempty"`
	// DataDir is the directory where the reference plugin records its changes,
	// one file for each interface. It is read when an attachment that the
	// reference plugin created is deleted. Default "/run/cni/tuning".
	DataDir string `json:"dataDir,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is the MAC address. It takes precedence over CNI_ARGS.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	// Args holds args.cni, whose keys take precedence over those above.
	Args struct {
		CNI struct {
			// Sysctl adds to the sysctls above. A sysctl that is in both has
			// the value given here.
			Sysctl Settings `json:"sysctl,omitempty"`
			// MAC is the MAC address.
			MAC string `json:"mac,omitempty"`
			// Promisc turns promiscuous mode on or off.
			Promisc *bool `json:"promisc,omitempty"`
			// MTU is set on both ends of a veth pair.
			MTU *int `json:"mtu,omitempty"`
			// TxQLen is the length of the transmit queue in packets.
			TxQLen *int `json:"txQLen,omitempty"`
			// AllMulti turns the reception of all multicast frames on or off.
			AllMulti *bool `json:"allmulti,omitempty"`
		} `json:"cni,omitzero"`
	} `json:"args,omitzero"`
}

const (
	defaultDataDir = "/run/cni/tuning"
	// minMTU is the minimum MTU of IPv4 (RFC 791, section 3.2).
	minMTU = 68
	// minMTU6 is the minimum MTU of IPv6 (RFC 8200, section 5).
	minMTU6 = 1280
	maxMTU  = 65535
)

// SetDefaults sets the documented default values.
func (c *Conf) SetDefaults() {
	if c.DataDir == "" {
		c.DataDir = defaultDataDir
	}
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	c.Sysctl.validate(&f, "sysctl")
	roles.MACKeys{{Path: "mac", Value: c.MAC}}.Check(&f)
	checkMTU(&f, "mtu", c.MTU)
	checkQueue(&f, "txQLen", c.TxQLen)
	roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}}.Check(&f)
	a := &c.Args.CNI
	a.Sysctl.validate(&f, "args.cni.sysctl")
	roles.MACKeys{{Path: "args.cni.mac", Value: a.MAC}}.Check(&f)
	if a.MTU != nil {
		checkMTU(&f, "args.cni.mtu", *a.MTU)
	}
	checkQueue(&f, "args.cni.txQLen", a.TxQLen)
	return f.Err()
}

func checkMTU(f *roles.Faults, path string, mtu int) {
	if mtu != 0 && (mtu < minMTU || mtu > maxMTU) {
		f.Addf(path, "%d is out of range: use %d to %d, or 0 to leave it as it is", mtu, minMTU, maxMTU)
	}
}

func checkQueue(f *roles.Faults, path string, n *int) {
	if n != nil && (*n < 0 || int64(*n) > math.MaxUint32) {
		f.Addf(path, "%d is out of range: use 0 to %d packets", *n, uint32(math.MaxUint32))
	}
}

// macRefused returns the error for the key that asks for a MAC which the
// interface cannot have.
func (c *Conf) macRefused(args roles.Args, ifName string) error {
	path := "mac"
	reason := fmt.Sprintf(`interface %q can have no MAC, because it is of a netkit pair in mode l3: remove the key, or set linkType "veth" where the interface is made`, ifName)
	switch {
	case c.Args.CNI.MAC != "":
		path = "args.cni.mac"
	case c.RuntimeConfig.MAC != "":
		path = "runtimeConfig.mac"
	case args.Get("MAC") != "":
		return &roles.EnvError{Name: "CNI_ARGS: MAC", Reason: reason}
	}
	return &roles.ConfError{Path: path, Reason: reason}
}

// linkSettings are the values that the configuration sets on the interface.
type linkSettings struct {
	mac               string
	mtu               int
	promisc, allMulti *bool
	txQLen            *int
}

// linkSettings selects each value by precedence: args, runtimeConfig, CNI_ARGS,
// configuration.
func (c *Conf) linkSettings(args roles.Args) (linkSettings, error) {
	a := &c.Args.CNI
	w := linkSettings{
		mac: roles.UnicastMAC(a.MAC), mtu: c.MTU,
		promisc: cmp.Or(a.Promisc, c.Promisc), allMulti: cmp.Or(a.AllMulti, c.AllMulti),
		txQLen: cmp.Or(a.TxQLen, c.TxQLen),
	}
	if a.MTU != nil {
		w.mtu = *a.MTU
	}
	var err error
	if w.mac == "" {
		w.mac, err = args.MAC(c.RuntimeConfig.MAC, c.MAC)
	}
	return w, err
}
