package cloud

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/azureview"
	"github.com/cnibox/cnibox/roles/leasing"
	"github.com/cnibox/cnibox/roles/sticky"
)

// Conf is the role's network configuration. It gets the whole configuration of
// the plugin that delegates to it; its own keys are under "ipam".
type Conf struct {
	roles.NetConf
	azureview.Conf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
	// Master is the interface plugin's: only addresses of that link's NIC are
	// given. Default: of every NIC.
	Master string `json:"master,omitempty"`
	// RuntimeConfig is what the runtime filled in for declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// Args holds conventional arguments (CNI conventions, "args.cni").
	Args leasing.Args `json:"args,omitzero"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "cloud-ipam" or "azure-vnet-ipam".
	Type string `json:"type,omitempty"`
	// Provider is the cloud that is asked, a name that `cnibox cloud show --providers`
	// lists. Default: what the machine's firmware suggests ("auto"); for
	// azure-vnet-ipam, what environment says.
	Provider string `json:"provider,omitempty"`
	// URL is asked instead of the provider's own, such as
	// "http://168.63.129.16".
	URL string `json:"url,omitempty"`
	// File is what the provider "file" reads. Default
	// "/etc/kubernetes/interfaces.json".
	File string `json:"file,omitempty"`
	// Environment is azure-vnet-ipam's name of a provider: "azure", or "mas" and
	// "fileIpam" for the provider "file". Default for azure-vnet-ipam: "azure".
	Environment string `json:"environment,omitempty"`
	// QueryInterval is the least time between two questions to the cloud, for all
	// processes together: "10s", or a number of seconds. Default "10s".
	QueryInterval sticky.Span `json:"queryInterval,omitzero"`
	// Cooldown is how long a released address is given to nobody else. Default "30s".
	Cooldown sticky.Span `json:"cooldown,omitzero"`
	// NIC restricts the addresses to those of one NIC: its MAC, or the name of the
	// link. Default: master's, else every NIC's.
	NIC string `json:"nic,omitempty"`
	// Family is "ipv4", "ipv6" or "dual" for an address of each. Default "ipv4".
	Family string `json:"family,omitempty"`
	// AddressSpace is azure-vnet-ipam's, which has no other here than "local".
	AddressSpace string `json:"addressSpace,omitempty"`
	// Subnet restricts the addresses to those of one subnet, a CIDR. Default: all.
	Subnet string `json:"subnet,omitempty"`
	// IPAddress is the address to give, unless the runtime asks for one. Default: any.
	IPAddress string `json:"ipAddress,omitempty"`
	// Mode is azure-vnet-ipam's; it has no effect.
	Mode string `json:"mode,omitempty"`
	// Routes are the result's. Default: a default route over the gateway of each address.
	Routes []roles.Route `json:"routes,omitempty"`
	// DNS is the result's. Default: what the cloud tells.
	DNS types.DNS `json:"dns,omitzero"`
	// Sticky lets a pod get the same addresses again after a restart. Without
	// it a released address is anybody's after the cool-down.
	Sticky *sticky.Conf `json:"sticky,omitempty"`
	// Requests says how pods ask for addresses.
	Requests leasing.Requests `json:"requests,omitzero"`
}

// RuntimeConfig holds the capabilities ips, mac and
// io.kubernetes.cri.pod-annotations.
type RuntimeConfig struct {
	// IPs are requested addresses, at most one of each family. A prefix length is
	// ignored.
	IPs []string `json:"ips,omitempty"`
	// MAC is the interface's hardware address, whom addresses can stick to.
	MAC string `json:"mac,omitempty"`
	// Annotations are the pod's.
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations,omitempty"`
}

// The names of the role; the second is for configurations of Azure's plugin.
const typeName, azureType = "cloud-ipam", "azure-vnet-ipam"

// decode reads a configuration and fills in defaults.
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
