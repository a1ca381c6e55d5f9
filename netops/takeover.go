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
	// takeoverLabel is what the alias of a bridge begins with that a Takeover made;
	// the uplink's name follows.
	takeoverLabel = labelPrefix + "takeover"
	// takeoverBegun follows until all is done.
	takeoverBegun = "begun"
)

// Takeover puts a bridge in the place of an uplink: the uplink becomes a port of
// the bridge, and what the node has on it (addresses, routes, neighbours, the
// settings of net/ipv4/conf and net/ipv6/conf) is the bridge's from then on. It is
// made before it is broken: the node has its addresses at every step, and live
// connections go on.
//
// It is shared, and it is one object: the bridge needs no Link of its own beside
// it. In the kernel the bridge's alias tells that it was made so, hence nothing
// has to be recorded; whatever a process that was killed left is completed by the
// next Apply, or undone by RestoreUplink, alike.
//
// Whoever makes or restores one has to see to it that nobody else does so with the
// same bridge meanwhile.
//
//   - The bridge gets the uplink's MAC address and MTU, for good.
//   - Addresses keep their order, scope, label, metric and flags; those of IPv6 are
//     added without duplicate address detection, temporary ones as plain ones. IPv6
//     lifetimes are kept where the kernel follows router advertisements on the
//     uplink, for they are refreshed on the bridge then (its accept_ra is the
//     uplink's). All others become permanent: a DHCP client or networkd that is
//     bound to the uplink hears nothing any more that comes in by it, so that it
//     cannot renew them.
//   - Unicast routes of all tables keep all that they have. Those of router
//     advertisements expire as addresses do, and come behind those that the kernel
//     makes of the next one. Routes by nexthop objects and IPv4 routes of several hops
//     are refused.
//   - The uplink keeps its IPv6 link-local addresses, which the bridge has too, and
//     its permanent neighbours.
//   - Policy rules and netfilter rules that name the uplink are left as they are.
type Takeover struct {
	Bridge string `json:"bridge"`
	// Uplink must be an Ethernet device that is up, and of no other master; a bond
	// or VLAN is refused.
	Uplink string `json:"uplink"`
	// NoHairpin leaves hairpin off at the uplink's port.
	NoHairpin bool `json:"noHairpin,omitempty"`
}

// Where is the host's namespace.
func (t *Takeover) Where() Place { return Host }

// IsShared is true: all attachments of the bridge stand on it.
func (t *Takeover) IsShared() bool { return true }

func (t *Takeover) object() {}

// String tells what takes whose place.
func (t *Takeover) String() string {
	w := words{"bridge", t.Bridge, "in place of", t.Uplink}
	w.flag(!t.NoHairpin, "hairpin on")
	return w.String()
}

func (t *Takeover) validate() error {
	errs := []error{rtnl.CheckName(t.Bridge), rtnl.CheckName(t.Uplink)}
	if t.Bridge == t.Uplink {
		errs = append(errs, fmt.Errorf("link %q in its own place: %w", t.Uplink, ErrInvalid))
	}
	return errors.Join(errs...)
}

// Takeovers lists the bridges that were made so, with their uplinks, as the kernel
// tells them.
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

// aliasUplink is the uplink that a bridge's alias names.
func aliasUplink(alias string) string {
	if f := strings.Fields(alias); len(f) > 1 {
		return f[1]
	}
	return ""
}

// uplinkOf is the uplink that a bridge has the place of: the one that its alias
// names, else, for that may have been renamed, the port with its hardware address.
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

// alias is the bridge's, while it is being done or when it is.
func (t *Takeover) alias(begun bool) string {
	w := words{takeoverLabel, t.Uplink}
	w.flag(begun, takeoverBegun)
	return w.String()
}

// RestoreUplink gives the uplink back all that its bridge took, the same way: the
// node has its addresses at every step. It needs no record, and t no Uplink where a
// Takeover made the bridge. That is deleted then; a bridge of another's stays,
// without addresses. Other ports of the bridge are an error wrapping ErrConflict,
// unless force is set: they lose their bridge. Nothing to give back is success.
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
	return r.giveBack(ctx)
}

// read finds both links. The bridge is nil if it is absent.
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

// takeable refuses an uplink that a bridge cannot take the place of.
func (r *takeoverRun) takeable(ctx context.Context) error {
	kinds := []string{"vlan", "bond", "team", rtnl.KindBridge, "macvlan", "macvtap", "ipvlan", "vxlan", rtnl.KindVRF, rtnl.KindTap}
	switch {
	case r.up.Flags&unix.IFF_LOOPBACK != 0 || len(r.up.MAC) != 6:
		return fmt.Errorf("uplink %q is no Ethernet device: %w", r.Uplink, ErrConflict)
	case slices.Contains(kinds, r.up.Kind):
		return fmt.Errorf("uplink %q is a link of kind %q, which a bridge does not take the place of: name a NIC: %w", r.Uplink, r.up.Kind, ErrConflict)
	case r.up.Master != 0 && (r.br == nil || r.up.Master != r.br.Index):
		master, err := r.linkName(ctx, Host, r.up.Master)
		if err != nil {
			return err
		}
		return fmt.Errorf("uplink %q belongs to %q already: %w", r.Uplink, master, ErrConflict)
	case !r.up.IsUp():
		return fmt.Errorf("uplink %q is down: %w", r.Uplink, ErrConflict)
	case r.anothers():
		return fmt.Errorf("bridge %q has the place of %q, and cannot have that of %q too, which would join their networks: name no bridge, so that each gets its own: %w",
			r.Bridge, aliasUplink(r.br.Alias), r.Uplink, ErrConflict)
	}
	return nil
}

// anothers tells whether the bridge has the place of another uplink, which one with
// its hardware address is not: it was renamed.
func (r *takeoverRun) anothers() bool {
	return r.br != nil && ownLabel(r.br.Alias) == takeoverLabel && aliasUplink(r.br.Alias) != r.Uplink && !rtnl.SameMAC(r.br.MAC.String(), r.up.MAC)
}

func (t *Takeover) plan(ctx context.Context, s *session) ([]Change, error) {
	r, err := t.read(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := r.takeable(ctx); err != nil {
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

// differences is what is not as it should be.
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
