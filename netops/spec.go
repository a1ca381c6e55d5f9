// Package netops holds desired kernel network state and makes it so.
//
// A role describes what it wants as a [Spec]: plain values, in the order in
// which they are to be made. The verbs of [Net] work on it:
//
//   - [Net.Plan] reads the kernel and lists the changes that lead to the Spec,
//     each with its inverse; nothing is written.
//   - [Net.Apply] makes planned changes; the first failure undoes, in reverse,
//     what this call did.
//   - [Net.Verify] lists every difference between Spec and kernel.
//   - [Net.Undo] runs stored inverses; what is absent is success.
//
// It is the only package that speaks netlink, enters namespaces or writes
// sysctls. No other program is executed.
package netops

import "net/netip"

// Place tells in which network namespace an object is: one of an attachment's two,
// or one with a name (see Named).
type Place string

const (
	// Host is the namespace that the process runs in.
	Host Place = "host"
	// Container is the namespace named by CNI_NETNS.
	Container Place = "container"
)

// Spec is the desired kernel state of one attachment, in the order in which
// it is made. It is a value: printable, comparable, without I/O.
type Spec struct {
	Objects []Object
}

// Add appends objects to the Spec.
func (s *Spec) Add(o ...Object) { s.Objects = append(s.Objects, o...) }

// Object is one piece of kernel state: *Link, *Move, *Addr, *Route, *Neigh, *Rule,
// *Sysctl, *PortVLANs, *Qdisc, *Redirect, *Element,
// *Forward, *ZoneSource, *VRF, *Flows, *Takeover, *LinkDNS or *Netns.
//
// An object is either exclusive (it belongs to one attachment; one that exists
// already is an error) or shared (it is ensured, and never undone by an
// attachment, not even by one that fails: a parallel one may stand on it).
type Object interface {
	// Where is the namespace that the object lives in.
	Where() Place
	// IsShared tells whether the object is shared between attachments.
	IsShared() bool
	// String is one line for people, of the form of iproute2 or nft.
	String() string

	object() // sealed
}

// Link is a network interface. Only what is set is compared by Verify.
type Link struct {
	In     Place  `json:"in"`
	Shared bool   `json:"shared,omitempty"`
	Name   string `json:"name"`
	// Kind is the kernel's: "bridge", "veth", …; empty means that the link
	// must exist already (lo, a device that another made) and is only set up.
	Kind string `json:"kind,omitempty"`
	// MAC is in the usual colon form; empty leaves the choice to the kernel.
	MAC string `json:"mac,omitempty"`
	MTU int    `json:"mtu,omitempty"`
	Up  bool   `json:"up,omitempty"`
	// Down asks for the link to be down (loopback DEL, a port that must not be up).
	Down bool `json:"down,omitempty"`
	// Alias is the ifalias label, at most 120 bytes here.
	Alias  string `json:"alias,omitempty"`
	Master string `json:"master,omitempty"`
	// Promisc turns promiscuous mode on, AllMulti the reception of all multicasts.
	Promisc  bool `json:"promisc,omitempty"`
	AllMulti bool `json:"allMulti,omitempty"`
	// TxQLen is the length of the transmit queue in packets.
	TxQLen *uint32 `json:"txQLen,omitempty"`
	// Peer is the other end, for Kind "veth". It is made and deleted with the link.
	Peer   *Peer   `json:"peer,omitempty"`
	Bridge *Bridge `json:"bridge,omitempty"`
	Port   *Port   `json:"port,omitempty"`
	// Parent is the link below one of Kind "macvlan", "ipvlan", "vlan" or "vxlan",
	// in ParentIn.
	Parent   string `json:"parent,omitempty"`
	ParentIn Place  `json:"parentIn,omitempty"`
	// Mode is that of a macvlan (bridge, private, vepa, passthru) or ipvlan
	// (l2, l3, l3s).
	Mode string `json:"mode,omitempty"`
	// BCQueueLen is a macvlan's queue for received broadcasts; 0 leaves it to the kernel.
	BCQueueLen uint32 `json:"bcQueueLen,omitempty"`
	// VLANID is that of a link of Kind "vlan".
	VLANID int `json:"vlanId,omitempty"`
	// VNI is the number of a link of Kind "vxlan", and Group4 the IPv4 multicast
	// group by which its ends find each other, on port 4789. (The overlay's device is
	// an Overlay.)
	VNI    int        `json:"vni,omitempty"`
	Group4 netip.Addr `json:"group4,omitzero"`
	// Owner and Group may open a link of Kind "tun" (a tap device) without
	// CAP_NET_ADMIN: who is both where both are set, and anybody where neither is.
	Owner *uint32 `json:"owner,omitempty"`
	Group *uint32 `json:"group,omitempty"`
	// MultiQueue lets a tap device be opened more than once.
	MultiQueue bool `json:"multiQueue,omitempty"`
	// Unset turns off what the zero values above leave alone. It is how
	// inverses put a link back that was set up.
	Unset *Unset `json:"unset,omitempty"`
	// Index is the link that an inverse sets back, whatever its name is by then;
	// another's link may have that.
	Index int `json:"index,omitempty"`
}

