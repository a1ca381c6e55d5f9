package cluster

import (
	"cmp"
	"net/netip"
)

// Config is the network's configuration: flannel's net-conf.json.
type Config struct {
	EnableIPv4, EnableIPv6 bool
	// Network and IPv6Network are the cluster's pod networks.
	Network, IPv6Network netip.Prefix
	// SubnetLen is the prefix length of a node's subnet in a registry that assigns
	// subnets. SubnetMin and SubnetMax are the first and the last subnet.
	SubnetLen                    int
	SubnetMin, SubnetMax         netip.Addr
	IPv6SubnetLen                int
	IPv6SubnetMin, IPv6SubnetMax netip.Addr
	Backend                      Backend
}

// Values of Backend.Mode.
const (
	ModeAuto = "auto"
	ModeIPv4 = "ipv4"
	ModeIPv6 = "ipv6"
)

// SharesDevice reports whether one WireGuard device has the packets of both families.
func (c *Config) SharesDevice() bool { return c.Backend.Mode != "" && c.EnableIPv4 && c.EnableIPv6 }

// linuxVXLANPort is the default UDP port of VXLAN in Linux. flannel uses it too.
const linuxVXLANPort = 8472

// VXLANPort returns this node's UDP port of VXLAN.
func (b *Backend) VXLANPort() uint16 { return cmp.Or(b.OwnPort, b.networkPort()) }

// networkPort returns the UDP port of nodes that publish none: flanneld's, and agents with the network's port.
func (b *Backend) networkPort() uint16 { return cmp.Or(b.Port, linuxVXLANPort) }

// PublishedPort returns the port for this node's record: 0 if it is the network's, so that the record stays as flanneld writes it.
func (b *Backend) PublishedPort() uint16 {
	if b.VXLANPort() == b.networkPort() {
		return 0
	}
	return b.OwnPort
}

// PeerPort returns the port of a node whose record has this one.
func (b *Backend) PeerPort(published uint16) uint16 { return cmp.Or(published, b.networkPort()) }

// Switch returns "on" or "off", the values of Backend.TxChecksum.
func Switch(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// Backend defines how packets reach the other nodes.
type Backend struct {
	// Type is "vxlan", "host-gw" or "wireguard", in lower case.
	Type string
	// VNI and Port are the VXLAN tunnel's. Port 0 means the kernel's default, 8472. OwnPort is not a key of the configuration: it
	// replaces Port on this node unless it is 0.
	VNI           uint32
	Port, OwnPort uint16
	// GBP and Learning are flags of the VXLAN device.
	GBP, Learning bool
	// TxChecksum is "on" or "off" for TxChecksumOffload, or "" without the key.
	TxChecksum string
	// DirectRouting sends packets to nodes on the same link without a tunnel.
	DirectRouting bool
	// MTU is the underlay's. 0 means the interface's.
	MTU int
	// Mode is empty if each family has a WireGuard device. If one device has both families, Mode selects
	// the nodes' addresses that it sends to: "auto", "ipv4" or "ipv6".
	Mode string
	// ListenPort and ListenPortV6 are the UDP ports of WireGuard. PSK is the preshared key in base64, or
	// empty. Keepalive is the interval of keepalive packets in seconds, 0 for none.
	ListenPort, ListenPortV6 uint16
	PSK                      string
	Keepalive                uint16
}
