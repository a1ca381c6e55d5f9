package netops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// takeoverLabel is the label of a bridge that a Takeover created. In the
	// alias the uplink's name follows it.
	takeoverLabel = labelPrefix + "takeover"
	// takeoverBegun follows the uplink's name until the takeover is
	// complete.
	takeoverBegun = "begun"
)

// Takeover makes a bridge take over an uplink. The uplink becomes a port of the
// bridge. The uplink's addresses, routes, neighbours and settings in
// net/ipv4/conf and net/ipv6/conf move to the bridge. They are added to the
// bridge before they are removed from the uplink: the node has its addresses at
// every step, and live connections continue.
//
// A Takeover is shared and complete: the bridge needs no Link of its own. The
// bridge's alias in the kernel marks the takeover, so that no record is needed.
// If the process is killed, the next Apply completes the takeover, or
// RestoreUplink reverts it.
//
// The caller must prevent concurrent takeovers and restorations of the same
// bridge.
//
//   - The bridge gets the uplink's MAC address and MTU permanently.
//   - Addresses keep their order, scope, label, metric and flags. IPv6 addresses are
//     added without duplicate address detection, and temporary ones become ordinary
//     ones. If the kernel follows router advertisements on the uplink, IPv6 addresses
//     keep their lifetimes, because later advertisements refresh them on the bridge
//     (the bridge gets the uplink's accept_ra). All other addresses become permanent,
//     because a DHCP client or networkd that is bound to the uplink receives no more
//     packets there and cannot renew them.
//   - Unicast routes of all tables keep all attributes. Routes from router
//     advertisements expire as addresses do, and get a lower priority than the routes
//     that the kernel adds for the next advertisement. Routes with nexthop objects and
//     IPv4 multipath routes are refused.
//   - The uplink keeps its IPv6 link-local addresses, which the bridge gets too, and
//     its permanent neighbours.
//   - Policy rules and netfilter rules that name the uplink are not changed.
type Takeover struct {
	Bridge string `json:"bridge"`
	// Uplink must be an Ethernet device that is up and not enslaved to
	// another master. A bond or VLAN is refused.
	Uplink string `json:"uplink"`
	// NoHairpin keeps hairpin mode off on the uplink's port.
	NoHairpin bool `json:"noHairpin,omitempty"`
}

// Where returns the host's namespace.
func (t *Takeover) Where() Place { return Host }

// IsShared returns true: all attachments of the bridge depend on it.
func (t *Takeover) IsShared() bool { return true }

// String names the bridge and the uplink.
func (t *Takeover) String() string {
	w := words{"bridge", t.Bridge, "in place of", t.Uplink}
	w.flag(!t.NoHairpin, "hairpin on")
	return w.String()
}

func (t *Takeover) validate() error {
	errs := []error{rtnl.CheckName(t.Bridge), rtnl.CheckName(t.Uplink)}
	if t.Bridge == t.Uplink {
		errs = append(errs, fmt.Errorf("bridge and uplink are both %q: %w", t.Uplink, ErrInvalid))
	}
	return errors.Join(errs...)
}