// Move takes a link that exists into the other namespace, under another name
// and down; its addresses and routes stay behind. It must be of no bridge or
// bond, and no attachment's already.
//
// Its inverse brings it back, whatever its name is by then, with the name,
// alias and state that it had; when the container is gone the kernel brings the
// device back to the initial namespace itself, soon but not at once, under a
// name that may differ, and the inverse finds it by its alias or its permanent
// address. (Virtual devices, a veth for one, go with their namespace instead.)
// One that is nowhere is success. If its name has been taken in the meantime
// the link stays under a name that the kernel gives, dev0 for one.
type Move struct {
	// Name is the link's in From, As the one in To. An inverse without a Name
	// takes the second word of the link's alias for it, and without one leaves
	// the link the name that it has, if that is free.
	From Place  `json:"from"`
	Name string `json:"name,omitempty"`
	To   Place  `json:"to"`
	As   string `json:"as"`
	// Alias is the label that the link has while it is moved.
	Alias string `json:"alias"`
	// Back is the alias that the link gets back, Up its state. Kind and MAC are
	// the link's own; MAC is the permanent address where there is one. Plan
	// fills all of these in the inverse.
	Back string `json:"back,omitempty"`
	Up   bool   `json:"up,omitempty"`
	Kind string `json:"kind,omitempty"`
	MAC  string `json:"mac,omitempty"`
}

// Unset names properties of a Link that are to be taken away.
type Unset struct {
	Promisc  bool `json:"promisc,omitempty"`
	AllMulti bool `json:"allMulti,omitempty"`
	Master   bool `json:"master,omitempty"`
	Alias    bool `json:"alias,omitempty"`
}

// Peer is the other end of a veth pair.
type Peer struct {
	In   Place  `json:"in"`
	Name string `json:"name"`
	MAC  string `json:"mac,omitempty"`
	MTU  int    `json:"mtu,omitempty"`
	// Up and Master are for a peer that stays in the link's namespace. One in
	// another is set up by a Link of its own, without a kind.
	Up bool `json:"up,omitempty"`
	// Master enslaves the peer.
	Master string `json:"master,omitempty"`
}

// Bridge holds what only a link of Kind "bridge" has. It is used when the
// bridge is made; a bridge that exists is not reconfigured, but for KeepMAC.
type Bridge struct {
	VLANFiltering bool `json:"vlanFiltering,omitempty"`
	// KeepMAC sets the MAC of a bridge that exists to what it is: one that was
	// never set follows the lowest of its ports'.
	KeepMAC bool `json:"keepMAC,omitempty"`
}

