package portmap

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

const (
	// claimAddress is the kind of a claim on a container's address that ports
	// are forwarded to.
	claimAddress = "mapped address"
	// loopbackMetric gives routes to ::1 a lower priority than the kernel's
	// own. The device's index is added to it, because the kernel refuses two
	// routes with the same metric.
	loopbackMetric = 4096
)

// targets are the container's addresses that ports are forwarded to, at most
// one of each address family. The zero Prefix means none.
type targets struct{ four, six netip.Prefix }

func (e targets) of(v4 bool) netip.Prefix {
	if v4 {
		return e.four
	}
	return e.six
}

// containerTargets are the first address of each family that the previous
// plugins gave to the attachment's interface.
func containerTargets(in *attach.Input) (targets, error) {
	var e targets
	part, err := attach.IPAMPart(in.Chained, in.Key.IfName)
	if err != nil {
		return e, err
	}
	all, err := attach.Addresses(part)
	for _, a := range all {
		switch {
		case a.Address.Addr().Is4() && !e.four.IsValid():
			e.four = a.Address
		case a.Address.Addr().Is6() && !e.six.IsValid():
			e.six = a.Address
		}
	}
	return e, err
}

// port is one port of the node and the container's port that it is forwarded
// to, or a range of ports that are forwarded to as many ports.
type port struct {
	protocol string
	port     int
	// last is the last port of the node; it equals port for a single port.
	last int
	// ip is the node's address. The zero Addr means every address of the
	// container's address family.
	ip     netip.Addr
	to     netip.Addr
	toPort int
}

// ports are the single ports of all mappings, for each address family of the
// container.
func (c *Conf) ports(e targets) []port {
	var all []port
	for _, v4 := range []bool{true, false} {
		target := e.of(v4)
		if !target.IsValid() {
			continue
		}
		for _, m := range c.RuntimeConfig.PortMappings {
			if m.hostIP.IsValid() && m.hostIP.Is4() != v4 {
				continue
			}
			p := port{protocol: m.Protocol, to: target.Addr()}
			if m.hostIP.IsValid() && !m.hostIP.IsUnspecified() {
				p.ip = m.hostIP
			}
			for n := range m.Range {
				p.port, p.last, p.toPort = m.HostPort+n, m.HostPort+n, m.ContainerPort+n
				all = append(all, p)
			}
		}
	}
	return all
}

// without returns the ports that no other attachment of the container holds, and the others.
func without(ports []port, held []store.Ports) (free, awaited []port) {
	isHeld := map[store.Ports]bool{}
	for _, claimed := range held {
		isHeld[claimed] = true
	}
	for _, p := range ports {
		if isHeld[p.claim()] {
			awaited = append(awaited, p)
		} else {
			free = append(free, p)
		}
	}
	return free, awaited
}

// joined joins consecutive ports into ranges, where wanted reports that a port may be
// part of one. The order stays, and repeated ports are left out.
func joined(ports []port, wanted func(port) bool) []port {
	var all []port
	seen := map[store.Ports]bool{}
	for _, p := range ports {
		if seen[p.claim()] {
			continue // a repeated mapping
		}
		seen[p.claim()] = true
		if len(all) > 0 && wanted(p) {
			prev := &all[len(all)-1]
			next := *prev
			next.port, next.last, next.toPort = prev.last+1, prev.last+1, prev.toPort+prev.last+1-prev.port
			if next == p && wanted(*prev) {
				prev.last = p.last
				continue
			}
		}
		all = append(all, p)
	}
	return all
}

// claim returns the ports as they are claimed.
func (p port) claim() store.Ports {
	return store.Ports{First: uint16(p.port), Last: uint16(p.last), Protocol: p.protocol, Family: "IPv" + netops.FamilyDigit(p.to), Address: p.ip}
}

