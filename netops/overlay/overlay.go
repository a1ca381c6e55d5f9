// Package overlay maintains the kernel objects of an overlay network: VXLAN and
// WireGuard devices, routes to other nodes, and the packet filter.
//
// The device with its settings, sysctls and addresses is made of netops objects: vtep.go. The
// objects of 10,000 peers are 40,000. They are read in dumps, compared in memory, and made with
// 100 requests in one write: want.go decides what the peers need, have.go knows what the kernel
// has, objects.go says for each kind how both are compared, program.go does so in the right order,
// and op.go makes the difference. judge.go decides whether a
// notification requires another Apply.
package overlay

import (
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Protocol is the route protocol of an overlay's routes and nexthop objects
// (rtm_protocol). /etc/iproute2/rt_protos has no name for it.
const Protocol = 142

// Nexthops4 and Nexthops6 are the first numbers of the ranges for an overlay's
// nexthop objects. The kernel has one range of numbers for both families, so IPv4
// has the lower half and IPv6 the upper half.
const (
	Nexthops4 = Protocol << 24
	Nexthops6 = Nexthops4 + 1<<23
)

// VTEP is a tunnel device of one address family: a VXLAN device (VXLAN tunnel end
// point, RFC 7348), or a WireGuard device if WireGuard has a private key.
type VTEP struct {
	// Name is the device's name. If a device of the same kind has this name, it is
	// taken over. No other link may have it.
	Name string
	// WireGuard has the keys of a WireGuard device. Such a device has no VNI, Parent,
	// Local, MAC, Learning and GBP.
	WireGuard WireGuard
	VNI       uint32
	// Port is the UDP port of both VXLAN ends, or the port on which a WireGuard device
	// receives.
	Port uint16
	// Parent is the link by which tunnelled packets leave. Local is their source
	// address.
	Parent string
	Local  netip.Addr
	// MAC is the device's MAC in colon form. The kernel chooses one for "".
	MAC string
	// MTU is the device's MTU: the parent's MTU less 50 bytes for IPv4 or 70
	// bytes for IPv6.
	MTU int
	// Learning and GBP are the device's flags with these names.
	Learning, GBP bool
	// TxChecksum switches the offload of checksums of a VXLAN device "on" or "off". "" leaves it unchanged.
	TxChecksum string
	// Address is the device's address: the first address of the node's subnet, as
	// a /32 or /128.
	Address netip.Prefix
	// Network is the cluster's pod network. Other addresses of the device in this
	// network are removed.
	Network netip.Prefix
}

// MAC is an Ethernet address. The zero MAC stands for none.
type MAC [6]byte

// String returns the colon form, or "" for the zero MAC.
func (m MAC) String() string {
	if m == (MAC{}) {
		return ""
	}
	return net.HardwareAddr(m[:]).String()
}

// isUnicast reports whether m is the address of one interface.
func (m MAC) isUnicast() bool { return m != MAC{} && m[0]&1 == 0 }

// Peer is another node's pod network of one address family.
type Peer struct {
	// Name identifies the peer.
	Name   string
	Subnet netip.Prefix
	// OtherSubnet is the node's pod network of the other family if both families use the
	// same WireGuard device. All peers of such a device need both networks, so that both
	// overlays want the same peers.
	OtherSubnet netip.Prefix
	// Gateway is the node's address, to which tunnelled packets are sent.
	Gateway netip.Addr
	// Key is the peer's public key in base64, and Port its UDP port. Only WireGuard
	// uses them.
	Key  string
	Port uint16
	// MAC is the MAC of the peer's VTEP. The neighbour Subnet.Addr() has this
	// MAC. It is not used without a tunnel.
	MAC MAC
	// Direct sends packets without a tunnel if the gateway is on one of the
	// host's links. Without a device all peers are Direct.
	Direct bool
}

// Spec is the state that Apply makes.
type Spec struct {
	// Device is nil if there are no tunnels (host-gw).
	Device *VTEP
	// Network is the cluster's pod network. Other programs' routes in it are watched. A
	// WireGuard device has one route, to this network.
	Network netip.Prefix
	Peers   []Peer
	// Nodes has the addresses of all known nodes by their pod network, also of nodes that are no peers.
	// A WireGuard device needs it to delete the routes to these networks over these addresses, which
	// flannel's host-gw and DirectRouting made.
	Nodes map[netip.Prefix]netip.Addr
	// Prune removes the overlay's objects that no peer needs. It requires a
	// complete list of peers.
	Prune bool
}

// Options are the options of Open.
type Options struct {
	// IPv6 selects IPv6 instead of IPv4.
	IPv6 bool
	// NoNexthops makes routes without nexthop objects, as on a kernel that lacks
	// them. The cost of an IPv4 route then grows with the number of the device's
	// routes.
	NoNexthops bool
	// Now is the clock. nil means time.Now.
	Now func() time.Time
}

// Report is the result of one Apply.
type Report struct {
	// MAC is the device's MAC, or "" without a device.
	MAC string
	// Wanted is the number of peers. Programmed is the number of peers that are
	// completely in the kernel.
	Wanted, Programmed int
	// Missing are the names of the other peers, in the order of the spec.
	Missing []string
	// Writes is the number of kernel objects that were made, changed or deleted.
	Writes int
	// Dumped reports whether Apply read the kernel instead of using the
	// remembered state.
	Dumped bool
	// Losses is the number of times since Open that notifications of the kernel were
	// lost. The kernel was read again after each of them.
	Losses int
	// RetryAt is the earliest time for another try of a failed peer. It is zero
	// if no peer failed.
	RetryAt time.Time
	// Repaired has, by kind, the number of kernel objects that were missing or changed without a change
	// of the spec, and were restored. FirstRepair is the first request for that.
	Repaired    map[string]int
	FirstRepair string
	// Failed is the number of peers in this state. Refused has, by error number, the number of requests
	// that the kernel refused.
	Failed  int
	Refused map[syscall.Errno]int
	// Links are the indexes of the links over which a WireGuard device sends to its peers.
	Links []int
	// Detours are other programs' routes that the kernel prefers to those of peers.
	Detours []Detour
	// Warnings are faults that do not affect peers, for example a sysctl that
	// cannot be written.
	Warnings []error
}

// Detour is another program's route to a peer's network or to a part of it. The overlay does not
// delete it.
type Detour struct {
	Route netip.Prefix
	Peer  string
}

// State is the state of a peer.
type State string

const (
	// Programmed means that all of the peer's objects are in the kernel.
	Programmed State = "programmed"
	// Pending means that the peer was not tried yet.
	Pending State = "pending"
	// Failed means that the last try failed, or that the peer cannot be
	// programmed.
	Failed State = "failed"
)

// PeerState is a peer with its state, for the status.
type PeerState struct {
	Peer
	// Tunnelled reports whether packets go through the device. Packets to Direct
	// peers go without it if possible.
	Tunnelled bool
	// Route, FDB and Neighbour report which objects of the peer are in the
	// kernel. A peer without a tunnel has only a route.
	Route, FDB, Neighbour bool
	State                 State
	// Endpoint, Handshake, Received and Sent are set for a peer of WireGuard: the address
	// that packets are sent to now, the time of the last handshake, zero for none, and
	// numbers of bytes.
	Endpoint       netip.AddrPort
	Handshake      time.Time
	Received, Sent uint64
	// Since is the time when State began.
	Since time.Time
	// Err and RetryAt are set for a failed peer.
	Err     error
	RetryAt time.Time
}
