// Package bridge is the CNI role "bridge": it connects containers to a Linux
// bridge. It has the keys of the reference plugin.
package bridge

import (
	"net/netip"
	"strconv"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// Conf is the network configuration of the bridge role.
type Conf struct {
	roles.NetConf
	// Bridge is the name of the bridge. ADD creates a missing bridge and leaves
	// the settings of an existing one as they are. Default "cni0".
	Bridge string `json:"bridge,omitempty"`
	// IsGateway gives the bridge the gateway's address and turns IP forwarding
	// on.
	IsGateway bool `json:"isGateway,omitempty"`
	// IsDefaultGateway implies isGateway. It adds a default route for each
	// address family, unless IPAM gave one.
	IsDefaultGateway bool `json:"isDefaultGateway,omitempty"`
	// ForceAddress replaces an address of the bridge that conflicts with the
	// gateway's. Without it, ADD fails in this case.
	ForceAddress bool `json:"forceAddress,omitempty"`
	// ForceAddressIn limits forceAddress to addresses in these networks. ADD
	// fails if the bridge has another conflicting address. The types vxlan and
	// flannel set it.
	ForceAddressIn []netip.Prefix `json:"forceAddressIn,omitempty"`
	// IPMasq masquerades traffic that leaves the network.
	IPMasq bool `json:"ipMasq,omitempty"`
	// IPMasqBackend is "nftables" (default). "iptables" is accepted with a
	// warning, and nftables is used.
	IPMasqBackend string `json:"ipMasqBackend,omitempty"`
	// EgressAddress is an address of the node that masqueraded traffic gets in place
	// of the interface's: a string, or a list of one IPv4 and one IPv6 address. A
	// family without one gets the interface's. It is outside of the containers'
	// subnet, and requires ipMasq.
	EgressAddress roles.StringList `json:"egressAddress,omitempty"`
	// EgressExcept are networks that the containers reach as without egressAddress.
	// The types vxlan and flannel set it. With it, egressAddress does not require
	// ipMasq, because another program may masquerade.
	EgressExcept []netip.Prefix `json:"egressExcept,omitempty"`
	// MTU of the veth pair, and of the bridge when ADD creates it. 0 leaves it
	// to the kernel.
	MTU int `json:"mtu,omitempty"`
	// HairpinMode lets a container reach itself through the bridge. It cannot
	// be combined with promiscMode.
	HairpinMode bool `json:"hairpinMode,omitempty"`
	// PromiscMode turns promiscuous mode of the bridge on.
	PromiscMode bool `json:"promiscMode,omitempty"`
	// VLAN is the access VLAN of the port, 1-4094. 0 means none.
	VLAN int `json:"vlan,omitempty"`
	// VLANTrunk lists the tagged VLANs of the port.
	VLANTrunk []Trunk `json:"vlanTrunk,omitempty"`
	// PreserveDefaultVLAN keeps the bridge's default VLAN on the port.
	PreserveDefaultVLAN bool `json:"preserveDefaultVlan,omitempty"`
	// MACSpoofCheck drops frames from the container whose source MAC is not the
	// container's.
	MACSpoofCheck bool `json:"macspoofchk,omitempty"`
	// AllowedAddresses are networks whose addresses the containers may use beside
	// their own where the agent enforces network policies: of virtual routers, load
	// balancers, or containers within containers. They never admit another
	// container's address.
	AllowedAddresses []netip.Prefix `json:"allowedAddresses,omitempty"`
	// RouterAddresses are the addresses of the containers that may send router
	// advertisements and answers of DHCP where the agent enforces network policies.
	RouterAddresses []netip.Addr `json:"routerAddresses,omitempty"`
	// EnableDAD turns IPv6 duplicate address detection in the container on.
	// Default: off.
	EnableDAD bool `json:"enabledad,omitempty"`
	// DisableContainerInterface leaves the container's interface down. It
	// cannot be combined with ipam.
	DisableContainerInterface bool `json:"disableContainerInterface,omitempty"`
	// PortIsolation blocks traffic between ports that have this flag.
	PortIsolation bool `json:"portIsolation,omitempty"`
	// RemoveEmptyBridge makes the DEL of the network's last attachment remove
	// the bridge, if cnibox created it and it has no other port. What the
	// network has on the bridge is removed with it: addresses, masquerading and
	// the VLAN's gateway interface. An object that another network uses stays
	// until the last attachment of that network is deleted, or until its GC.
	RemoveEmptyBridge bool `json:"removeEmptyBridge,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// MAC is the container's MAC address. It takes precedence over args and
		// CNI_ARGS.
		MAC string `json:"mac,omitempty"`
	} `json:"runtimeConfig,omitzero"`
	// Args holds args.cni.
	Args struct {
		CNI struct {
			// MAC is the container's MAC address. It takes precedence over
			// CNI_ARGS.
			MAC string `json:"mac,omitempty"`
		} `json:"cni,omitzero"`
	} `json:"args,omitzero"`
}

// Trunk is one entry of vlanTrunk: an id, a range from minID to maxID, or both.
type Trunk struct {
	// MinID is the first VLAN of a range.
	MinID *int `json:"minID,omitempty"`
	// MaxID is the last VLAN of a range.
	MaxID *int `json:"maxID,omitempty"`
	// ID is a single VLAN.
	ID *int `json:"id,omitempty"`
}

const (
	defaultBridge = "cni0"
	maxVLAN       = 4094
)

// SetDefaults sets the documented default values.
func (c *Conf) SetDefaults() {
	if c.Bridge == "" {
		c.Bridge = defaultBridge
	}
	if c.IsDefaultGateway {
		c.IsGateway = true
	}
}

// ForUndo leaves an empty bridge to GC: with a configuration that has faults it is
// not certain which bridge the ADD meant.
func (c *Conf) ForUndo() { c.RemoveEmptyBridge = false }

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	f.Check("bridge", roles.LinkName(c.Bridge))
	c.masquerade().Check(&f)
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the kernel's) to 65535", c.MTU)
	}
	if c.HairpinMode && c.PromiscMode {
		f.Addf("hairpinMode", "cannot be combined with promiscMode: choose one")
	}
	if c.DisableContainerInterface && c.IPAM.Type != "" {
		f.Addf("disableContainerInterface", "cannot be combined with ipam: an interface that is down cannot use addresses; remove one of the two")
	}
	c.validateVLANs(&f)
	c.macKeys().Check(&f)
	return f.Err()
}

func (c *Conf) validateVLANs(f *roles.Faults) {
	if c.VLAN < 0 || c.VLAN > maxVLAN {
		f.Addf("vlan", "%d is out of range: use 1 to %d, or 0 for none", c.VLAN, maxVLAN)
	}
	if c.VLAN != 0 && c.IsGateway && len(c.gatewayLink()) > roles.MaxLinkName {
		f.Addf("bridge", "%q is too long for a gateway on a VLAN: the name of the interface %q has more than %d bytes; choose a shorter name", c.Bridge, c.gatewayLink(), roles.MaxLinkName)
	}
	for i, t := range c.VLANTrunk {
		t.validate(f, i)
	}
}

func (t Trunk) validate(f *roles.Faults, i int) {
	p := "vlanTrunk[" + strconv.Itoa(i) + "]"
	for _, v := range []struct {
		name string
		id   *int
	}{{"minID", t.MinID}, {"maxID", t.MaxID}, {"id", t.ID}} {
		if v.id != nil && (*v.id < 1 || *v.id > maxVLAN) {
			f.Addf(p+"."+v.name, "%d is out of range: use 1 to %d", *v.id, maxVLAN)
		}
	}
	switch {
	case t.MinID == nil && t.MaxID == nil && t.ID == nil:
		f.Addf(p, "is empty: set id, or minID and maxID")
	case t.MinID == nil && t.MaxID != nil:
		f.Addf(p+".minID", "is missing: set both minID and maxID")
	case t.MinID != nil && t.MaxID == nil:
		f.Addf(p+".maxID", "is missing: set both minID and maxID")
	case t.MinID != nil && *t.MaxID < *t.MinID:
		f.Addf(p+".maxID", "%d is less than minID %d", *t.MaxID, *t.MinID)
	}
}

// vlanAware reports whether the bridge needs VLAN filtering.
func (c *Conf) vlanAware() bool { return c.VLAN != 0 || len(c.VLANTrunk) > 0 }

// gatewayLink is the name of the interface that holds the gateway's address.
func (c *Conf) gatewayLink() string {
	if c.VLAN == 0 {
		return c.Bridge
	}
	return c.Bridge + "." + strconv.Itoa(c.VLAN)
}

// masquerade is the configured masquerading.
func (c *Conf) masquerade() attach.Masquerade {
	return attach.Masquerade{On: c.IPMasq, Key: "ipMasq", Backend: c.IPMasqBackend, Egress: c.EgressAddress, Except: c.EgressExcept}
}

// macKeys are the keys that set the container's MAC address, the one with the
// highest precedence first.
func (c *Conf) macKeys() roles.MACKeys {
	return roles.MACKeys{{Path: "runtimeConfig.mac", Value: c.RuntimeConfig.MAC}, {Path: "args.cni.mac", Value: c.Args.CNI.MAC}}
}

// mac is the container's MAC address in colon form, chosen by precedence, or ""
// if none is configured.
func (c *Conf) mac(args roles.Args) (string, error) {
	if m := c.macKeys().Value(); m != "" {
		return m, nil
	}
	return args.MACArg()
}