// claims are the claims of the ports, without duplicates: the ports, consecutive ones
// as a range, and with masquerading the addresses that they are forwarded to.
func (r *role) claims(ports []port) []store.Resource {
	var all []store.Resource
	for _, p := range joined(ports, func(port) bool { return true }) {
		all = append(all, store.Resource{Kind: store.KindPort, Ports: p.claim()})
		address := store.Resource{Kind: claimAddress, Name: p.to.String()}
		if r.conf.masquerades() && !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// awaits are the claims for ports that another attachment of the container holds: when it releases them, this one gets
// them. With masquerading the addresses are claimed now.
func (r *role) awaits(in *attach.Input, ports []port) (all []store.Resource) {
	for _, c := range r.claims(ports) {
		if c.Kind == store.KindPort {
			c = store.Awaited(c.Ports, in.Key)
		}
		all = append(all, c)
	}
	return all
}

// reachableByLoopback reports whether one of the ports of a family can be
// reached through a loopback address.
func reachableByLoopback(ports []port, v4 bool) bool {
	return slices.ContainsFunc(ports, func(p port) bool {
		return p.to.Is4() == v4 && (!p.ip.IsValid() || p.ip.IsLoopback())
	})
}

// element is the port's entry in a map: maps is "" for the map of targets, "_if" for
// the map of conditions, or "_range".
func (p port) element(in *attach.Input, maps string, value ...string) *netops.Element {
	e := &netops.Element{Set: "portmap" + maps + netops.FamilyDigit(p.to), Key: []string{p.protocol, p.claim().Numbers()}, Value: value, Label: in.Label}
	switch {
	case p.ip.IsValid() && maps == "":
		e.Set, e.Key = netops.PortsOfAddress(p.protocol, netops.FamilyDigit(p.to)), []string{p.ip.String(), e.Key[1]}
	case p.ip.IsValid():
		e.Set, e.Key = "portmap_ip"+maps+netops.FamilyDigit(p.to), slices.Insert(e.Key, 0, p.ip.String())
	}
	return e
}

// Build computes the spec of one attachment. The ports come last, so that a
// connection never finds an incomplete setup. The result is prevResult.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("build the spec: Observe was not called")
	}
	e, err := containerTargets(in)
	if err != nil {
		return nil, err
	}
	ports := r.conf.ports(e)
	free, awaited := without(ports, o.Held)
	w := &attach.Desired{Result: in.Chained, Claims: append(r.claims(free), r.awaits(in, awaited)...)}
	r.addLoopback(&w.Spec, in, o, ports)
	for _, v4 := range []bool{true, false} {
		if slices.ContainsFunc(ports, func(p port) bool { return p.to.Is4() == v4 }) && r.conf.masquerades() {
			if err := r.addMasquerade(w, in, e.of(v4)); err != nil {
				return nil, err
			}
		}
	}
	if err := r.addPorts(w, in, free, o.Kept, false); err != nil {
		return nil, err
	}
	if err := r.addPorts(w, in, awaited, o.Kept, true); err != nil {
		return nil, err
	}
	addFlows(&w.Spec, ports)
	return w, nil
}

// addLoopback allows connections from loopback addresses to leave through the
// device of the route to the container. IPv4 needs route_localnet on the
// device; with the portmap_local set our rules drop packets from or to loopback
// addresses that arrive through that device. IPv6 needs a route for the
// replies: the kernel looks ::1 up through the device that a packet arrived on.
// It drops packets to ::1 that were not translated. If a bridge passes its
// packets through the host's filter (bridge-nf-call-ip6tables), these replies
// are lost.
func (r *role) addLoopback(s *netops.Spec, in *attach.Input, o observed, ports []port) {
	if d := o.Toward4; d.Name != "" && reachableByLoopback(ports, true) {
		s.Add(
			&netops.Element{Shared: !d.Own, Set: "portmap_local", Key: []string{d.Name}, Label: label(in, !d.Own)},
			&netops.Sysctl{In: netops.Host, Shared: !d.Own, Key: "net/ipv4/conf/" + d.Name + "/route_localnet", Value: "1"},
		)
	}
	if d := o.Toward6; d.Name != "" && reachableByLoopback(ports, false) {
		s.Add(&netops.Route{
			In: netops.Host, Shared: !d.Own, Link: d.Name, Local: true, Priority: loopbackMetric + d.Index,
			Dst: netip.PrefixFrom(netip.IPv6Loopback(), netip.IPv6Loopback().BitLen()),
		})
	}
}

