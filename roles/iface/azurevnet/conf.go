// Package azurevnet is the CNI role "azure-vnet": it gives containers addresses
// of the cloud's own network. It has the keys of the azure-vnet plugin.
package azurevnet

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
)

// Conf is the network configuration of the azure-vnet role.
type Conf struct {
	roles.NetConf
	// Mode is how containers are connected to the network: "bridge", "tunnel"
	// (the default), "transparent" or "transparent-vlan".
	Mode string `json:"mode,omitempty"`
	// Master is the node's interface on the network. Default: the interface
	// that the cloud's address belongs to, else the interface that has an
	// address of the same subnet.
	Master string `json:"master,omitempty"`
	// VLANID is the VLAN of the master in the mode "transparent-vlan", 1-4094.
	// (Azure's plugin gets it from CNS, which cnibox does not use.)
	VLANID int `json:"vlanId,omitempty"`
	// Bridge is the name of the bridge that replaces the master in the modes
	// "bridge" and "tunnel". Default: "azure" followed by the master's
	// interface index.
	Bridge string `json:"bridge,omitempty"`
	// IPsToRouteViaHost are IPv4 addresses. Frames to them go to the node's own
	// IP stack, whatever their destination MAC, for example to the node's DNS
	// cache at 169.254.20.10. It has an effect in the modes "bridge" and
	// "tunnel"; the other modes route all packets.
	IPsToRouteViaHost []string `json:"ipsToRouteViaHost,omitempty"`
	// DisableHairpinOnHostInterface leaves hairpin mode off at the master's
	// bridge port.
	DisableHairpinOnHostInterface bool `json:"disableHairpinOnHostInterface,omitempty"`
	// MTU of both ends of the veth pair. 0 means the master's MTU.
	MTU int `json:"mtu,omitempty"`
	// MultiTenancy makes Azure's CNS choose the address and the VLAN. cnibox
	// does not use CNS, so true is refused.
	MultiTenancy bool `json:"multiTenancy,omitempty"`
	// RuntimeConfig holds the values that the runtime gives for the declared
	// capabilities.
	RuntimeConfig struct {
		// DNS replaces the dns key and the IPAM plugin's DNS settings.
		DNS struct {
			Servers  []string `json:"servers,omitempty"`
			Searches []string `json:"searches,omitempty"`
			Options  []string `json:"options,omitempty"`
		} `json:"dns,omitzero"`
	} `json:"runtimeConfig,omitzero"`

	azureview.Conf
	unserved
}

// unserved are keys of azure-vnet that have no effect in cnibox.
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

// ignored are the names of the keys of unserved.
var ignored = []string{ //nolint:gochecknoglobals // a constant
	"adapterName", "logLevel", "logTarget", "executionMode", "enableSnatOnHost", "enableExactMatchForPodName",
	"infraVnetAddressSpace", "podNamespaceForDualNetwork", "cnsurl", "ipv6Mode", "serviceCidrs", "vnetCidrs",
	"disableIPTableLock", "disableAsyncDelete", "windowsSettings", "AdditionalArgs", "env",
}

// The supported modes of azure-vnet on Linux.
const (
	modeBridge      = "bridge"
	modeTunnel      = "tunnel"
	modeTransparent = "transparent"
	modeVLAN        = "transparent-vlan"
)

// maxVLAN is the largest VLAN ID (IEEE 802.1Q; 0 means none, 4095 is reserved).
const maxVLAN = 4094

// SetDefaults sets the documented default values.
func (c *Conf) SetDefaults() {
	if c.Mode == "" {
		c.Mode = modeTunnel
	}
}

// bridged reports whether a bridge replaces the master.
func (c *Conf) bridged() bool { return c.Mode == modeBridge || c.Mode == modeTunnel }

// bridgeOf is the name of the bridge that replaces the master with this index.
func (c *Conf) bridgeOf(index int) string {
	if c.Bridge != "" {
		return c.Bridge
	}
	return fmt.Sprintf("azure%d", index)
}

// Validate reports every invalid key with its JSON path.
func (c *Conf) Validate() error {
	var f roles.Faults
	switch {
	case c.Mode == "transparent-tunnel":
		f.Addf("mode", "%q is not supported: use \"tunnel\", which also sends the packets between pods of one node through Azure's network, where its security groups apply", c.Mode)
	case !slices.Contains([]string{modeBridge, modeTunnel, modeTransparent, modeVLAN}, c.Mode):
		f.Addf("mode", "%q is not known on Linux: use \"bridge\", \"tunnel\", \"transparent\" or \"transparent-vlan\"", c.Mode)
	}
	switch {
	case c.Mode == modeVLAN && c.VLANID == 0:
		f.Addf("vlanId", "is required in the mode %q, because cnibox does not get it from Azure's CNS: use 1 to %d", c.Mode, maxVLAN)
	case c.VLANID < 0 || c.VLANID > maxVLAN:
		f.Addf("vlanId", "%d is out of range: use 1 to %d", c.VLANID, maxVLAN)
	case c.Mode != modeVLAN && c.VLANID != 0:
		f.Addf("vlanId", "has no effect in the mode %q: use \"transparent-vlan\", or remove it", c.Mode)
	}
	if c.MultiTenancy {
		f.Addf("multiTenancy", "is not supported, because cnibox does not use Azure's CNS to choose addresses and VLANs: "+
			"remove it, and give each tenant a network with the mode \"transparent-vlan\" and its \"vlanId\"")
	}
	f.CheckLink("master", c.Master)
	f.CheckLink("bridge", c.Bridge)
	if c.Master != "" && c.Master == c.Bridge {
		f.Addf("bridge", "%q is the master too: use another name for the bridge", c.Bridge)
	}
	if c.MTU < 0 || c.MTU > 65535 {
		f.Addf("mtu", "%d is out of range: use 0 (the master's) to 65535", c.MTU)
	}
	const useOurs = "use \"azure-vnet-ipam\", which gives addresses of the cloud"
	switch c.IPAM.Type {
	case "":
		f.Addf("ipam.type", "is missing: %s", useOurs)
	case "azure-cns":
		f.Addf("ipam.type", "%q is not a plugin, but Azure's daemon CNS, which cnibox does not ask for addresses: %s", c.IPAM.Type, useOurs)
	}
	c.viaHost(&f)
	c.Check(&f)
	return f.Err()
}

// viaHost are the addresses of ipsToRouteViaHost without duplicates.
func (c *Conf) viaHost(f *roles.Faults) []netip.Addr {
	var all []netip.Addr
	for i, s := range c.IPsToRouteViaHost {
		a, err := roles.ParseAddr(s)
		if err != nil || !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
			f.Addf(fmt.Sprintf("ipsToRouteViaHost[%d]", i), "%.80q is not the IPv4 address of a single host", s)
			continue
		}
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// dns is the configured DNS settings, which replace the IPAM plugin's.
func (c *Conf) dns() types.DNS {
	r := c.RuntimeConfig.DNS
	if r.Servers == nil && r.Searches == nil && r.Options == nil {
		return c.DNS
	}
	return types.DNS{Nameservers: r.Servers, Search: r.Searches, Options: r.Options}
}