// Takeovers returns the takeovers in the kernel: the bridges that a Takeover
// created, with their uplinks.
func (n *Net) Takeovers(ctx context.Context) ([]Takeover, error) {
	c, err := n.host.socket()
	if err != nil {
		return nil, err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	var all []Takeover
	for _, l := range links {
		if l.Kind == rtnl.KindBridge && ownLabel(l.Alias) == takeoverLabel {
			all = append(all, Takeover{Bridge: l.Name, Uplink: uplinkOf(l, links)})
		}
	}
	return all, nil
}

// aliasUplink returns the uplink that a bridge's alias names.
func aliasUplink(alias string) string {
	if f := strings.Fields(alias); len(f) > 1 {
		return f[1]
	}
	return ""
}

// uplinkOf returns the uplink that a bridge has taken over. It is the link that
// the bridge's alias names. If that link was renamed, it is the port with the
// bridge's MAC address.
func uplinkOf(br *rtnl.Link, links []*rtnl.Link) string {
	name := aliasUplink(br.Alias)
	if slices.ContainsFunc(links, func(l *rtnl.Link) bool { return l.Name == name }) {
		return name
	}
	for _, l := range links {
		if l.Master == br.Index && ownLabel(l.Alias) == "" && rtnl.SameMAC(br.MAC.String(), l.MAC) {
			return l.Name
		}
	}
	return name
}

// alias returns the bridge's alias. begun is true while the takeover is
// incomplete.
func (t *Takeover) alias(begun bool) string {
	w := words{takeoverLabel, t.Uplink}
	w.flag(begun, takeoverBegun)
	return w.String()
}

// RestoreUplink reverts a takeover. The node has its addresses at every step. It
// needs no record. If a Takeover created the bridge, t needs no Uplink, and the
// bridge is deleted. Another program's bridge stays, without addresses. If the
// bridge has other ports, the error wraps ErrConflict. With force that is not
// an error, and the ports lose a bridge that is deleted. An absent takeover is
// not an error.
func (n *Net) RestoreUplink(ctx context.Context, t Takeover, force bool) error {
	s := n.session(nil)
	br, err := s.findLink(ctx, Host, t.Bridge)
	if err != nil || br == nil {
		return err
	}
	if t.Uplink == "" && ownLabel(br.Alias) == takeoverLabel {
		c, err := s.conn(Host)
		if err != nil {
			return err
		}
		links, err := c.Links(ctx)
		if err != nil {
			return err
		}
		t.Uplink = uplinkOf(br, links)
	}
	if err := t.validate(); err != nil {
		return fmt.Errorf("%s: %w", &t, err)
	}
	r, err := t.read(ctx, s)
	if err != nil {
		return err
	}
	ports, err := r.otherPorts(ctx)
	if err != nil {
		return err
	}
	if len(ports) > 0 && !force {
		return fmt.Errorf("bridge %q has other ports: %w: %s", t.Bridge, ErrConflict, strings.Join(ports, ", "))
	}
	return r.restoreUplink(ctx)
}

// read reads both links. The bridge is nil if it is absent.
func (t *Takeover) read(ctx context.Context, s *session) (*takeoverRun, error) {
	c, err := s.conn(Host)
	if err != nil {
		return nil, err
	}
	r := &takeoverRun{session: s, c: c, Takeover: t}
	r.up, err = s.link(ctx, Host, t.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	r.br, err = s.findLink(ctx, Host, t.Bridge)
	if err != nil {
		return nil, err
	}
	if r.br != nil && r.br.Kind != rtnl.KindBridge {
		return nil, fmt.Errorf("interface %q is a link of kind %q, not %q: %w", t.Bridge, r.br.Kind, rtnl.KindBridge, ErrConflict)
	}
	return r, nil
}

// checkUplink refuses an uplink of a type that a bridge cannot take over.
func (r *takeoverRun) checkUplink(ctx context.Context) error {
	kinds := []string{"vlan", "bond", "team", rtnl.KindBridge, "macvlan", "macvtap", "ipvlan", "vxlan", rtnl.KindVRF, rtnl.KindTap}
	switch {
	case r.up.Flags&unix.IFF_LOOPBACK != 0 || len(r.up.MAC) != 6:
		return fmt.Errorf("uplink %q is not an Ethernet device: %w", r.Uplink, ErrConflict)
	case slices.Contains(kinds, r.up.Kind):
		return fmt.Errorf("uplink %q is a link of kind %q, which a bridge cannot take over: name a NIC: %w", r.Uplink, r.up.Kind, ErrConflict)
	case r.up.Master != 0 && (r.br == nil || r.up.Master != r.br.Index):
		master, err := r.linkName(ctx, Host, r.up.Master)
		if err != nil {
			return err
		}
		return fmt.Errorf("uplink %q belongs to %q already: %w", r.Uplink, master, ErrConflict)
	case !r.up.IsUp():
		return fmt.Errorf("uplink %q is down: %w", r.Uplink, ErrConflict)
	case r.hasOtherUplink():
		return fmt.Errorf("bridge %q has taken over %q and cannot take over %q too, which would join their networks: omit the bridge name, so that each uplink gets its own: %w",
			r.Bridge, aliasUplink(r.br.Alias), r.Uplink, ErrConflict)
	}
	return nil
}

// hasOtherUplink reports whether the bridge has taken over another uplink. A link with
// the bridge's MAC address is the same uplink, renamed.
func (r *takeoverRun) hasOtherUplink() bool {
	return r.br != nil && ownLabel(r.br.Alias) == takeoverLabel && aliasUplink(r.br.Alias) != r.Uplink && !rtnl.SameMAC(r.br.MAC.String(), r.up.MAC)
}

func (t *Takeover) plan(ctx context.Context, s *session) ([]Change, error) {
	r, err := t.read(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := r.checkUplink(ctx); err != nil {
		return nil, err
	}
	d, err := r.differences(ctx)
	if err != nil || len(d) == 0 {
		return nil, err
	}
	if r.br == nil {
		ref := linkRef{Host, t.Bridge}
		s.made[ref], s.lasting[ref] = true, true
	}
	have, err := placedOn(ctx, r.c, r.up.Index)
	if err != nil {
		return nil, err
	}
	for _, route := range have.routes {
		if route.refused != "" {
			return nil, fmt.Errorf("%s cannot go from %q to %q: %s: %w", route.object(t.Uplink), t.Uplink, t.Bridge, route.refused, ErrConflict)
		}
	}
	return []Change{{Do: Step{VerbAdd, t}}}, nil
}

func (t *Takeover) verify(ctx context.Context, s *session) ([]Difference, error) {
	r, err := t.read(ctx, s)
	if errors.Is(err, ErrNotExist) {
		return absentIf(nil, t)
	}
	if err != nil {
		return nil, err
	}
	return r.differences(ctx)
}

// differences returns the differences between the takeover and the kernel.
func (r *takeoverRun) differences(ctx context.Context) ([]Difference, error) {
	if r.br == nil {
		return absentIf(nil, r.Takeover)
	}
	d := differences{object: r.Takeover}
	if mine := ownLabel(r.br.Alias) == takeoverLabel; mine && strings.HasSuffix(r.br.Alias, " "+takeoverBegun) {
		d.add("done", takeoverBegun)
	} else if mine {
		d.compare("in place of", r.Uplink, aliasUplink(r.br.Alias))
	}
	d.compare("state", upDown(true), upDown(r.br.IsUp()))
	master, err := r.linkName(ctx, Host, r.up.Master)
	if err != nil {
		return nil, err
	}
	d.compare("master of "+r.Uplink, r.Bridge, orNone(master))
	if r.up.Port != nil {
		d.compare("hairpin", onOff(!r.NoHairpin), onOff(r.up.Port.Hairpin))
	}
	addrs, err := r.c.Addresses(ctx, r.up.Index)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if !isLinkLocal6(a.Prefix.Addr()) {
			d.add("no address on "+r.Uplink, a.Prefix.String())
		}
	}
	routes, err := r.c.Routes(ctx, r.up.Index, 0)
	if err != nil {
		return nil, err
	}
	for _, route := range routes {
		if !isLinkLocal6(route.Dst.Addr()) && !route.Dst.Addr().IsMulticast() {
			d.add("no route over "+r.Uplink, route.Dst.String())
		}
	}
	return d.list, nil
}
