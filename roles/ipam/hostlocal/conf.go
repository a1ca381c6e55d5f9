package hostlocal

import (
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
)

// defaultDataDir is the reference plugin's default directory.
const defaultDataDir = "/var/lib/cni/networks"

// Conf is host-local's network configuration. The role gets the complete configuration of the
// plugin that delegates to it. Its own keys are in "ipam".
type Conf struct {
	roles.NetConf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
	// RuntimeConfig has the runtime's values of declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// Args has conventional arguments (CNI conventions, "args.cni").
	Args leasing.Args `json:"args,omitzero"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "host-local".
	Type string `json:"type,omitempty"`
	// Ranges are range sets. A container gets one address of each set. A set has one or more ranges
	// of one address family.
	Ranges [][]Range `json:"ranges,omitempty"`
	// Subnet, with rangeStart, rangeEnd and gateway, is the older form: a range set with one range,
	// before those in ranges. Deprecated: use ranges.
	Subnet string `json:"subnet,omitempty"`
	// RangeStart belongs to ipam.subnet, as in ranges.
	RangeStart string `json:"rangeStart,omitempty"`
	// RangeEnd belongs to ipam.subnet, as in ranges.
	RangeEnd string `json:"rangeEnd,omitempty"`
	// Gateway belongs to ipam.subnet, as in ranges.
	Gateway string `json:"gateway,omitempty"`
	// Exclude has addresses and CIDRs that are not allocated, for all ranges.
	Exclude []string `json:"exclude,omitempty"`
	// Routes are copied to the result.
	Routes []roles.Route `json:"routes,omitempty"`
	// DataDir is the directory of the reference plugin's files, which are imported. Networks of one
	// name with different directories have different pools. Default: /var/lib/cni/networks.
	DataDir string `json:"dataDir,omitempty"`
	// Mirror repeats each address in use as a file in dataDir, as the reference plugin does, so that its
	// binaries can replace cnibox at any time. With false ADD does not write dataDir. Default true.
	Mirror *bool `json:"mirror,omitempty"`
	// ResolvConf is a file in the format of resolv.conf(5). The result's dns has its content.
	ResolvConf string `json:"resolvConf,omitempty"`
	// Sticky gives a pod the same addresses after a restart. Without it any pod can get a released
	// address, as with the reference.
	Sticky *sticky.Conf `json:"sticky,omitempty"`
	// Requests defines how pods request addresses.
	Requests leasing.Requests `json:"requests,omitzero"`
}

// Range is the part of a subnet whose addresses are allocated.
type Range struct {
	// Subnet is a CIDR without host bits. Required.
	Subnet string `json:"subnet,omitempty"`
	// RangeStart is the first address. Default: the first of the subnet, or the one after the network
	// address for IPv4 prefixes up to 30 bits.
	RangeStart string `json:"rangeStart,omitempty"`
	// RangeEnd is the last address, which is allocated, too. Default: the last of the subnet, or the
	// one before the broadcast address for IPv4 prefixes up to 30 bits.
	RangeEnd string `json:"rangeEnd,omitempty"`
	// Gateway is in the result and is not allocated. Default: the first host address of the subnet,
	// none for /32 and /128. It is in the subnet, or a link-local address; that of a subnet of one or two addresses may be elsewhere.
	Gateway string `json:"gateway,omitempty"`
	// Exclude has addresses and CIDRs of the subnet that are not allocated.
	Exclude []string `json:"exclude,omitempty"`
}

// RuntimeConfig has the capabilities ipRanges, ips, mac and io.kubernetes.cri.pod-annotations.
type RuntimeConfig struct {
	// IPRanges are range sets before all those of the configuration.
	IPRanges [][]Range `json:"ipRanges,omitempty"`
	// IPs are requested addresses, at most one of each range set. A prefix length is ignored.
	IPs []string `json:"ips,omitempty"`
	// MAC is the interface's hardware address, which can identify the owner of sticky addresses.
	MAC string `json:"mac,omitempty"`
	// Annotations are the pod's annotations.
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations,omitempty"`
}

// decode decodes a configuration and sets the constant defaults. Defaults that depend on a subnet
// are set when it is parsed.
func decode(conf []byte) (*Conf, error) {
	c := new(Conf)
	if err := roles.Decode(conf, c); err != nil {
		return nil, err
	}
	return c.withDefaults(), nil
}

func (c *Conf) withDefaults() *Conf {
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0"
	}
	if c.IPAM != nil && c.IPAM.DataDir == "" {
		c.IPAM.DataDir = defaultDataDir
	}
	if c.IPAM != nil && c.IPAM.Requests.Annotation == "" {
		c.IPAM.Requests.Annotation = sticky.DefaultAnnotation
	}
	return c
}