// PortVLANs is the complete VLAN list of one bridge port (RTM_NEWLINK, AF_BRIDGE).
type PortVLANs struct {
	In    Place  `json:"in"`
	Link  string `json:"link"`
	VLANs []VLAN `json:"vlans"`
	// KeepDefault leaves the bridge's default VLAN (usually 1) on the port.
	KeepDefault bool `json:"keepDefault,omitempty"`
	// Self addresses the bridge device itself instead of a port of it.
	Self bool `json:"self,omitempty"`
	// SharedPort marks a port that belongs to a shared link.
	SharedPort bool `json:"shared,omitempty"`
}

// VLAN is a range of VLAN IDs on a bridge port; ID alone when End is 0.
type VLAN struct {
	ID       uint16 `json:"id"`
	End      uint16 `json:"end,omitempty"`
	PVID     bool   `json:"pvid,omitempty"`
	Untagged bool   `json:"untagged,omitempty"`
}

// Addr is an address of a link. IPv6 addresses are added without duplicate
// address detection (IFA_F_NODAD) unless DAD is set.
type Addr struct {
	In      Place        `json:"in"`
	Shared  bool         `json:"shared,omitempty"`
	Link    string       `json:"link"`
	Address netip.Prefix `json:"address"`
	DAD     bool         `json:"dad,omitempty"`
	// Replace removes other addresses of the same family that conflict with
	// this one (bridge forceAddress): any other for IPv4, overlapping for IPv6.
	Replace bool `json:"replace,omitempty"`
	// Sole makes a conflicting other address an error (see Replace) wrapping ErrConflict.
	Sole bool `json:"sole,omitempty"`
	// NoPrefixRoute adds the address without the kernel's connected route.
	NoPrefixRoute bool `json:"noPrefixRoute,omitempty"`
}

// Route is a route over a link. Routes are appended, so two attachments of
// one container may each bring a default route.
type Route struct {
	In     Place        `json:"in"`
	Shared bool         `json:"shared,omitempty"`
	Link   string       `json:"link"`
	Dst    netip.Prefix `json:"dst"`
	Via    netip.Addr   `json:"via,omitzero"`
	Src    netip.Addr   `json:"src,omitzero"`
	MTU    int          `json:"mtu,omitempty"`
	AdvMSS int          `json:"advmss,omitempty"`
	// Priority is the metric; 0 leaves it to the kernel.
	Priority int `json:"priority,omitempty"`
	// Table is a routing table number; 0 means main.
	Table int `json:"table,omitempty"`
	// Protocol is who made the route, RTPROT_*; 0 means boot. The kernel removes
	// only routes of its own (2) when an address goes.
	Protocol int `json:"protocol,omitempty"`
	// Scope is RT_SCOPE_*; nil means universe with a gateway and link without.
	Scope  *int `json:"scope,omitempty"`
	OnLink bool `json:"onlink,omitempty"`
	// Local makes it a route to the node itself, for what comes in by the link;
	// it is in the table local then, and has no gateway.
	Local bool `json:"local,omitempty"`
	// Absent asks for the route to be away: one that is there is deleted, and
	// the inverse puts it back as it was.
	Absent bool `json:"absent,omitempty"`
	// LinkIndex is the link that an inverse puts the route back on: another's
	// may have its name by then.
	LinkIndex int `json:"linkIndex,omitempty"`
}

// Neigh is a permanent neighbour (ARP or ND) entry, or with an invalid IP and
// FDB set, a static forwarding entry of a bridge port or VXLAN device.
type Neigh struct {
	In     Place      `json:"in"`
	Shared bool       `json:"shared,omitempty"`
	Link   string     `json:"link"`
	IP     netip.Addr `json:"ip,omitzero"`
	MAC    string     `json:"mac"`
	FDB    bool       `json:"fdb,omitempty"`
	// Replace takes the place of another entry for the address instead of failing.
	Replace bool `json:"replace,omitempty"`
}

