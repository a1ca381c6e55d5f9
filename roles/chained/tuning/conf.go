// Package tuning is the CNI role "tuning": settings of the container's
// namespace and of its interface, with the keys of the reference plugin. What it
// changes it puts back.
package tuning

import (
	"cmp"
	"math"

	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the tuning role.
type Conf struct {
	roles.NetConf
	// Sysctl are settings of the container's namespace below net/, as texts:
	// {"net.ipv4.conf.IFNAME.arp_filter":"1"}. IFNAME stands for the interface's
	// name. The separators are dots or slashes, whichever comes first; the other
	// one is a dot of a name. They are made in this order, and must be allowed by
	// /etc/cni/tuning/allowlist.conf (regular expressions, one a line) where
	// there is one.
	Sysctl Settings `json:"sysctl,omitempty"`
	// MAC is the hardware address. CNI_ARGS, runtimeConfig and args, in this order, win over it.
	MAC string `json:"mac,omitempty"`
	// Promisc turns promiscuous mode on or off; without it it stays.
	Promisc *bool `json:"promisc,omitempty"`
	// MTU is set at both ends of a veth; 0 leaves it as it is.
	MTU int `json:"mtu,omitempty"`
	// TxQLen is the length of the transmit queue in packets.
	TxQLen *int `json:"txQLen,omitempty"`
	// AllMulti turns the reception of all multicasts on or off; without it it stays.
	AllMulti *bool `json:"allmulti,omitempty"`
	// DataDir is where the reference plugin keeps what it changed, one file an
	// interface. It is read when one that the reference plugin made goes.
	// Default "/run/cni/tuning".
	DataDir string `json:"dataDir,omitempty"`
	// RuntimeConfig is what the runtime fills in for declared capabilities.
	RuntimeConfig struct {
		// MAC is the hardware address; it wins over CNI_ARGS.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	// Args holds args.cni, whose keys win over those above.
	Args struct {
		CNI struct {
			// Sysctl adds to the settings above, or replaces them one by one.
			Sysctl Settings `json:"sysctl,omitempty"`
			// MAC is the hardware address.
			MAC string `json:"mac,omitempty"`
			// Promisc turns promiscuous mode on or off.
			Promisc *bool `json:"promisc,omitempty"`
			// MTU is set at both ends of a veth.
			MTU *int `json:"mtu,omitempty"`
			// TxQLen is the length of the transmit queue in packets.
			TxQLen *int `json:"txQLen,omitempty"`
			// AllMulti turns the reception of all multicasts on or off.
			AllMulti *bool `json:"allmulti,omitempty"`
		} `json:"cni,omitzero"`
	} `json:"args,omitzero"`
}

const (
	defaultDataDir = "/run/cni/tuning"
	// minMTU is the least that every IPv4 node takes (RFC 791, section 3.2).
	minMTU = 68
	// minMTU6 is the least for IPv6 (RFC 8200, section 5).
	minMTU6 = 1280
	maxMTU  = 65535
)

// SetDefaults fills in what the documentation calls default.
func (c *Conf) SetDefaults() {
	if c.DataDir == "" {
		c.DataDir = defaultDataDir
	}
}

// Validate reports every fault with its JSON path.
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

// wanted is what a configuration asks of the interface, by precedence.
type wanted struct {
	mac               string
	mtu               int
	promisc, allMulti *bool
	txQLen            *int
}

// wanted settles who asks for what: args, runtimeConfig, CNI_ARGS, configuration.
func (c *Conf) wanted(args roles.Args) (wanted, error) {
	a := &c.Args.CNI
	w := wanted{
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
