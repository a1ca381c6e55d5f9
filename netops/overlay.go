package netops

import (
	"net/netip"
	"time"
)

// OverlayProtocol is the route protocol that marks routes of an Overlay
// (rtm_protocol; /etc/iproute2/rt_protos has no name for it). Its nexthop
// objects carry it too.
const OverlayProtocol = 142

// Nexthop objects of an Overlay are numbered within these ranges, the upper
// half for IPv6: the kernel has one space of numbers for both families.
const (
	OverlayNexthops4 = OverlayProtocol << 24
	OverlayNexthops6 = OverlayNexthops4 + 1<<23
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

// OverlayPeer is another node's pod network of one address family.
type OverlayPeer struct {
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

// OverlaySpec is what an Overlay makes so.
type OverlaySpec struct {
	// Device is nil where there are no tunnels (host-gw).
	Device *VTEP
	Peers  []OverlayPeer
	// Prune removes what is ours and in nobody's name any more. It is for complete
	// lists only.
	Prune bool
}

// OverlayOptions are what an Overlay is opened with.
type OverlayOptions struct {
	// IPv6 is the address family; IPv4 without.
	IPv6 bool
	// NoNexthops makes plain routes, as on a kernel that lacks nexthop objects.
	// IPv4 routes of one device then cost more the more there are.
	NoNexthops bool
	// Now is the clock, time.Now for nil.
	Now func() time.Time
}

// OverlayReport is what one Apply came to.
type OverlayReport struct {
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

// OverlayState is where a peer stands.
type OverlayState string

const (
	// OverlayProgrammed: all of the peer is in the kernel.
	OverlayProgrammed OverlayState = "programmed"
	// OverlayPending: not tried yet.
	OverlayPending OverlayState = "pending"
	// OverlayFailed: the last try failed, or the peer cannot be programmed as it is.
	OverlayFailed OverlayState = "failed"
)

// OverlayPeerState is a peer as the status shows it.
type OverlayPeerState struct {
	OverlayPeer
	// Tunnelled tells that packets go through the device. Direct peers go
	// without it where they can.
	Tunnelled bool
	// Route, FDB and Neighbour tell what the kernel holds of the peer. A peer
	// without a tunnel has only a route.
	Route, FDB, Neighbour bool
	State                 OverlayState
	// Since is when State began.
	Since time.Time
	// Err and RetryAt are a failed peer's.
	Err     error
	RetryAt time.Time
}

// HostLink is a network interface with what the choice of an underlay needs.
type HostLink struct {
	Name  string
	Index int
	// Kind is "" for physical ones and loopback.
	Kind string
	MAC  string
	MTU  int
	// Up is what was asked for; OperUp is whether it can carry traffic.
	Up, OperUp, Loopback bool
	Addresses            []HostAddr
	// Default4 and Default6 tell whether a default route leads over the link,
	// Metric4 and Metric6 the lowest of its metrics.
	Default4, Default6 bool
	Metric4, Metric6   int
}

// HostAddr is an address of a HostLink.
type HostAddr struct {
	Prefix netip.Prefix
	// Global is the scope; others are of the link or the host only.
	Global bool
	// Permanent addresses were set by hand; others have a lifetime.
	Permanent bool
	// Deprecated, Temporary (RFC 8981) and Tentative are IPv6's.
	Deprecated, Temporary, Tentative bool
}
