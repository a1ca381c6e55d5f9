// Package azurevnet is the CNI role "azure-vnet": containers with addresses of the
// cloud's own network, with the keys of the azure-vnet plugin.
package azurevnet

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/azureview"
)

// Conf is the network configuration of the azure-vnet role.
type Conf struct {
	roles.NetConf
	// Mode says how containers reach the network: "bridge", "tunnel" (the default),
	// "transparent" or "transparent-vlan".
	Mode string `json:"mode,omitempty"`
	// Master is the node's interface on the network. By default it is the one that
	// the cloud's address belongs to, else the one with the address's subnet.
	Master string `json:"master,omitempty"`
	// VLANID is the VLAN of the mode "transparent-vlan", 1-4094, of the master's.
	// (Azure's plugin has it from its CNS, which is not asked here.)
	VLANID int `json:"vlanId,omitempty"`
	// Bridge is the name of the bridge that takes the master over, in the modes
	// bridge and tunnel. Default "azure" and the master's index.
	Bridge string `json:"bridge,omitempty"`
	// IPsToRouteViaHost are IPv4 addresses that frames to are handed to the node's
	// own stack, whatever their destination MAC: a DNS cache of the node's at
	// 169.254.20.10 for one. In the modes bridge and tunnel; the others route all.
	IPsToRouteViaHost []string `json:"ipsToRouteViaHost,omitempty"`
	// DisableHairpinOnHostInterface leaves hairpin off at the master's port.
	DisableHairpinOnHostInterface bool `json:"disableHairpinOnHostInterface,omitempty"`
	// MTU of both ends; 0 is the master's.
	MTU int `json:"mtu,omitempty"`
	// MultiTenancy has Azure's CNS choose the address and the VLAN. It is not asked
	// here, so true is refused.
	MultiTenancy bool `json:"multiTenancy,omitempty"`
	// RuntimeConfig is what the runtime fills in for declared capabilities.
	RuntimeConfig struct {
		// DNS replaces dns and the IPAM plugin's answer.
		DNS struct {
			Servers  []string `json:"servers,omitempty"`
			Searches []string `json:"searches,omitempty"`
			Options  []string `json:"options,omitempty"`
		} `json:"dns,omitzero"`
	} `json:"runtimeConfig,omitzero"`

	azureview.Conf
	unserved
}

// unserved are keys that azure-vnet knows and that have no effect here.
type unserved struct {
	AdapterName                any `json:"adapterName,omitempty"`
	LogLevel                   any `json:"logLevel,omitempty"`
	LogTarget                  any `json:"logTarget,omitempty"`
	ExecutionMode              any `json:"executionMode,omitempty"`
	EnableSnatOnHost           any `json:"enableSnatOnHost,omitempty"`
	EnableExactMatchForPodName any `json:"enableExactMatchForPodName,omitempty"`
	InfraVnetAddressSpace      any `json:"infraVnetAddressSpace,omitempty"`
	PodNamespaceForDualNetwork any `json:"podNamespaceForDualNetwork,omitempty"`
	CNSURL                     any `json:"cnsurl,omitempty"`
	IPv6Mode                   any `json:"ipv6Mode,omitempty"`
	ServiceCIDRs               any `json:"serviceCidrs,omitempty"`
	VNetCIDRs                  any `json:"vnetCidrs,omitempty"`
	DisableIPTableLock         any `json:"disableIPTableLock,omitempty"`
	DisableAsyncDelete         any `json:"disableAsyncDelete,omitempty"`
	WindowsSettings            any `json:"windowsSettings,omitempty"`
	AdditionalArgs             any `json:"AdditionalArgs,omitempty"`
	Env                        any `json:"env,omitempty"`
}

