// Package netops describes desired kernel network state and applies it.
//
// A role describes its desired state as a [Spec]: plain values in the order of
// creation. The verbs of [Net] use the Spec:
//
//   - [Net.Plan] reads the kernel and lists the changes that lead to the Spec,
//     each with its inverse. It writes nothing.
//   - [Net.Apply] makes the planned changes. The first failure reverts, in reverse
//     order, the changes that this call made.
//   - [Net.Verify] lists every difference between the Spec and the kernel.
//   - [Net.Undo] runs stored inverses. An absent object is not an error.
//
// netops is the only package that uses netlink, enters namespaces or writes
// sysctls. It executes no other program.
package netops

import "net/netip"

// Place identifies the network namespace of an object: the host's, the
// attachment's container, or a named one (see Named).
type Place string

const (
	// Host is the namespace that the process runs in.
	Host Place = "host"
	// Container is the namespace that CNI_NETNS names.
	Container Place = "container"
)

// Spec is the desired kernel state of one attachment, in the order of creation.
// It is a value: printable, comparable, without I/O.
type Spec struct {
	Objects []Object
}

// Add appends objects to the Spec.
func (s *Spec) Add(o ...Object) { s.Objects = append(s.Objects, o...) }

// Object is one piece of kernel state: *Link, *Move, *Addr, *Route, *Neigh, *Rule,
// *Sysctl, *PortVLANs, *Qdisc, *Redirect, *Element,
// *Forward, *ZoneSource, *VRF, *Flows, *Takeover, *LinkDNS or *Netns.
//
// An object is exclusive or shared. An exclusive object belongs to one
// attachment, and it is an error if it already exists. A shared object is
// created if it is absent. An attachment never deletes it, even if the
// attachment fails, because a parallel attachment can depend on it.
type Object interface {
	// Where returns the namespace of the object.
	Where() Place
	// IsShared reports whether attachments share the object.
	IsShared() bool
	// String returns one line for users, in the form of iproute2 or nft.
	String() string

	// jsonKey returns the name of the kind in JSON, and seals the interface.
	jsonKey() string
}

// Link is a network interface. Verify compares only the fields that are set.
type Link struct {
	In     Place  `json:"in"`
	Shared bool   `json:"shared,omitempty"`
	Name   string `json:"name"`
	// Kind is the kernel's kind: "bridge", "veth", …. If it is empty, the
	// link must exist already (lo, another program's device), and Apply only
	// configures it.
	Kind string `json:"kind,omitempty"`
	// MAC is in colon form. If it is empty, the kernel chooses an address.
	MAC string `json:"mac,omitempty"`
	MTU int    `json:"mtu,omitempty"`
	Up  bool   `json:"up,omitempty"`
	// Down requires the link to be down (loopback DEL, a port that must not
	// be up).
	Down bool `json:"down,omitempty"`
	// Alias is the ifalias label. cnibox limits it to 120 bytes.
	Alias  string `json:"alias,omitempty"`
	Master string `json:"master,omitempty"`
	// Promisc enables promiscuous mode. AllMulti enables reception of all
	// multicasts.
	Promisc  bool `json:"promisc,omitempty"`
	AllMulti bool `json:"allMulti,omitempty"`
	// TxQLen is the length of the transmit queue in packets.
	TxQLen *uint32 `json:"txQLen,omitempty"`
	// Peer is the other end of a veth. It is created and deleted with the
	// link.
	Peer   *Peer   `json:"peer,omitempty"`
	Bridge *Bridge `json:"bridge,omitempty"`
	Port   *Port   `json:"port,omitempty"`
	// Parent is the lower link of Kind "macvlan", "ipvlan", "vlan" or
	// "vxlan". It is in ParentIn.
	Parent   string `json:"parent,omitempty"`
	ParentIn Place  `json:"parentIn,omitempty"`
	// Mode is the mode of a macvlan (bridge, private, vepa, passthru) or
	// ipvlan (l2, l3, l3s).
	Mode string `json:"mode,omitempty"`
	// BCQueueLen is the length of a macvlan's queue for received broadcasts.
	// For 0 the kernel chooses.
	BCQueueLen uint32 `json:"bcQueueLen,omitempty"`
	// VLANID is the VLAN ID of a link of Kind "vlan".
	VLANID int `json:"vlanId,omitempty"`
	// VNI is the network identifier of a link of Kind "vxlan". Group4 is the
	// IPv4 multicast group through which its endpoints find each other, on
	// UDP port 4789. The overlay's device is an Overlay instead.
	VNI    int        `json:"vni,omitempty"`
	Group4 netip.Addr `json:"group4,omitzero"`
	// Owner is the user and Group the group that can open a link of Kind
	// "tun" (a tap device) without CAP_NET_ADMIN. If both are set, a process
	// must match both. If neither is set, every process can open it.
	Owner *uint32 `json:"owner,omitempty"`
	Group *uint32 `json:"group,omitempty"`
	// MultiQueue permits several opens of a tap device.
	MultiQueue bool `json:"multiQueue,omitempty"`
	// Unset clears properties that the zero values above leave unchanged.
	// Inverses use it to restore a link that was configured.
	Unset *Unset `json:"unset,omitempty"`
	// Index identifies the link in an inverse. Its name can have changed,
	// and another link can have its old name.
	Index int `json:"index,omitempty"`
}

