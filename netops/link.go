package netops

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

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
	// DevGroup is the group (ip link set group) of a new link. CHECK does not compare it,
	// because Net.GroupPodLink changes it when the node begins to enforce policies.
	DevGroup uint32 `json:"devGroup,omitempty"`
	// Promisc enables promiscuous mode. AllMulti enables reception of all
	// multicasts.
	Promisc  bool `json:"promisc,omitempty"`
	AllMulti bool `json:"allMulti,omitempty"`
	// ARP makes the link resolve addresses, if that was switched off.
	ARP bool `json:"arp,omitempty"`
	// TxQLen is the length of the transmit queue in packets.
	TxQLen *uint32 `json:"txQLen,omitempty"`
	// TxChecksum is "on" or "off" for an offload of checksums of sent packets as ethtool -K LINK tx sets it.
	// Only a shared link that exists can have it. It is not recorded.
	TxChecksum string `json:"-"`
	// Peer is the other end of a pair. It is created and deleted with the
	// link.
	Peer   *Peer   `json:"peer,omitempty"`
	Bridge *Bridge `json:"bridge,omitempty"`
	Port   *Port   `json:"port,omitempty"`
	// Parent is the lower link of Kind "macvlan", "ipvlan", "vlan" or
	// "vxlan". It is in ParentIn.
	Parent   string `json:"parent,omitempty"`
	ParentIn Place  `json:"parentIn,omitempty"`
	// Mode is the mode of a macvlan (bridge, private, vepa, passthru), ipvlan
	// (l2, l3, l3s), netkit (l2, l3) or bond (balance-rr, active-backup, …).
	// A netkit in mode l3, the kernel's default, has neither MAC nor ARP.
	Mode string `json:"mode,omitempty"`
	// BCQueueLen is the length of a macvlan's queue for received broadcasts.
	// For 0 the kernel chooses.
	BCQueueLen uint32 `json:"bcQueueLen,omitempty"`
	Bond       *Bond  `json:"bond,omitempty"`
	// VLANID is the VLAN ID of a link of Kind "vlan".
	VLANID int `json:"vlanId,omitempty"`
	// VNI is the network identifier of a link of Kind "vxlan". Group4 is the
	// IPv4 multicast group through which its endpoints find each other, on
	// UDP port 4789. The overlay's device is an Overlay instead.
	VNI    int        `json:"vni,omitempty"`
	Group4 netip.Addr `json:"group4,omitzero"`
	// VXLAN has what only the overlay's device has. A device that exists is changed in place, as
	// far as the kernel can. It is not recorded.
	VXLAN *VXLAN `json:"-"`
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

// Unset selects properties of a Link to clear.
type Unset struct {
	Promisc  bool `json:"promisc,omitempty"`
	AllMulti bool `json:"allMulti,omitempty"`
	Master   bool `json:"master,omitempty"`
	Alias    bool `json:"alias,omitempty"`
	ARP      bool `json:"arp,omitempty"`
}

// Peer is the other end of a pair, such as a veth pair.
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

// link returns the Link that configures the peer.
func (p *Peer) link() *Link {
	return &Link{In: p.In, Name: p.Name, MAC: p.MAC, MTU: p.MTU, Up: p.Up, Master: p.Master}
}

// Bridge holds the settings of a link of Kind "bridge". They apply when the
// bridge is created. An existing bridge is not reconfigured, except for KeepMAC.
type Bridge struct {
	VLANFiltering bool `json:"vlanFiltering,omitempty"`
	// KeepMAC sets the MAC of an existing bridge to its present value, or to
	// the link's MAC if it has none. A bridge whose MAC was never set uses the
	// lowest MAC of its ports, and has none when it loses the last.
	KeepMAC bool `json:"keepMAC,omitempty"`
	// Filter makes the packets between ports pass nftables' inet family, as a PodPolicy does.
	Filter bool `json:"filter,omitempty"`
}

// Where returns the namespace that the link is made in.
func (l *Link) Where() Place { return l.In }

// IsShared reports whether attachments share the link.
func (l *Link) IsShared() bool { return l.Shared }

// IsPairEnd reports whether the link is one end of a pair, such as a veth.
func (l *Link) IsPairEnd() bool { return rtnl.IsPairEnd(l.Kind) }

func (l *Link) ref() linkRef { return linkRef{l.In, l.Name} }

