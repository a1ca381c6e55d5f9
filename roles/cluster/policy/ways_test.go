package policy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
)

// nodeAddresses are those of the node on the network of the outside host.
func nodeAddresses() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:192::1")}
}

// followRoutes makes the node follow source routes, or not.
func (s *scene) followRoutes(follow int) {
	s.t.Helper()
	files := []string{"ipv4/conf/all/accept_source_route", "ipv6/conf/all/seg6_enabled"}
	for _, link := range []string{s.evil.link(), s.jail.link(), "up0", "br1"} {
		files = append(files, "ipv4/conf/"+link+"/accept_source_route", "ipv6/conf/"+link+"/seg6_enabled")
	}
	for _, name := range files {
		if err := os.WriteFile("/proc/sys/net/"+name, fmt.Append(nil, follow), 0); err != nil && !os.IsNotExist(err) { // there may be no bridge
			s.t.Fatal(err)
		}
	}
}

// routeAttacks hide where a packet goes, or its ports.
func routeAttacks() []attack {
	routed := func(s *scene, from, to *pod, f int, text string) {
		s.followRoutes(1)
		s.routed(from, sourceRouted(udp(from.at(f, 1000), netip.AddrPortFrom(nodeAddresses()[f], 81), text), to.addresses[f]))
	}
	ignore := func(s *scene) { s.followRoutes(0) }
	all := func(s *scene, from *pod, packets [][]byte) {
		for _, p := range packets {
			s.routed(from, p)
		}
		for _, p := range packets {
			if s.kind == "bridge" {
				s.direct(from, s.web, p)
			}
		}
	}
	// padded is a datagram whose second fragment has the text.
	padded := func(from, to *pod, f int, port uint16, text string) []byte {
		return udp(from.at(f, 1000), to.at(f, port), "pad pad "+text)
	}
	return []attack{
		{name: "a source route", ways: []string{"source-route", "unjudged"}, ends: toWeb, send: routed, after: ignore},
		{name: "a source route of a pod without egress", ways: []string{"source-route"}, ends: jailToOutside, send: routed, after: ignore},
		{name: "a second fragment with the text", ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			all(s, from, fragments(padded(from, to, f, 81, text), 16))
		}},
		{name: "a second fragment before the first", ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			p := fragments(padded(from, to, f, 81, text), 16)
			slices.Reverse(p)
			all(s, from, p)
		}},
		{name: "a fragment over the ports of another", ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			all(s, from, overlapping(padded(from, to, f, 7, "x"), padded(from, to, f, 81, text), 8, 0))
		}},
		{name: "a first fragment without ports", not4: true, ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(from.at(f, 1000), to.at(f, 81), text)
			const destinationOptions = 60
			all(s, from, fragments(withHeader(p, destinationOptions, []byte{p[6], 0, 1, 4, 0, 0, 0, 0}), 8))
		}},
	}
}

// advertisement returns a message of neighbour discovery about an address.
func advertisement(from, to netip.Addr, kind byte, target netip.Addr, rest string) []byte {
	return icmp(from, to, 255, kind, append(target.AsSlice(), rest...))
}

// claimAttacks claim an address by neighbour discovery.
func claimAttacks() []attack {
	toClient := func(s *scene) (from, to *pod) { return s.evil, s.client }
	const solicitation, advert = 135, 136
	asWeb := func(s *scene, from, to *pod, kind byte, text string) []byte {
		if kind == solicitation {
			return advertisement(netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff00:3"), kind, s.web.addresses[1], text)
		}
		return advertisement(from.addresses[1], to.addresses[1], kind, s.web.addresses[1], text)
	}
	var all []attack
	for name, kind := range map[string]byte{"another pod's address by ND": advert, "another pod's address by DAD": solicitation} {
		all = append(all,
			attack{name: name, ways: []string{"forged-nd"}, kinds: onBridge(), not4: true, ends: toClient, send: func(s *scene, from, to *pod, _ int, text string) {
				s.direct(from, to, asWeb(s, from, to, kind, text))
			}},
			attack{name: name + " behind a VLAN tag", ways: []string{"forged-nd"}, kinds: onBridge(), not4: true, ends: toClient, send: func(s *scene, from, to *pod, _ int, text string) {
				p := asWeb(s, from, to, kind, text)
				from.sendFrame(s.t, frame(from.mac(s.t), to.mac(s.t), append([]byte{0x81, 0, 0, 0}, etherType(p)...), p))
			}})
	}
	return all
}

// otherBridgeAttacks use another interface of the pod, or the ports of DHCP.
func otherBridgeAttacks() []attack {
	toWeb1 := func(s *scene) net.HardwareAddr { return s.web.ns.Link(s.t, "net1").Attrs().HardwareAddr }
	jailToEvil := func(s *scene) (from, to *pod) { return s.jail, s.evil }
	return []attack{
		{name: "another interface", ways: []string{"weak-host"}, ends: func(s *scene) (from, to *pod) { return s.second, s.web }, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(from.at(f, 1000), to.at(f, 81), text)
			from.sendFrame(s.t, frame(from.mac(s.t), toWeb1(s), append([]byte{0x81, 0, 0, 0}, etherType(p)...), p))
		}},
		{name: "a source route by another interface", ways: []string{"source-route"}, not6: true, ends: func(s *scene) (from, to *pod) { return s.second, s.web }, send: func(s *scene, from, to *pod, f int, text string) {
			p := sourceRouted(udp(from.at(f, 1000), netip.AddrPortFrom(s.web1.addresses[f], 81), text), to.addresses[f])
			from.sendFrame(s.t, frame(from.mac(s.t), toWeb1(s), etherType(p), p))
		}},
		{name: "a frame to all ports", ways: []string{"weak-host"}, kinds: onBridge(), ends: func(s *scene) (from, to *pod) { return s.client, s.evil }, send: func(s *scene, from, _ *pod, f int, text string) {
			_ = exec.Command("bridge", "fdb", "del", s.web.mac(s.t).String(), "dev", s.web.link(), "master").Run() // web has not sent for 5 minutes
			s.direct(from, s.web, udp(from.at(f, 1000), s.web.at(f, 80), text))
		}},
		{name: "a routed pod's address on a bridge", ways: []string{"forged-frame"}, kinds: []string{"ptp", "routed"}, ends: func(s *scene) (from, to *pod) { return s.free, s.web }, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, udp(s.client.at(f, 1000), to.at(f, 80), text))
		}},
		{name: "a request of DHCP", ways: []string{"dhcp"}, kinds: onBridge(), ends: jailToEvil, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(from.at(f, 68), to.at(f, 67), text)
			if f == 1 {
				p = udp(netip.AddrPortFrom(linkLocal(from.mac(s.t)), 546), netip.AddrPortFrom(linkLocal(to.mac(s.t)), 547), text)
			}
			s.direct(from, to, p)
		}},
		{name: "a request of DHCP through the bridge", ways: []string{"dhcp"}, kinds: onBridge(), not6: true, ends: jailToEvil, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, udp(from.at(f, 68), to.at(f, 67), text))
		}},
	}
}
