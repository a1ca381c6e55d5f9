// Package bond is the CNI role "bond": it bonds interfaces of the host or of the
// container. It has the keys of bond-cni.
package bond

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the bond role.
type Conf struct {
	roles.NetConf
	// Mode is what the bond does with its links: "balance-rr", "active-backup",
	// "balance-xor", "broadcast", "802.3ad", "balance-tlb" or "balance-alb".
	// Required.
	Mode string `json:"mode,omitempty"`
	// Links are the interfaces to bond, two or more. In the modes whose links
	// share a MAC it is that of the first. Required.
	Links []Link `json:"links,omitempty"`
	// LinksInContainer takes the links from the container's namespace, where
	// earlier networks made them. Without it (default) they are the host's: ADD
	// moves them into the container, and DEL back.
	LinksInContainer bool `json:"linksInContainer,omitempty"`
	// MIIMon is the interval in milliseconds at which the bond looks whether its
	// links have a carrier, as a text: "100". "0" never looks. Required.
	MIIMon string `json:"miimon,omitempty"`
	// MTU is the MTU of the bond and its links, 68 to the smallest of the links'
	// and of the cards whose virtual functions they are. Default 1500.
	MTU int `json:"mtu,omitempty"`
	// FailOverMAC is what happens to the MACs in the mode active-backup. 0
	// (default): all links get the MAC of the first. 1: the bond has that of the
	// link that is active, for links whose MAC cannot change, such as most virtual
	// functions. 2: the link that becomes active gets the bond's.
	FailOverMAC int `json:"failOverMac,omitempty"`
	// AllSlavesActive is 1 to accept also the duplicates that inactive links
	// receive, or 0 (default) to drop them.
	AllSlavesActive *int `json:"allSlavesActive,omitempty"`
	// TLBDynamicLB is 1 (default) to move flows between the links by load, or 0 to
	// choose a flow's link by its hash. Only balance-tlb and balance-alb have it.
	TLBDynamicLB *int `json:"tlbDynamicLb,omitempty"`
	// XmitHashPolicy is what the modes balance-xor, 802.3ad and balance-tlb choose
	// a packet's link by: "layer2" (default), "layer2+3", "layer3+4", "encap2+3",
	// "encap3+4", or since Linux 5.12 "vlan+srcmac".
	XmitHashPolicy string `json:"xmitHashPolicy,omitempty"`
}

// Link is an interface to bond.
type Link struct {
	// Name is the interface's name. Required.
	Name string `json:"name,omitempty"`
}

const (
	// defaultMTU is the kernel's for a new bond.
	defaultMTU = 1500
	// minMTU is the smallest MTU of IPv4 (RFC 791).
	minMTU = 68
	// maxMIIMon is the kernel's limit.
	maxMIIMon = 1<<31 - 1
)

// Modes that other keys depend on.
const (
	activeBackup = "active-backup"
	balanceTLB   = "balance-tlb"
	balanceALB   = "balance-alb"
)

func modes() []string {
	return []string{"balance-rr", activeBackup, "balance-xor", "broadcast", "802.3ad", balanceTLB, balanceALB}
}

func hashPolicies() []string {
	return []string{"layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4", "vlan+srcmac"}
}

// SetDefaults sets the MTU of a bond without one.
func (c *Conf) SetDefaults() {
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.IPAM.Type == kind {
		f.Addf("ipam.type", "%q is not an IPAM plugin: use host-local, static or another one", kind)
	}
	oneOf(&f, "mode", c.Mode, modes())
	c.validateLinks(&f)
	if n, err := strconv.Atoi(c.MIIMon); c.MIIMon == "" {
		f.Addf("miimon", `is required: set the interval in milliseconds as a text, such as "100"`)
	} else if err != nil || n < 0 || n > maxMIIMon {
		f.Addf("miimon", `%q is not an interval in milliseconds: use "0" to "%d"`, c.MIIMon, maxMIIMon)
	}
	if c.MTU < minMTU {
		f.Addf("mtu", "%d is too small: use %d or more, or leave it out for %d", c.MTU, minMTU, defaultMTU)
	}
	if c.FailOverMAC < 0 || c.FailOverMAC > 2 {
		f.Addf("failOverMac", "%d is out of range: use 0, 1 or 2", c.FailOverMAC)
	}
	zeroOrOne(&f, "allSlavesActive", c.AllSlavesActive)
	zeroOrOne(&f, "tlbDynamicLb", c.TLBDynamicLB)
	if c.TLBDynamicLB != nil && c.Mode != balanceTLB && c.Mode != balanceALB {
		f.Addf("tlbDynamicLb", "the mode %q does not have it: remove it, or use the mode %s or %s", c.Mode, balanceTLB, balanceALB)
	}
	if c.XmitHashPolicy != "" {
		oneOf(&f, "xmitHashPolicy", c.XmitHashPolicy, hashPolicies())
	}
	return f.Err()
}

func (c *Conf) validateLinks(f *roles.Faults) {
	if len(c.Links) < 2 {
		f.Addf("links", `has %d interfaces, and a bond needs two or more: use the form [{"name":"net1"},{"name":"net2"}]`, len(c.Links))
	}
	for i, l := range c.Links {
		switch path := nameOf(i); {
		case l.Name == "":
			f.Addf(path, "is required: set the name of an interface")
		case l.Name == "lo":
			f.Addf(path, "%q is the loopback interface, which cannot be bonded", l.Name)
		case slices.Contains(c.Links[:i], l):
			f.Addf(path, "%q is listed twice", l.Name)
		default:
			f.CheckLink(path, l.Name)
		}
	}
}

// nameOf returns the JSON path of a link's name.
func nameOf(i int) string { return fmt.Sprintf("links[%d].name", i) }

func oneOf(f *roles.Faults, path, value string, all []string) {
	switch {
	case value == "":
		f.Addf(path, "is required: use %s", strings.Join(all, ", "))
	case !slices.Contains(all, value):
		f.Addf(path, "%q is unknown: use %s", value, strings.Join(all, ", "))
	}
}

func zeroOrOne(f *roles.Faults, path string, value *int) {
	if value != nil && *value != 0 && *value != 1 {
		f.Addf(path, "%d is out of range: use 0 or 1", *value)
	}
}

// bond returns the settings of the valid configuration.
func (c *Conf) bond() *netops.Bond {
	interval, _ := strconv.Atoi(c.MIIMon)
	return &netops.Bond{
		MIIMon: uint32(interval), FailOverMAC: uint8(c.FailOverMAC), XmitHashPolicy: c.XmitHashPolicy,
		AllSlavesActive: isOne(c.AllSlavesActive), TLBDynamicLB: isOne(c.TLBDynamicLB),
	}
}

// isOne returns nil for a key that is not set.
func isOne(value *int) *bool {
	if value == nil {
		return nil
	}
	one := *value == 1
	return &one
}