// Move moves an existing link into another namespace, with a new name. The link
// is down afterwards, and its addresses and routes are lost. The link must not
// be a port of a bridge or bond, and must not belong to an attachment.
//
// The inverse moves the link back, even if it was renamed, and restores its
// name, alias and state. If the container was deleted, the kernel returns a
// physical device to the initial namespace after a short delay, possibly under
// another name. The inverse finds it by its alias or its permanent MAC address.
// Virtual devices such as a veth are deleted with their namespace. An absent
// link is not an error. If the old name is taken, the link keeps a name that the
// kernel chooses, such as dev0.
type Move struct {
	// Name is the link's name in From, and As its name in To. An inverse
	// without a Name uses the second word of the link's alias. Without such
	// a word the link keeps its present name if that is free.
	From Place  `json:"from"`
	Name string `json:"name,omitempty"`
	To   Place  `json:"to"`
	As   string `json:"as"`
	// Alias is the label of the link while it is in To.
	Alias string `json:"alias"`
	// Back is the alias to restore and Up the state to restore. Kind and MAC
	// are the link's own. MAC is the permanent address if the link has one.
	// Plan sets these fields in the inverse.
	Back string `json:"back,omitempty"`
	Up   bool   `json:"up,omitempty"`
	Kind string `json:"kind,omitempty"`
	MAC  string `json:"mac,omitempty"`
}

// Unset selects properties of a Link to clear.
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
	// Up and Master are for a peer in the link's own namespace. A peer in
	// another namespace is configured by a Link of its own with an empty
	// Kind.
	Up bool `json:"up,omitempty"`
	// Master is the link that the peer is enslaved to.
	Master string `json:"master,omitempty"`
}

// Bridge holds the settings of a link of Kind "bridge". They apply when the
// bridge is created. An existing bridge is not reconfigured, except for KeepMAC.
type Bridge struct {
	VLANFiltering bool `json:"vlanFiltering,omitempty"`
	// KeepMAC sets the MAC of an existing bridge to its present value. A
	// bridge whose MAC was never set uses the lowest MAC of its ports.
	KeepMAC bool `json:"keepMAC,omitempty"`
}

// PortVLANs is the complete VLAN list of one bridge port (RTM_NEWLINK,
// AF_BRIDGE).
type PortVLANs struct {
	In    Place  `json:"in"`
	Link  string `json:"link"`
	VLANs []VLAN `json:"vlans"`
	// KeepDefault keeps the bridge's default VLAN (usually 1) on the port.
	KeepDefault bool `json:"keepDefault,omitempty"`
	// Self selects the bridge device itself instead of a port.
	Self bool `json:"self,omitempty"`
	// SharedPort marks a port that belongs to a shared link.
	SharedPort bool `json:"shared,omitempty"`
}

// VLAN is a range of VLAN IDs on a bridge port. If End is 0, it is ID alone.
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
	// Replace removes conflicting addresses (bridge forceAddress): every
	// other address for IPv4, overlapping ones for IPv6.
	Replace bool `json:"replace,omitempty"`
	// Sole makes a conflicting address (see Replace) an error that wraps
	// ErrConflict.
	Sole bool `json:"sole,omitempty"`
	// NoPrefixRoute adds the address without the kernel's connected route.
	NoPrefixRoute bool `json:"noPrefixRoute,omitempty"`
}

// Route is a route over a link. Routes are appended, so that two attachments of
// one container can each add a default route.
type Route struct {
	In     Place        `json:"in"`
	Shared bool         `json:"shared,omitempty"`
	Link   string       `json:"link"`
	Dst    netip.Prefix `json:"dst"`
	Via    netip.Addr   `json:"via,omitzero"`
	Src    netip.Addr   `json:"src,omitzero"`
	MTU    int          `json:"mtu,omitempty"`
	AdvMSS int          `json:"advmss,omitempty"`
	// Priority is the metric. For 0 the kernel chooses.
	Priority int `json:"priority,omitempty"`
	// Table is the routing table number. 0 means main.
	Table int `json:"table,omitempty"`
	// Protocol is the origin of the route, RTPROT_*. 0 means boot. When an
	// address is deleted, the kernel deletes only routes of RTPROT_KERNEL
	// (2).
	Protocol int `json:"protocol,omitempty"`
	// Scope is RT_SCOPE_*. nil means universe with a gateway and link
	// without.
	Scope  *int `json:"scope,omitempty"`
	OnLink bool `json:"onlink,omitempty"`
	// Local makes it a local route: the node accepts packets to Dst. The
	// route is in the table local and has no gateway.
	Local bool `json:"local,omitempty"`
	// Absent requires that the route does not exist. An existing route is
	// deleted, and the inverse restores it.
	Absent bool `json:"absent,omitempty"`
	// LinkIndex identifies the link on which an inverse restores the route.
	// Another link can have the name by then.
	LinkIndex int `json:"linkIndex,omitempty"`
}

