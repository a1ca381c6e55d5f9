package cloud

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
)

// Conf is the role's network configuration. The role gets the complete configuration of the plugin
// that delegates to it. Its own keys are in "ipam".
type Conf struct {
	roles.NetConf
	azureview.Conf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
	// Master is the key of the interface plugin. Only addresses of that link's NIC are used.
	// Default: all NICs.
	Master string `json:"master,omitempty"`
	// RuntimeConfig has the runtime's values of declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// Args has conventional arguments (CNI conventions, "args.cni").
	Args leasing.Args `json:"args,omitzero"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "cloud-ipam" or "azure-vnet-ipam".
	Type string `json:"type,omitempty"`
	// Provider is the cloud to query, a name that `cnibox cloud show --providers` lists. Default:
	// "auto", which reads the machine's firmware tables. For azure-vnet-ipam the default depends on
	// environment.
	Provider string `json:"provider,omitempty"`
	// URL replaces the provider's base URL, for example "http://168.63.129.16".
	URL string `json:"url,omitempty"`
	// File is the file of the provider "file". Default: "/etc/kubernetes/interfaces.json".
	File string `json:"file,omitempty"`
	// Environment is azure-vnet-ipam's name of a provider: "azure", or "mas" and "fileIpam" for the
	// provider "file". Default for azure-vnet-ipam: "azure".
	Environment string `json:"environment,omitempty"`
	// QueryInterval is the minimum time between two requests to the cloud by all processes of the
	// node: "10s", or a number of seconds. Default: "10s".
	QueryInterval sticky.Span `json:"queryInterval,omitzero"`
	// Cooldown is the time before a released address is given to another pod; 0 is none. Default: "30s".
	Cooldown sticky.Span `json:"cooldown,omitzero"`
	// NIC restricts the addresses to those of one NIC: its MAC, or the name of the link. Default:
	// master's NIC, or else all NICs.
	NIC string `json:"nic,omitempty"`
	// Family is "ipv4", "ipv6" or "dual" for one address of each. Default: "ipv4".
	Family string `json:"family,omitempty"`
	// AddressSpace is a key of azure-vnet-ipam. Only "local" is supported.
	AddressSpace string `json:"addressSpace,omitempty"`
	// Subnet restricts the addresses to those of one subnet, a CIDR. Default: all.
	Subnet string `json:"subnet,omitempty"`
	// IPAddress is the address to use if the runtime requests none. Default: any.
	IPAddress string `json:"ipAddress,omitempty"`
	// Mode is a key of azure-vnet-ipam. It has no effect.
	Mode string `json:"mode,omitempty"`
	// Routes are the routes of the result. Default: a default route through the gateway of each
	// address.
	Routes []roles.Route `json:"routes,omitempty"`
	// DNS is the DNS configuration of the result. Default: the cloud's name servers.
	DNS types.DNS `json:"dns,omitzero"`
	// Sticky gives a pod the same addresses after a restart. Without it every pod can get a
	// released address after the cool-down.
	Sticky *sticky.Conf `json:"sticky,omitempty"`
	// Requests defines how pods request addresses.
	Requests leasing.Requests `json:"requests,omitzero"`
}

// RuntimeConfig has the capabilities ips, mac and io.kubernetes.cri.pod-annotations.
type RuntimeConfig struct {
	// IPs are requested addresses, at most one of each family. A prefix length is ignored.
	IPs []string `json:"ips,omitempty"`
	// MAC is the interface's hardware address, which can identify the owner of sticky addresses.
	MAC string `json:"mac,omitempty"`
	// Annotations are the pod's annotations.
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations,omitempty"`
}

// typeName and azureType are the role's names. The second one is for configurations of Azure's
// plugin.
const typeName, azureType = "cloud-ipam", "azure-vnet-ipam"

// decode decodes a configuration and sets defaults.
func decode(conf []byte) (*Conf, error) {
	c := new(Conf)
	if err := roles.Decode(conf, c); err != nil {
		return nil, err
	}
	if c.IPAM == nil {
		return c, nil
	}
	p := c.IPAM
	if p.Type == azureType && p.Environment == "" && p.Provider == "" {
		p.Environment = "azure"
	}
	if c.StateFiles == nil {
		azure := p.Type == azureType
		c.StateFiles = &azure
	}
	if p.Family == "" {
		p.Family = "ipv4"
	}
	if p.NIC == "" {
		p.NIC = c.Master
	}
	if p.Requests.Annotation == "" {
		p.Requests.Annotation = sticky.DefaultAnnotation
	}
	return c, nil
}
