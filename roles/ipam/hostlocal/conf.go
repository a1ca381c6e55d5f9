package hostlocal

import (
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/leasing"
	"github.com/cnibox/cnibox/roles/sticky"
)

// defaultDataDir is where the reference plugin keeps its files.
const defaultDataDir = "/var/lib/cni/networks"

// Conf is host-local's network configuration. It gets the whole configuration
// of the plugin that delegates to it; its own keys are under "ipam".
type Conf struct {
	roles.NetConf
	// IPAM is required.
	IPAM *IPAM `json:"ipam"`
	// RuntimeConfig is what the runtime filled in for declared capabilities.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// Args holds conventional arguments (CNI conventions, "args.cni").
	Args leasing.Args `json:"args,omitzero"`
}

// IPAM is the "ipam" object.
type IPAM struct {
	// Type is "host-local".
	Type string `json:"type,omitempty"`
	// Ranges are range sets. A container gets one address of each set; a set
	// is a pool made of one or more ranges of one address family.
	Ranges [][]Range `json:"ranges,omitempty"`
	// Subnet with its rangeStart, rangeEnd and gateway is the older form: one
	// more range set, of one range, before those in ranges. Deprecated: use
	// ranges.
	Subnet string `json:"subnet,omitempty"`
	// RangeStart belongs to ipam.subnet, as in ranges.
	RangeStart string `json:"rangeStart,omitempty"`
	// RangeEnd belongs to ipam.subnet, as in ranges.
	RangeEnd string `json:"rangeEnd,omitempty"`
	// Gateway belongs to ipam.subnet, as in ranges.
	Gateway string `json:"gateway,omitempty"`
	// Exclude are addresses and CIDRs that are never handed out of any range.
	Exclude []string `json:"exclude,omitempty"`
	// Routes are copied to the result.
	Routes []roles.Route `json:"routes,omitempty"`
	// DataDir names the pool together with the network, and is where the
	// reference plugin's files are taken over from, once. It is never written.
	// Default /var/lib/cni/networks.
	DataDir string `json:"dataDir,omitempty"`
	// ResolvConf is a file in the form of resolv.conf(5); what it says becomes
	// the result's dns.
	ResolvConf string `json:"resolvConf,omitempty"`
	// Sticky lets a pod get the same addresses again after a restart. Without
	// it, as in the reference, any pod may get a released address.
	Sticky *sticky.Conf `json:"sticky,omitempty"`
	// Requests says how pods ask for addresses.
	Requests leasing.Requests `json:"requests,omitzero"`
}

// Range is a part of a subnet from which addresses are handed out.
type Range struct {
	// Subnet is a CIDR without host bits. Required.
	Subnet string `json:"subnet,omitempty"`
	// RangeStart is the first address. Default: that of the subnet, for IPv4
	// prefixes up to 30 bits the one after the network's.
	RangeStart string `json:"rangeStart,omitempty"`
	// RangeEnd is the last address, which is handed out too. Default: that of
	// the subnet, for IPv4 prefixes up to 30 bits the one before the broadcast
	// address.
	RangeEnd string `json:"rangeEnd,omitempty"`
	// Gateway is in the result and is never handed out. Default: the first
	// host address of the subnet; none for /32 and /128.
	Gateway string `json:"gateway,omitempty"`
	// Exclude are addresses and CIDRs of the subnet that are never handed out.
	Exclude []string `json:"exclude,omitempty"`
}

// RuntimeConfig holds the capabilities ipRanges, ips, mac and
// io.kubernetes.cri.pod-annotations.
type RuntimeConfig struct {
	// IPRanges are range sets before all those of the configuration.
	IPRanges [][]Range `json:"ipRanges,omitempty"`
	// IPs are requested addresses, at most one for each range set. A prefix
	// length is ignored.
	IPs []string `json:"ips,omitempty"`
	// MAC is the interface's hardware address, which sticky addresses can belong to.
	MAC string `json:"mac,omitempty"`
	// Annotations are the pod's.
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations,omitempty"`
}

// decode reads a configuration and fills in what has a constant default.
// Defaults that follow from a subnet are filled in when it is parsed.
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