// label is the owner of an element: the network if attachments share it, else
// the attachment.
func label(in *attach.Input, shared bool) string {
	if shared {
		return attachment.SharedLabel(in.Key.Network)
	}
	return in.Label
}

// addMasquerade adds the rules that masquerade connections which are forwarded
// to the container's address.
func (r *role) addMasquerade(w *attach.Desired, in *attach.Input, target netip.Prefix) error {
	family, to := netops.FamilyDigit(target.Addr()), target.Addr().String()
	verdict := "goto portmap_masquerade"
	if !r.conf.MasqAll {
		verdict = "goto portmap_hairpin"
		subnet, shared := target.Masked().String(), !target.IsSingleIP()
		w.Spec.Add(&netops.Element{Shared: shared, Set: "portmap_near" + family, Key: []string{subnet, subnet}, Label: label(in, shared)})
	}
	if r.conf.MarkMasqBit != nil {
		mark, err := netops.MarkVerdict(*r.conf.MarkMasqBit)
		if err != nil {
			return err
		}
		w.Spec.Add(&netops.Element{Set: "portmap_mark" + family, Key: []string{to}, Value: []string{mark}, Label: in.Label})
	}
	w.Spec.Add(&netops.Element{Set: "portmap_snat" + family, Key: []string{to}, Value: []string{verdict}, Label: in.Label})
	return nil
}

// addPorts adds the elements that forward the ports to the container, each behind those of the sockets that keep their connections.
// Those that another attachment of the container has are on standby.
func (r *role) addPorts(w *attach.Desired, in *attach.Input, ports []port, kept []socket, standby bool) error {
	four, err := conditionVerdict(false, r.conf.ConditionsV4)
	if err != nil {
		return &roles.ConfError{Path: "conditionsV4", Reason: err.Error()}
	}
	six, err := conditionVerdict(true, r.conf.ConditionsV6)
	if err != nil {
		return &roles.ConfError{Path: "conditionsV6", Reason: err.Error()}
	}
	verdict := func(p port) string {
		if p.to.Is4() {
			return four
		}
		return six
	}
	// A range is one element where the container's ports are the same. The others
	// need an element for each port, see netops/internal/ruleset.
	same := func(p port) bool { return p.toPort == p.port && verdict(p) == "" }
	add := func(e *netops.Element) {
		e.Standby = standby
		w.Spec.Add(e)
	}
	for _, p := range joined(ports, same) {
		own := keptPorts(kept, p)
		if p.last != p.port {
			for _, k := range own { // the rules of ranges can come before the others
				add(k.element(in, "_range", k.to.String()))
			}
			add(p.element(in, "_range", p.to.String()))
			continue
		}
		for _, k := range own {
			add(k.element(in, "", k.to.String(), strconv.Itoa(k.toPort)))
		}
		if v := verdict(p); v != "" {
			add(p.element(in, "_if", v))
		}
		add(p.element(in, "", p.to.String(), strconv.Itoa(p.toPort)))
	}
	return nil
}

// addFlows makes ADD and DEL delete the conntrack entries of the UDP ports.
// Packets of an existing entry would still go where its first packet went.
func addFlows(s *netops.Spec, ports []port) {
	var last *netops.Flows
	for _, p := range ports {
		if p.protocol != "udp" {
			continue
		}
		f := netops.Flows{In: netops.Host, Proto: p.protocol, Port: uint16(p.port), Dst: p.ip}
		if !f.Dst.IsValid() {
			f.Local, f.Dst = true, netip.IPv4Unspecified()
			if p.to.Is6() {
				f.Dst = netip.IPv6Unspecified()
			}
		}
		if last != nil && last.Dst == f.Dst && max(last.End, last.Port) == f.Port-1 {
			last.End = f.Port
			continue
		}
		last = &f
		s.Add(last)
	}
}
