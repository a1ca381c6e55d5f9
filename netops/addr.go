package netops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

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
	// ReplaceIn, if not empty, limits Replace to addresses in these networks, and
	// extends it to all of them. Another conflicting address is an error, as with
	// Sole.
	ReplaceIn []netip.Prefix `json:"replaceIn,omitempty"`
	// Sole makes a conflicting address (see Replace) an error that wraps
	// ErrConflict.
	Sole bool `json:"sole,omitempty"`
	// NoPrefixRoute adds the address without the kernel's connected route.
	NoPrefixRoute bool `json:"noPrefixRoute,omitempty"`
}

// Where returns the namespace of the address's link.
func (a *Addr) Where() Place { return a.In }

// IsShared reports whether attachments share the address.
func (a *Addr) IsShared() bool { return a.Shared }

// String formats the address like ip-address(8).
func (a *Addr) String() string {
	w := words{"address", a.Address.String(), "dev", a.Link}
	w.place(a.In)
	w.flag(a.Address.Addr().Is6() && !a.DAD, "nodad")
	w.flag(a.NoPrefixRoute, "noprefixroute")
	return w.String()
}

func (a *Addr) validate() error {
	return errors.Join(checkPlace(a.In), rtnl.CheckName(a.Link), checkPrefix("address", a.Address))
}

// plan adds the address. First it deletes the addresses that this one replaces.
func (a *Addr) plan(ctx context.Context, s *session) ([]Change, error) {
	if s.isNew(a.In, a.Link) {
		return []Change{{Do: Step{VerbAdd, a}}}, nil
	}
	have, err := s.addresses(ctx, a.In, a.Link)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(have, a.matches) {
		if !a.Shared {
			return nil, fmt.Errorf("address %s on %q %w", a.Address, a.Link, ErrExists)
		}
		return nil, nil
	}
	var changes []Change
	for _, other := range have {
		if !a.conflicts(other.Prefix) {
			continue
		}
		if !a.Replace || len(a.ReplaceIn) > 0 && !a.replaces(other.Prefix) {
			return nil, a.conflict(ctx, s, other.Prefix)
		}
		old := &Addr{In: a.In, Shared: a.Shared, Link: a.Link, Address: other.Prefix}
		c := Change{Do: Step{VerbDel, old}}
		if !a.Shared {
			c.Undo = &Step{VerbAdd, old}
		}
		changes = append(changes, c)
	}
	return append(changes, addition(a)), nil
}

func (a *Addr) matches(have rtnl.Addr) bool { return have.Prefix == a.Address }

// conflicts reports whether another address of the link conflicts with a. Every
// other IPv4 address conflicts. An IPv6 address conflicts if the subnets overlap,
// or if it is in ReplaceIn.
func (a *Addr) conflicts(other netip.Prefix) bool {
	if !a.Sole && !a.Replace || other.Addr().Is4() != a.Address.Addr().Is4() {
		return false
	}
	return other.Addr().Is4() || other.Overlaps(a.Address) || a.replaces(other)
}

// replaces reports whether another address is in ReplaceIn.
func (a *Addr) replaces(other netip.Prefix) bool {
	return slices.ContainsFunc(a.ReplaceIn, func(p netip.Prefix) bool { return p.Contains(other.Addr()) })
}

func (a *Addr) conflict(ctx context.Context, s *session, other netip.Prefix) error {
	kind := "interface"
	if l, err := s.link(ctx, a.In, a.Link); err == nil && l.Kind == rtnl.KindBridge {
		kind = rtnl.KindBridge
	}
	return fmt.Errorf("%s %q already has an IP address different from %s: %w: %s", kind, a.Link, a.Address, ErrConflict, other)
}

func (a *Addr) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.addresses(ctx, a.In, a.Link)
	if errors.Is(err, ErrNotExist) || err == nil && !slices.ContainsFunc(have, a.matches) {
		return absentIf(nil, a)
	}
	return nil, err
}

func (a *Addr) links() []string { return []string{a.Link} }

// messages returns the request that adds or deletes the address.
func (a *Addr) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	index, err := s.indexOf(ctx, a.In, a.Link)
	if err != nil {
		return nil, err
	}
	return []nlconn.Message{a.message(index, v)}, nil
}

func (a *Addr) message(index int, v Verb) nlconn.Message {
	have := rtnl.Addr{Link: index, Prefix: a.Address}
	if v == VerbDel {
		return have.Message(unix.RTM_DELADDR)
	}
	if a.Address.Addr().Is6() && !a.DAD {
		have.Flags |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		have.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return have.Message(unix.RTM_NEWADDR)
}

// addresses reads a link's addresses.
func (s *session) addresses(ctx context.Context, p Place, link string) ([]rtnl.Addr, error) {
	index, c, err := s.linkConn(ctx, p, link)
	if err != nil {
		return nil, err
	}
	return c.Addresses(ctx, index)
}

// EnsureLinkLocal returns a link-local IPv6 address of a container's link that can be
// used at once. The link must be up. EnsureLinkLocal enables IPv6 on the link. An
// address that is still in duplicate address detection, or failed it, is deleted and
// added again without the detection. If the link has no link-local address,
// EnsureLinkLocal makes one from the MAC (RFC 4291, appendix A).
func (n *Net) EnsureLinkLocal(ctx context.Context, ns *Namespace, link string) (netip.Addr, error) {
	key := "net/ipv6/conf/" + link + "/disable_ipv6"
	if err := n.Ensure(ctx, Spec{Objects: []Object{&Sysctl{In: Container, Shared: true, Key: key, Value: "0"}}}, ns); err != nil {
		return netip.Addr{}, err
	}
	c, l, err := n.linkIn(ctx, ns, link)
	if err != nil {
		return netip.Addr{}, err
	}
	all, err := c.Addresses(ctx, l.Index)
	if err != nil {
		return netip.Addr{}, err
	}
	var waiting *Addr
	for _, a := range all {
		if !a.Prefix.Addr().IsLinkLocalUnicast() || !a.Prefix.Addr().Is6() {
			continue
		}
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			return a.Prefix.Addr(), nil
		}
		waiting = &Addr{In: Container, Shared: true, Link: link, Address: a.Prefix}
	}
	if waiting == nil {
		addr, err := LinkLocal(l.MAC.String())
		if err != nil {
			return netip.Addr{}, fmt.Errorf("link %q: %w", link, err)
		}
		waiting = &Addr{In: Container, Shared: true, Link: link, Address: netip.PrefixFrom(addr, 64)}
	} else if err := n.Undo(ctx, []Change{{Do: Step{VerbAdd, waiting}, Undo: &Step{VerbDel, waiting}}}, ns); err != nil {
		return netip.Addr{}, err
	}
	return waiting.Address.Addr(), n.Ensure(ctx, Spec{Objects: []Object{waiting}}, ns)
}

// LinkLocal returns the link-local address with the modified EUI-64 identifier of a MAC.
func LinkLocal(mac string) (netip.Addr, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return netip.Addr{}, fmt.Errorf("%q is not an Ethernet address: %w", mac, ErrInvalid)
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: hw[0] ^ 2, 9: hw[1], 10: hw[2], 11: 0xff, 12: 0xfe, 13: hw[3], 14: hw[4], 15: hw[5]}), nil
}