// String formats the link like ip-link(8).
func (l *Link) String() string {
	w := words{"link", l.Name}
	w.place(l.In)
	w.value("link", l.Parent)
	w.flag(l.crossesNamespaces(), "link-netns "+string(l.ParentIn))
	w.value("type", l.Kind)
	l.kindWords(&w)
	w.value("address", l.MAC)
	w.number("mtu", l.MTU)
	w.value("master", l.Master)
	if l.DevGroup != 0 {
		w = append(w, "group", strconv.FormatUint(uint64(l.DevGroup), 10))
	}
	if b := l.Bridge; b != nil {
		w.flag(b.VLANFiltering, "vlan_filtering 1")
		w.flag(b.KeepMAC, "keep address")
	}
	if p := l.Port; p != nil {
		w = append(w, portWords(p)...)
	}
	w.flag(l.Promisc, "promisc on")
	w.flag(l.AllMulti, "allmulticast on")
	w.flag(l.ARP, "arp on")
	w.value("txqueuelen", idText(l.TxQLen))
	w.value(txChecksumSetting, l.TxChecksum)
	u := l.unset()
	w.flag(u.Promisc, "promisc off")
	w.flag(u.AllMulti, "allmulticast off")
	w.flag(u.ARP, "arp off")
	w.flag(u.Master, "nomaster")
	w.flag(u.Alias, `alias ""`)
	w.flag(l.Up, "up")
	w.flag(l.Down, "down")
	if p := l.Peer; p != nil {
		w = append(w, "peer", "name", p.Name)
		if p.In != l.In {
			w.place(p.In)
		}
		w.value("address", p.MAC)
		w.number("mtu", p.MTU)
		w.value("master", p.Master)
		w.flag(p.Up, "up")
	}
	if l.Alias != "" {
		w = append(w, "alias", strconv.Quote(l.Alias))
	}
	return w.String()
}

func (l *Link) validate() error {
	errs := []error{checkPlace(l.In), rtnl.CheckName(l.Name), rtnl.CheckMAC(l.MAC), rtnl.CheckMTU(l.MTU), checkAlias(l.Alias), checkIndex(l.Index), l.validateKind()}
	if l.Master != "" {
		errs = append(errs, rtnl.CheckName(l.Master))
	}
	if l.Up && l.Down {
		errs = append(errs, fmt.Errorf("both up and down: %w", ErrInvalid))
	}
	if t := l.TxChecksum; t != "" && (t != onOff(true) && t != onOff(false) || !l.Shared || l.Kind != "") {
		errs = append(errs, fmt.Errorf("%s %q: %w: it is on or off, for a shared link that exists", txChecksumSetting, t, ErrInvalid))
	}
	if p := l.Peer; p != nil {
		if !l.IsPairEnd() {
			errs = append(errs, fmt.Errorf("a peer on a link of kind %q: %w", l.Kind, ErrInvalid))
		}
		if l.In == Container && p.In != l.In {
			errs = append(errs, fmt.Errorf("a peer outside for a link in the container: %w", ErrInvalid))
		}
		errs = append(errs, p.link().validate())
		if (p.Master != "" || p.Up) && p.In != l.In {
			errs = append(errs, fmt.Errorf("a peer in another namespace needs a separate link object: %w", ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// title returns the kind and name of the link for errors.
func (l *Link) title() string {
	if l.Kind == rtnl.KindBridge {
		return fmt.Sprintf("bridge %q", l.Name)
	}
	return fmt.Sprintf("interface %q", l.Name)
}

// peerExists returns the error for a peer's name that another link has.
func peerExists(p *Peer) error {
	if p.In == Container {
		return fmt.Errorf("interface %q %w in the container's namespace", p.Name, ErrExists)
	}
	return fmt.Errorf("interface %q %w", p.Name, ErrExists)
}

// labelled returns the part of an error that names the alias of another program's link.
// It is "" if the link has no alias.
func labelled(alias string) string {
	if alias == "" {
		return ""
	}
	return fmt.Sprintf(", with the alias %q", alias)
}

// Port holds the flags of a bridge port.
type Port = rtnl.Port

// VXLAN holds the attributes that only a VXLAN device has.
type VXLAN = rtnl.VXLAN

// portWords formats a port's flags as bridge link does.
func portWords(p *Port) []string {
	w := []string{"hairpin", onOff(p.Hairpin), "isolated", onOff(p.Isolated)}
	if p.NeighSuppress != nil {
		w = append(w, "neigh_suppress", onOff(*p.NeighSuppress))
	}
	if p.Learning != nil {
		w = append(w, "learning", onOff(*p.Learning))
	}
	return w
}

// verifyPort compares the flags that p sets. A nil flag is not compared.
func verifyPort(p, have *Port, d *differences) {
	compare := func(what string, want, have *bool) {
		if want != nil {
			d.compare(what, onOff(*want), onOff(have != nil && *have))
		}
	}
	compare("neigh_suppress", p.NeighSuppress, have.NeighSuppress)
	compare("learning", p.Learning, have.Learning)
}
