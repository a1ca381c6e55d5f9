// Package sriov is the CNI role "sriov": it configures a virtual function (VF)
// of a network card and moves it into the container. It has the keys of
// sriov-cni.
package sriov

import (
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/sysfs"
	"github.com/cnibox/cnibox/roles"
)

// Conf is the network configuration of the sriov role. A key that is not set
// leaves the VF's setting unchanged. DEL restores all of them.
type Conf struct {
	roles.NetConf
	// DeviceID is the VF's PCI address, such as "0000:03:02.1". Multus and the
	// role multi take it from the device plugin. A VF with the driver vfio-pci,
	// uio_pci_generic or igb_uio has no interface to move: it is only
	// configured. Required for ADD.
	DeviceID string `json:"deviceID,omitempty"`
	// VLAN is the VLAN whose tag the card adds and removes, from 0 to 4094. 0
	// removes the tag.
	VLAN *int `json:"vlan,omitempty"`
	// VLANQoS is the tag's priority, from 0 (default) to 7. It needs vlan.
	VLANQoS *int `json:"vlanQoS,omitempty"`
	// VLANProto is the tag's protocol: "802.1q" (default) or "802.1ad". It needs
	// vlan.
	VLANProto *string `json:"vlanProto,omitempty"`
	// MAC is the VF's MAC address, which is set at the card and at the
	// interface. runtimeConfig and CNI_ARGS take precedence over it.
	MAC string `json:"mac,omitempty"`
	// MinTxRate is the rate in Mbit/s that the card guarantees for sent
	// packets. 0 is none. If only one of both rates is set, the other is 0.
	MinTxRate *int `json:"min_tx_rate,omitempty"`
	// MaxTxRate is the highest rate of sent packets in Mbit/s. 0 is no limit.
	MaxTxRate *int `json:"max_tx_rate,omitempty"`
	// SpoofChk is "on" if the card must drop packets with another source MAC
	// address. All other values are "off".
	SpoofChk string `json:"spoofchk,omitempty"`
	// Trust is "on" if the VF may change its MAC address and receive all
	// packets. All other values are "off".
	Trust string `json:"trust,omitempty"`
	// LinkState is "auto" if the VF's link has the state of the card's,
	// "enable" if it is up, "disable" if it is down.
	LinkState string `json:"link_state,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is the VF's MAC address. It takes precedence over CNI_ARGS and
		// mac.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	// LogLevel has no effect: set CNIBOX_LOG.
	LogLevel string `json:"logLevel,omitempty"`
	// LogFile has no effect: messages go to standard error.
	LogFile string `json:"logFile,omitempty"`
}

const (
	proto8021Q  = "802.1q"
	proto8021AD = "802.1ad"
	on, off     = "on", "off"
	maxRate     = 1<<32 - 1
)

// linkStates are the values of link_state.
func linkStates() []string { return []string{"auto", "enable", "disable"} }

// Validate reports every invalid key with its JSON path. Only ADD reports that
// no device is selected: GC and STATUS do not get the device ID.
func (c *Conf) Validate() error {
	var f roles.Faults
	if c.DeviceID != "" && !sysfs.IsPCIAddress(c.DeviceID) {
		f.Addf("deviceID", "%q is not a PCI address: use the form 0000:03:02.1", c.DeviceID)
	}
	c.checkVLAN(&f)
	c.checkRates(&f)
	if c.LinkState != "" && !slices.Contains(linkStates(), c.LinkState) {
		f.Addf("link_state", "%q is not known: use %s", c.LinkState, strings.Join(linkStates(), ", "))
	}
	roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, {Path: "mac", Value: c.MAC}}.Check(&f)
	return f.Err()
}

func (c *Conf) checkVLAN(f *roles.Faults) {
	if c.VLAN == nil {
		if c.VLANQoS != nil {
			f.Addf("vlanQoS", "is the priority of a VLAN: set vlan, too")
		}
		if c.VLANProto != nil {
			f.Addf("vlanProto", "is the protocol of a VLAN: set vlan, too")
		}
		return
	}
	if *c.VLAN < 0 || *c.VLAN > 4094 {
		f.Addf("vlan", "%d is out of range: use 0 (no VLAN) to 4094", *c.VLAN)
	}
	switch qos := c.VLANQoS; {
	case qos == nil:
	case *qos < 0 || *qos > 7:
		f.Addf("vlanQoS", "%d is out of range: use 0 to 7", *qos)
	case *qos != 0 && *c.VLAN == 0:
		f.Addf("vlanQoS", "%d needs a VLAN: use a vlan from 1 to 4094", *qos)
	}
	if c.VLANProto == nil {
		return
	}
	switch strings.ToLower(*c.VLANProto) {
	case proto8021Q:
	case proto8021AD:
		if *c.VLAN == 0 {
			f.Addf("vlanProto", "%q needs a VLAN: use a vlan from 1 to 4094", *c.VLANProto)
		}
	default:
		f.Addf("vlanProto", "%q is not known: use %s or %s", *c.VLANProto, proto8021Q, proto8021AD)
	}
}

func (c *Conf) checkRates(f *roles.Faults) {
	valid := true
	for _, r := range []struct {
		path string
		rate *int
	}{{"min_tx_rate", c.MinTxRate}, {"max_tx_rate", c.MaxTxRate}} {
		if r.rate != nil && (*r.rate < 0 || *r.rate > maxRate) {
			f.Addf(r.path, "%d is out of range: use 0 (no limit) or a number of Mbit/s", *r.rate)
			valid = false
		}
	}
	if low, high := value(c.MinTxRate), value(c.MaxTxRate); valid && high != 0 && low > high {
		f.Addf("min_tx_rate", "%d is more than max_tx_rate, %d", low, high)
	}
}

// value returns what p points to, or 0.
func value(p *int) int {
	if p == nil {
		return 0
	}
	return *p
}
