package portmap

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
)

const (
	// claimPort is the kind of claim on a port, claimAddress that on the address
	// of a container that ports lead to.
	claimPort    = "port"
	claimAddress = "mapped address"
	// loopbackMetric keeps routes to ::1 behind the kernel's own. With the
	// device's index added no two have the same, which the kernel would refuse.
	loopbackMetric = 4096
)

// ends are the container's addresses that ports lead to, one of each family at
// most; the zero Prefix is none.
type ends struct{ four, six netip.Prefix }

func (e ends) of(v4 bool) netip.Prefix {
	if v4 {
		return e.four
	}
	return e.six
}

// containerEnds are the first address of each family that the earlier plugins
// gave the attachment's interface.
func containerEnds(in *attach.Input) (ends, error) {
	var e ends
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

// port is one port of the node that leads to a container's.
type port struct {
	protocol string
	port     int
	// ip is the node's address; the zero Addr is any of the container's family.
	ip     netip.Addr
	to     netip.Addr
	toPort int
}

// ports are the mappings one by one, for each family of the container's.
func (c *Conf) ports(e ends) []port {
	var all []port
	for _, v4 := range []bool{true, false} {
		end := e.of(v4)
		if !end.IsValid() {
			continue
		}
		for _, m := range c.RuntimeConfig.PortMappings {
			if m.hostIP.IsValid() && m.hostIP.Is4() != v4 {
				continue
			}
			p := port{protocol: m.Protocol, to: end.Addr()}
			if m.hostIP.IsValid() && !m.hostIP.IsUnspecified() {
				p.ip = m.hostIP
			}
			for n := range m.Range {
				p.port, p.toPort = m.HostPort+n, m.ContainerPort+n
				all = append(all, p)
			}
		}
	}
	return all
}

// claim is the name of the port's claim. That of any address is one of all
// addresses: "8080/tcp/IPv4/", "8080/tcp/IPv4/192.0.2.1".
func (p port) claim() string {
	name := strconv.Itoa(p.port) + "/" + p.protocol + "/IPv" + familyOf(p.to) + "/"
	if p.ip.IsValid() {
		name += p.ip.String()
	}
	return name
}

// familyOf is "4" or "6", as the names of sets end.
func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// claims are what ports take of the node, each once: the ports, and where
// sources are hidden the addresses that they lead to.
func (r *role) claims(ports []port) []attach.Claim {
	var all []attach.Claim
	taken := map[attach.Claim]bool{}
	take := func(kind, name string) {
		if c := (attach.Claim{Kind: kind, Name: name}); !taken[c] {
			taken[c] = true
			all = append(all, c)
		}
	}
	for _, p := range ports {
		take(claimPort, p.claim())
		if r.conf.hidesSources() {
			take(claimAddress, p.to.String())
		}
	}
	return all
}

// meetsLoopback tells whether one of the ports of a family can be reached by a
// loopback address.
func meetsLoopback(ports []port, v4 bool) bool {
	return slices.ContainsFunc(ports, func(p port) bool {
		return p.to.Is4() == v4 && (!p.ip.IsValid() || p.ip.IsLoopback())
	})
}

// element is one of the port's in the maps of what leads on (""), or of what
// is judged first ("_if").
func (p port) element(in *attach.Input, maps string, value ...string) *netops.Element {
	set, key := "portmap", []string{p.protocol, strconv.Itoa(p.port)}
	if p.ip.IsValid() {
		set, key = set+"_ip", append([]string{p.ip.String()}, key...)
	}
	return &netops.Element{Set: set + maps + familyOf(p.to), Key: key, Value: value, Label: in.Label}
}

// Build computes the spec of one attachment. The ports come last: no connection
// finds one without what it needs. The result is prevResult.
func (r *role) Build(in *attach.Input) (*attach.Desired, error) {
	o, ok := in.Observed.(observed)
	if !ok {
		return nil, errors.New("portmap: was not observed")
	}
	e, err := containerEnds(in)
	if err != nil {
		return nil, err
	}
	ports := r.conf.ports(e)
	ports = slices.DeleteFunc(ports, func(p port) bool { return slices.Contains(o.Held, p.claim()) })
	w := &attach.Desired{Result: in.Chained, Claims: r.claims(ports)}
	r.wireLoopback(&w.Spec, in, o, ports)
	for _, v4 := range []bool{true, false} {
		if slices.ContainsFunc(ports, func(p port) bool { return p.to.Is4() == v4 }) && r.conf.hidesSources() {
			if err := r.wireSources(w, in, e.of(v4)); err != nil {
				return nil, err
			}
		}
	}
	return w, r.wirePorts(w, in, ports)
}

// wireLoopback lets connections from loopback addresses leave by the device
// towards the container. For IPv4 that is a setting of the device, which the
// guard keeps strangers from using; for IPv6 the answers need a route, since the
// kernel looks ::1 up by the device that a packet came in by (and drops what
// comes in to ::1 without having been translated). A bridge whose packets go
// through the host's filter (bridge-nf-call-ip6tables) loses these answers.
func (r *role) wireLoopback(s *netops.Spec, in *attach.Input, o observed, ports []port) {
	if d := o.Toward4; d.Name != "" && meetsLoopback(ports, true) {
		s.Add(
			&netops.Element{Shared: !d.Own, Set: "portmap_local", Key: []string{d.Name}, Label: label(in, !d.Own)},
			&netops.Sysctl{In: netops.Host, Shared: !d.Own, Key: "net/ipv4/conf/" + d.Name + "/route_localnet", Value: "1"},
		)
	}
	if d := o.Toward6; d.Name != "" && meetsLoopback(ports, false) {
		s.Add(&netops.Route{
			In: netops.Host, Shared: !d.Own, Link: d.Name, Local: true, Priority: loopbackMetric + d.Index,
			Dst: netip.PrefixFrom(netip.IPv6Loopback(), netip.IPv6Loopback().BitLen()),
		})
	}
}

// label is the owner of an element: the network where attachments share it.
func label(in *attach.Input, shared bool) string {
	if shared {
		return record.SharedLabel(in.Key.Network)
	}
	return in.Label
}

// wireSources tells by the container's address what becomes of the source of
// connections that are led there.
func (r *role) wireSources(w *attach.Desired, in *attach.Input, end netip.Prefix) error {
	family, to := familyOf(end.Addr()), end.Addr().String()
	verdict := "goto portmap_masquerade"
	if !r.conf.MasqAll {
		verdict = "goto portmap_hairpin"
		subnet, shared := end.Masked().String(), !end.IsSingleIP()
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

// wirePorts leads the ports to the container. Connections of UDP that were
// tracked before a port was mapped, or are after, would go on as they began.
func (r *role) wirePorts(w *attach.Desired, in *attach.Input, ports []port) error {
	four, err := judge(false, r.conf.ConditionsV4)
	if err != nil {
		return &roles.ConfError{Path: "conditionsV4", Reason: err.Error()}
	}
	six, err := judge(true, r.conf.ConditionsV6)
	if err != nil {
		return &roles.ConfError{Path: "conditionsV6", Reason: err.Error()}
	}
	seen := map[string]bool{}
	for _, p := range ports {
		name := p.claim()
		if seen[name] {
			continue // the same mapping again
		}
		seen[name] = true
		verdict := four
		if p.to.Is6() {
			verdict = six
		}
		if verdict != "" {
			w.Spec.Add(p.element(in, "_if", verdict))
		}
		w.Spec.Add(p.element(in, "", p.to.String(), strconv.Itoa(p.toPort)))
	}
	wireFlows(&w.Spec, ports)
	return nil
}

// wireFlows has connections of UDP begin anew when their port is mapped, and
// when it is not any more: packets of those that are tracked from before would
// go on to where the first one went.
func wireFlows(s *netops.Spec, ports []port) {
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