// ignored are their names.
var ignored = []string{ //nolint:gochecknoglobals // a constant
	"adapterName", "logLevel", "logTarget", "executionMode", "enableSnatOnHost", "enableExactMatchForPodName",
	"infraVnetAddressSpace", "podNamespaceForDualNetwork", "cnsurl", "ipv6Mode", "serviceCidrs", "vnetCidrs",
	"disableIPTableLock", "disableAsyncDelete", "windowsSettings", "AdditionalArgs", "env",
}

// The modes of azure-vnet on Linux that are served.
const (
	modeBridge      = "bridge"
	modeTunnel      = "tunnel"
	modeTransparent = "transparent"
	modeVLAN        = "transparent-vlan"
)

// maxVLAN is the largest number of a VLAN (IEEE 802.1Q; 0 is none, 4095 is reserved).
const maxVLAN = 4094

// SetDefaults fills in what the documentation calls default.
func (c *Conf) SetDefaults() {
	if c.Mode == "" {
		c.Mode = modeTunnel
	}
}

// bridged tells whether a bridge takes the master over.
func (c *Conf) bridged() bool { return c.Mode == modeBridge || c.Mode == modeTunnel }

// bridgeOf is the bridge's name for a master.
func (c *Conf) bridgeOf(index int) string {
	if c.Bridge != "" {
		return c.Bridge
	}
	return fmt.Sprintf("azure%d", index)
}

// Validate reports every fault with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	if !slices.Contains([]string{modeBridge, modeTunnel, modeTransparent, modeVLAN}, c.Mode) {
		f.Addf("mode", "%q is not known on Linux: use \"bridge\", \"tunnel\", \"transparent\" or \"transparent-vlan\"", c.Mode)
	}
	switch {
	case c.Mode == modeVLAN && c.VLANID == 0:
		f.Addf("vlanId", "is required in the mode %q: 1 to %d, for Azure's CNS is not asked for it here", c.Mode, maxVLAN)
	case c.VLANID < 0 || c.VLANID > maxVLAN:
		f.Addf("vlanId", "%d is out of range: use 1 to %d", c.VLANID, maxVLAN)
	case c.Mode != modeVLAN && c.VLANID != 0:
		f.Addf("vlanId", "is of no use in the mode %q, which has no VLAN: use \"transparent-vlan\", or leave it out", c.Mode)
	}
	if c.MultiTenancy {
		f.Addf("multiTenancy", "is not served: Azure's CNS, which would choose addresses and VLANs, is not asked here: "+
			"leave it out, and give each tenant a network with the mode \"transparent-vlan\" and its \"vlanId\"")
	}
	for _, l := range []struct{ path, name string }{{"master", c.Master}, {"bridge", c.Bridge}} {
		if l.name == "" {
			continue
		}
		if err := roles.LinkName(l.name); err != nil {
			f.Addf(l.path, "%v", err)
		}
	}
	if c.Master != "" && c.Master == c.Bridge {
		f.Addf("bridge", "%q is the master too: they are two interfaces", c.Bridge)
	}
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the master's) to 65535", c.MTU)
	}
	if c.IPAM.Type == "" {
		f.Addf("ipam.type", "is missing: containers here have addresses of the cloud, use \"azure-vnet-ipam\"")
	}
	c.viaHost(&f)
	c.Judge(&f)
	return f.Err()
}

// viaHost are the addresses of ipsToRouteViaHost, each once.
func (c *Conf) viaHost(f *roles.Faults) []netip.Addr {
	var all []netip.Addr
	for i, s := range c.IPsToRouteViaHost {
		a, err := roles.ParseAddr(s)
		if err != nil || !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
			f.Addf(fmt.Sprintf("ipsToRouteViaHost[%d]", i), "%.80q is no IPv4 address of one host", s)
			continue
		}
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// dns is what replaces the IPAM plugin's answer.
func (c *Conf) dns() types.DNS {
	r := c.RuntimeConfig.DNS
	if r.Servers == nil && r.Searches == nil && r.Options == nil {
		return c.DNS
	}
	return types.DNS{Nameservers: r.Servers, Search: r.Searches, Options: r.Options}
}