// Neigh is a permanent neighbour entry (ARP or ND). With FDB set it is a static
// forwarding entry: of a bridge port if IP is invalid, otherwise of a VXLAN device.
type Neigh struct {
	In     Place      `json:"in"`
	Shared bool       `json:"shared,omitempty"`
	Link   string     `json:"link"`
	IP     netip.Addr `json:"ip,omitzero"`
	MAC    string     `json:"mac"`
	FDB    bool       `json:"fdb,omitempty"`
	// Replace replaces an existing entry for the address. Without it that is
	// an error.
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
	// Prohibit rejects matching packets instead of looking up a table. Table
	// is 0 then. The kernel informs the sender (ICMP type 3 code 13, ICMPv6
	// type 1 code 1).
	Prohibit bool `json:"prohibit,omitempty"`
	// IPProto is a protocol number (IPPROTO_*), and DstPort a destination
	// port.
	IPProto uint8  `json:"ipProto,omitempty"`
	DstPort uint16 `json:"dstPort,omitempty"`
	// MinBits ignores routes with a prefix shorter than MinBits bits
	// (suppress_prefixlength MinBits-1). 32 accepts host routes only.
	MinBits int `json:"minBits,omitempty"`
	// Protocol is the origin of the rule, as in Route. It is not compared.
	Protocol int `json:"protocol,omitempty"`
}

// Sysctl is a file under /proc/sys/net. It is written only if the value differs.
type Sysctl struct {
	In     Place `json:"in"`
	Shared bool  `json:"shared,omitempty"`
	// Key has slashes and no /proc/sys: "net/ipv4/conf/eth0/arp_notify".
	Key   string `json:"key"`
	Value string `json:"value"`
	// Optional ignores a missing file (IPv6 is disabled in the kernel).
	Optional bool `json:"optional,omitempty"`
}

// Flows selects tracked connections to delete after a change. The kernel applies
// the NAT decision of a connection's first packet to all its packets, even if
// the NAT rules change. In a Spec, Flows is one change that deletes the
// connections after all other changes. Its inverse deletes them after all other
// inverses. It is not an error if no connection matches or the kernel has no
// connection tracking.
type Flows struct {
	In Place `json:"in"`
	// Proto is "tcp", "udp" or "sctp".
	Proto string `json:"proto"`
	// Port is the destination port of the connection's first packet. If End
	// is not 0, it is the range from Port to End.
	Port uint16 `json:"port"`
	End  uint16 `json:"end,omitempty"`
	// Dst is the destination address of the first packet. The zero value
	// matches any address. An unspecified address (0.0.0.0, ::) matches any
	// address of its family.
	Dst netip.Addr `json:"dst,omitzero"`
	// ReplySrc is the source address of replies: the container's for a
	// mapped port. The zero value matches any address.
	ReplySrc netip.Addr `json:"replySrc,omitzero"`
	// Local skips connections whose first packet was not sent to an address
	// of the namespace, so that forwarded connections to the same port
	// continue.
	Local bool `json:"local,omitempty"`

	// local holds the addresses of the namespace if Local is set.
	local map[netip.Addr]bool
}

// ZoneSource is a source address of a firewalld zone. It is runtime
// configuration, which firewalld drops when it reloads. Verify reports that, and
// the next change to a source of the zone restores all recorded sources.
type ZoneSource struct {
	Zone    string     `json:"zone"`
	Address netip.Addr `json:"address"`
}

// VRF is a link's membership of a VRF (Documentation/networking/vrf.rst). The
// device is created and set up for its first member, and deleted with its last.
// The caller must prevent concurrent changes of members in the same namespace.
//
// A link that is up is set down and up again when it joins and leaves. That
// deletes its routes, except the kernel's connected routes, which move to the
// VRF's table. It also deletes its IPv6 addresses, unless keep_addr_on_down is
// set.
type VRF struct {
	In Place `json:"in"`
	// Name is the name of the device, and Table its routing table.
	Name  string `json:"name"`
	Table int    `json:"table"`
	// Link is the member. It must not belong to a VRF, bridge or bond.
	Link string `json:"link"`
	// Alias is the label of the device. An inverse without an Alias deletes
	// an unlabelled device if the link was its last member.
	Alias string `json:"alias,omitempty"`
	// LinkIndex identifies the link that an inverse removes, even if it was
	// renamed.
	LinkIndex int `json:"linkIndex,omitempty"`
}
