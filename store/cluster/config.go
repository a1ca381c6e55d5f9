package cluster

import "net/netip"

// Config is the network's configuration: flannel's net-conf.json.
type Config struct {
	EnableIPv4, EnableIPv6 bool
	// Network and IPv6Network are the cluster's pod networks.
	Network, IPv6Network netip.Prefix
	// SubnetLen is the length of a node's subnet where the registry hands them
	// out, SubnetMin and SubnetMax the first and the last of them.
	SubnetLen                    int
	SubnetMin, SubnetMax         netip.Addr
	IPv6SubnetLen                int
	IPv6SubnetMin, IPv6SubnetMax netip.Addr
	Backend                      Backend
}

// Backend tells how packets get to the other nodes.
type Backend struct {
	// Type is "vxlan" or "host-gw", in lower case.
	Type string
	// VNI and Port are the tunnel's; Port 0 is the kernel's 8472.
	VNI  uint32
	Port uint16
	// GBP and Learning are the device's flags.
	GBP, Learning bool
	// DirectRouting sends to nodes on the same link without a tunnel.
	DirectRouting bool
	// MTU is the underlay's; 0 takes the interface's.
	MTU int
}
