// Package overlay is the kernel's part of an overlay network: VXLAN devices, routes to
// other nodes, and the packet filter.
package overlay

import (
	"net/netip"
	"time"
)

// Protocol is the route protocol that marks routes of an overlay
// (rtm_protocol; /etc/iproute2/rt_protos has no name for it). Its nexthop
// objects carry it too.
const Protocol = 142

// Nexthop objects of an overlay are numbered within these ranges, the upper
// half for IPv6: the kernel has one space of numbers for both families.
const (
	Nexthops4 = Protocol << 24
	Nexthops6 = Nexthops4 + 1<<23
)

// VXLANPort is what Linux takes for VXLAN where no port is given. It is older
// than IANA's 4789, and flannel's.
const VXLANPort = 8472

// VTEP is a VXLAN device (VXLAN tunnel end point, RFC 7348) of one address family.
type VTEP struct {
	// Name is the device's. It must be free, or a VXLAN device's: that is taken over.
	Name string
	VNI  uint32
	// Port is the UDP port of both ends, VXLANPort for 0.
	Port uint16
	// Parent is the link that tunnelled packets leave by, and Local the address
	// that they come from.
	Parent string
	Local  netip.Addr
	// MAC is in the usual colon form. The kernel chooses one for "".
	MAC string
	// MTU is the device's: the parent's less 50 bytes for IPv4, 70 for IPv6.
	MTU int
	// Learning and GBP are the device's flags of these names.
	Learning, GBP bool
	// Address is the device's own: the first of the node's subnet, as a /32 or /128.
	Address netip.Prefix
	// Network is the cluster's pod network. Other addresses of the device within
	// it are removed.
	Network netip.Prefix
}

// Peer is another node's pod network of one address family.
type Peer struct {
	// Name tells peers apart.
	Name   string
	Subnet netip.Prefix
	// Gateway is the node's own address, which tunnelled packets are sent to.
	Gateway netip.Addr
	// MAC is that of the peer's VTEP. Packets to it go to the neighbour
	// Subnet.Addr(). Unused without a tunnel.
	MAC string
	// Direct sends without a tunnel where the gateway is on one of the host's
	// links. Without a device all peers are Direct.
	Direct bool
}

// Spec is what Apply makes so.
type Spec struct {
	// Device is nil where there are no tunnels (host-gw).
	Device *VTEP
	Peers  []Peer
	// Prune removes what is ours and in nobody's name any more. It is for complete
	// lists only.
	Prune bool
}

// Options are what Open is called with.
type Options struct {
	// IPv6 is the address family; IPv4 without.
	IPv6 bool
	// NoNexthops makes plain routes, as on a kernel that lacks nexthop objects.
	// IPv4 routes of one device then cost more the more there are.
	NoNexthops bool
	// Now is the clock, time.Now for nil.
	Now func() time.Time
}

// Report is what one Apply came to.
type Report struct {
	// MAC is the device's, "" without one.
	MAC string
	// Wanted counts the peers, Programmed those that are as they should be.
	Wanted, Programmed int
	// Writes counts the kernel objects that were made, changed or deleted.
	Writes int
	// Dumped tells that the kernel was read, not remembered.
	Dumped bool
	// RetryAt is when the earliest of the failed peers may be tried again; zero
	// if none failed.
	RetryAt time.Time
	// Warnings are faults that keep no peer from working (a sysctl that cannot
	// be written).
	Warnings []error
}

// State is where a peer stands.
type State string

const (
	// Programmed: all of the peer is in the kernel.
	Programmed State = "programmed"
	// Pending: not tried yet.
	Pending State = "pending"
	// Failed: the last try failed, or the peer cannot be programmed as it is.
	Failed State = "failed"
)

// PeerState is a peer as the status shows it.
type PeerState struct {
	Peer
	// Tunnelled tells that packets go through the device. Direct peers go
	// without it where they can.
	Tunnelled bool
	// Route, FDB and Neighbour tell what the kernel holds of the peer. A peer
	// without a tunnel has only a route.
	Route, FDB, Neighbour bool
	State                 State
	// Since is when State began.
	Since time.Time
	// Err and RetryAt are a failed peer's.
	Err     error
	RetryAt time.Time
}