// Rule is a policy routing rule.
type Rule struct {
	In       Place        `json:"in"`
	Shared   bool         `json:"shared,omitempty"`
	Family   int          `json:"family"` // unix.AF_INET or AF_INET6
	Priority int          `json:"priority,omitempty"`
	From     netip.Prefix `json:"from,omitzero"`
	To       netip.Prefix `json:"to,omitzero"`
	IIF      string       `json:"iif,omitempty"`
	OIF      string       `json:"oif,omitempty"`
	Mark     uint32       `json:"mark,omitempty"`
	Mask     uint32       `json:"mask,omitempty"`
	Table    int          `json:"table"`
	// Prohibit refuses what fits instead of looking up a table, which is 0 then: the
	// sender is told (ICMP type 3 code 13, type 1 code 1).
	Prohibit bool `json:"prohibit,omitempty"`
	// IPProto is a protocol's number (IPPROTO_*) and DstPort a destination port of it.
	IPProto uint8  `json:"ipProto,omitempty"`
	DstPort uint16 `json:"dstPort,omitempty"`
	// MinBits has the rule take only a route whose prefix has at least so many bits
	// (suppress_prefixlength of one less): of 32, host routes only.
	MinBits int `json:"minBits,omitempty"`
	// Protocol is who made the rule, as a Route's; it is not compared.
	Protocol int `json:"protocol,omitempty"`
}

// Sysctl is a file under /proc/sys/net, written only when it differs.
type Sysctl struct {
	In     Place `json:"in"`
	Shared bool  `json:"shared,omitempty"`
	// Key has slashes, without /proc/sys: "net/ipv4/conf/eth0/arp_notify".
	Key   string `json:"key"`
	Value string `json:"value"`
	// Optional makes a missing file no error (IPv6 switched off in the kernel).
	Optional bool `json:"optional,omitempty"`
}

// Flows selects tracked connections that must not outlive a change: the kernel
// sends the packets of a connection where its first one went, whatever the NAT
// rules have become. In a Spec it is one change, which deletes the connections
// after all else is made; its inverse deletes them after all else is undone.
// That there are none is success, as is a kernel without connection tracking.
type Flows struct {
	In Place `json:"in"`
	// Proto is "tcp", "udp" or "sctp".
	Proto string `json:"proto"`
	// Port is the destination port that the connection's first packet had; Port
	// to End where End is not 0.
	Port uint16 `json:"port"`
	End  uint16 `json:"end,omitempty"`
	// Dst is the destination address that the first packet had; none means any,
	// and an unspecified one (0.0.0.0, ::) any of its family.
	Dst netip.Addr `json:"dst,omitzero"`
	// ReplySrc is the address that answers: the container's, behind a mapped
	// port. None means any.
	ReplySrc netip.Addr `json:"replySrc,omitzero"`
	// Local leaves out connections whose first packet was to no address of the
	// namespace's own: forwarded ones to the same port elsewhere go on.
	Local bool `json:"local,omitempty"`

	// local are the namespace's own addresses, where they matter.
	local map[netip.Addr]bool
}

// ZoneSource is an address that firewalld takes for a source of a zone. It is
// firewalld's runtime configuration, which a reload drops: Verify tells, and the
// next change to a source of the zone puts all recorded ones back.
type ZoneSource struct {
	Zone    string     `json:"zone"`
	Address netip.Addr `json:"address"`
}

// VRF is a link's membership of a VRF (Documentation/networking/vrf.rst). The
// device is made for its first member, brought up, and deleted with its last.
// Whoever adds or removes members has to see to it that nobody else does in the
// same namespace meanwhile.
//
// A link that is up is taken down and up again as it enters and leaves: its
// routes go, but those that the kernel makes for its addresses, which move to
// the VRF's table; its IPv6 addresses go as well, unless keep_addr_on_down is set.
type VRF struct {
	In Place `json:"in"`
	// Name is the device's, Table its routing table.
	Name  string `json:"name"`
	Table int    `json:"table"`
	// Link is the member. It must be of no VRF, bridge or bond.
	Link string `json:"link"`
	// Alias is the label that the device gets. An inverse without one deletes
	// an unlabelled device, if the link was its last member.
	Alias string `json:"alias,omitempty"`
	// LinkIndex is the link that an inverse takes out, whatever its name is by then.
	LinkIndex int `json:"linkIndex,omitempty"`
}
