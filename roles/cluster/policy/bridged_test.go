package policy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// onBridge are the kinds of interfaces of attacks on a bridge.
func onBridge() []string { return []string{"bridge"} }

// linkLocal returns the address that an interface makes of its MAC.
func linkLocal(m net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// direct sends a packet to another pod of the bridge.
func (s *scene) direct(from, to *pod, packet []byte) {
	s.t.Helper()
	from.sendFrame(s.t, frame(from.mac(s.t), to.mac(s.t), etherType(packet), packet))
}

// netfilter switches br_netfilter of the pods' bridge on or off, and of the others.
func (s *scene) netfilter(on int) {
	s.t.Helper()
	for _, name := range []string{"iptables", "ip6tables"} {
		if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, fmt.Append(nil, on), 0); err != nil {
			s.t.Fatal(err)
		}
	}
	run(s.t, fmt.Sprintf("ip link set br1 type bridge nf_call_iptables %d nf_call_ip6tables %[1]d", on))
}

// bridgeAttacks use a bridge.
func bridgeAttacks() []attack {
	unfiltered := func(s *scene, from, to *pod, f int, text string) {
		s.netfilter(0)
		s.direct(from, to, udp(from.at(f, 1000), to.at(f, 81), text))
	}
	on := func(s *scene) { s.netfilter(1) }
	toClient := func(s *scene) (from, to *pod) { return s.evil, s.client }
	answers := func(server, client [2]uint16) func(s *scene, from, to *pod, f int, text string) {
		return func(s *scene, from, to *pod, f int, text string) {
			s.direct(from, to, udp(from.at(f, server[f]), to.at(f, client[f]), text))
		}
	}
	return []attack{
		{name: "link-local through the bridge", ways: []string{"unjudged"}, kinds: onBridge(), not4: true, ends: toWeb, send: func(s *scene, from, to *pod, _ int, text string) {
			s.routed(from, udp(netip.AddrPortFrom(linkLocal(from.mac(s.t)), 1000), netip.AddrPortFrom(linkLocal(to.mac(s.t)), 81), text))
		}},
		{name: "br_netfilter off", ways: []string{"unjudged"}, kinds: onBridge(), ends: toWeb, send: unfiltered, after: on},
		{
			name: "br_netfilter off, from a pod without egress", ways: []string{"unjudged"}, kinds: onBridge(),
			ends: func(s *scene) (from, to *pod) { return s.jail, s.evil }, send: unfiltered, after: on,
		},
		{name: "another pod's address on the bridge", ways: []string{"forged-frame"}, kinds: onBridge(), ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			s.direct(from, to, udp(s.client.at(f, 1000), to.at(f, 80), text))
		}},
		{name: "another pod's address behind a VLAN tag", ways: []string{"forged-frame"}, kinds: onBridge(), ends: toClient, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(s.web.at(f, 1000), to.at(f, 80), text)
			from.sendFrame(s.t, frame(from.mac(s.t), to.mac(s.t), append([]byte{0x81, 0, 0, 0}, etherType(p)...), p))
		}},
		{name: "two VLAN tags", ways: []string{"two-tags"}, kinds: onBridge(), ends: toClient, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(s.web.at(f, 1000), to.at(f, 80), text)
			from.sendFrame(s.t, frame(from.mac(s.t), to.mac(s.t), append([]byte{0x81, 0, 0, 0, 0x81, 0, 0, 0}, etherType(p)...), p))
		}},
		{name: "another pod's address by ARP", ways: []string{"forged-arp"}, kinds: onBridge(), not6: true, ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			b := append(arpRequest(from.mac(s.t), s.client.addresses[f], to.addresses[f]), text...)
			from.sendFrame(s.t, frame(from.mac(s.t), to.mac(s.t), []byte{8, 6}, b))
		}},
		{name: "another pod's MAC", ways: []string{"forged-mac"}, kinds: onBridge(), ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			p := udp(from.at(f, 1000), to.at(f, 7), text)
			from.sendFrame(s.t, frame(s.client.mac(s.t), to.mac(s.t), etherType(p), p))
		}},
		{name: "an answer to itself on the bridge", ways: []string{"to-itself", "forged-frame"}, kinds: onBridge(), ends: jailToOutside, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, udp(to.at(f, 53), from.at(f, 1234), "answer"))
			s.routed(from, udp(from.at(f, 1234), to.at(f, 53), text))
		}},
		{name: "an answer of DHCP", ways: []string{"router"}, kinds: onBridge(), ends: toClient, send: answers([2]uint16{67, 547}, [2]uint16{68, 546})},
		{name: "a router advertisement", ways: []string{"router"}, kinds: onBridge(), not4: true, ends: toClient, send: func(s *scene, from, to *pod, _ int, text string) {
			p := icmp(linkLocal(from.mac(s.t)), linkLocal(to.mac(s.t)), 255, 134, []byte(text))
			s.direct(from, to, p)
		}},
		{name: "another protocol", ways: []string{"frames"}, kinds: onBridge(), not6: true, ends: toWeb, send: func(s *scene, from, to *pod, _ int, text string) {
			from.sendFrame(s.t, frame(from.mac(s.t), to.mac(s.t), []byte{0x88, 0xb5}, []byte(text)))
		}},
	}
}

// TestQueued: packets that the node forwarded while an address was nobody's wait for the answer to ARP or ND. The pod that has the address then does
// not receive them. The kernel drops those that it sends before the pod's link is in operation, so what leaves by the bridge's port counts.
func TestQueued(t *testing.T) {
	n := newNode(t)
	forward(t)
	t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "bridge", "queued").Run() })
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	far := n.add(n.pod(2, 2, ""))
	n.add(n.pod(1, 2, "")) // makes the bridge
	for i := range 4 {
		if i == 2 {
			stop()
		}
		web := n.pod(1, 10+i, "app=web")
		got := frames(t, web.ns, "allowed4", "allowed6")
		run(t, "nft -f "+n.file("queued", `table bridge queued
			delete table bridge queued
			table bridge queued { chain post { type filter hook postrouting priority 0; oifname "`+web.link()+`" udp dport 81 counter; }; }`))
		send := func(port uint16, text string) {
			for f := range 2 {
				far.ns.Do(t, func() error {
					c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(web.at(f, port)))
					if err != nil {
						return err
					}
					defer c.Close() //nolint:errcheck // only sent
					_, err = c.Write([]byte(text + [...]string{"4", "6"}[f]))
					return err
				})
			}
		}
		await.Until(t, func() bool { // they wait
			send(81, "waiting")
			out, err := exec.Command("ip", "neigh", "show", "dev", "br1", "nud", "incomplete").Output()
			return err == nil && strings.Contains(string(out), web.addresses[0].String()) && strings.Contains(string(out), web.addresses[1].String())
		}, func() string { return "no neighbours are asked for" })
		n.add(web)
		await.Until(t, func() bool { send(80, "allowed"); return got[0].Load() > 0 && got[1].Load() > 0 }, func() string { return "nothing allowed arrives" })
		if out, err := exec.Command("nft", "list", "table", "bridge", "queued").Output(); err != nil || !strings.Contains(string(out), "counter packets 0 ") {
			t.Errorf("%s: packets that had waited left by its port: %v, %s", web.call.ID, err, out)
		}
	}
}

// TestStacked: what a device on the bridge sends to a pod that policies select is dropped, though it passes no chain of policies.
func TestStacked(t *testing.T) {
	s := newScene(t, "bridge")
	s.start()
	s.add(s.evil)
	s.add(s.web)
	awaitRules(t, s.web.addresses[0].String())
	ns := s.outside.ns
	for _, line := range []string{"ip link add mv0 link br1 type macvlan mode bridge", "ip link set mv0 netns " + ns.Path()} {
		run(t, line)
	}
	run(t, "nsenter --net="+ns.Path()+" ip link set mv0 up")
	send := func(packet []byte, kind []byte) {
		l := ns.Link(t, "mv0").Attrs()
		s.outside.sendFrameBy(t, l.Index, frame(l.HardwareAddr, s.web.mac(t), kind, packet))
	}
	for f := range 2 {
		forbidden := udp(s.evil.at(f, 1000), s.web.at(f, 81), "forbidden")
		got := frames(t, s.web.ns, "forbidden", "marker")
		send(forbidden, etherType(forbidden))
		await.Until(t, func() bool { send([]byte("marker"), []byte{8, 6}); return got[1].Load() > 0 }, func() string { return "no marker" })
		if got[0].Load() > 0 {
			t.Error("a packet of a macvlan arrived: family", f)
		}
	}
}

// TestStackedMaster: while policies are enforced no interface is attached to a pods' bridge beside its ports, and the agent names those that were
// attached before, and those of other programs.
func TestStackedMaster(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	web := n.pod(1, 3, "app=web")
	n.add(n.pod(1, 2, ""))
	on := func(kind, id string) rolestest.Call {
		p := n.pod(1, 9, "")
		p.call.Type, p.call.ID = kind, id
		p.call.Conf = `{"cniVersion":"1.1.0","name":"` + kind + `","type":"` + kind + `","master":"br1","vlanId":5,"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24"}]}}`
		return p.call
	}
	before := on("macvlan", "before")
	n.OK(before)
	k, stop := n.open(&policy.Directory{Path: n.dir, Keep: enforce.KeptPath(n.host.Store), Log: n.host.Log})
	n.add(web)
	says := func(text string, is bool) {
		t.Helper()
		await.Until(t, func() bool { return strings.Contains(k.Fault(), text) == is }, func() string { return fmt.Sprintf("the fault is %q: %q %v", k.Fault(), text, is) })
	}
	says("macvlan eth0 of container before on bridge br1", true)
	for _, kind := range []string{"macvlan", "vlan"} {
		if a := n.Fail(on(kind, "after"), 7); !strings.Contains(a.Stdout, "is a bridge of pods, and this node enforces network policies") {
			t.Error(kind, a.Stdout)
		}
	}
	before.Verb = "DEL"
	n.OK(before)
	run(t, "ip link add mv0 link br1 type macvlan")
	says("macvlan mv0 on bridge br1", true)
	run(t, "ip link del mv0")
	says("bridge br1", false)
	stop()
	if err := control.Stop(t.Context(), n.host); err != nil {
		t.Fatal(err)
	}
	n.OK(on("macvlan", "after"))
}

// TestBridgeMarks: the bits by which the chains say that a packet was judged do not leave the bridge, and a pod cannot bring them. Other bits stay.
func TestBridgeMarks(t *testing.T) {
	s := newScene(t, "bridge")
	s.start()
	s.add(s.evil)
	s.add(s.web)
	awaitRules(t, s.web.addresses[0].String())
	run(t, `nft -f `+s.file("marks", `
		table bridge marks {
			counter left {}
			counter others {}
			chain post {
				type filter hook postrouting priority 0
				meta mark & 0x1040 != 0 counter name left
				meta mark & 0x6000 == 0x6000 counter name others
			}
			chain in {
				type filter hook prerouting priority -400
				iifname "`+s.evil.link()+`" meta mark set 0x6000
			}
		}`))
	t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "bridge", "marks").Run() })
	s.evil.ns.Do(t, func() error {
		return exec.Command("nft", "add table inet marks; add chain inet marks out { type route hook output priority 0; }; add rule inet marks out meta mark set 0x1040").Run()
	})
	for f := range 2 {
		got := frames(t, s.web.ns, "allowed", "routed")
		await.Until(t, func() bool {
			s.direct(s.evil, s.web, udp(s.evil.at(f, 1000), s.web.at(f, 7), "allowed"))
			s.routed(s.evil, udp(s.evil.at(f, 1001), s.web.at(f, 7), "routed"))
			return got[0].Load() > 0 && got[1].Load() > 0
		}, func() string { return "nothing allowed arrived" })
	}
	out, err := exec.Command("nft", "list", "counters", "table", "bridge", "marks").Output()
	if err != nil || strings.Count(string(out), "packets 0") != 1 || !strings.Contains(string(out), "counter left {\n\t\tpackets 0 ") {
		t.Errorf("marks behind the bridge: %v, %s", err, out)
	}
}

// TestOwnFrames: what a pod may send on a bridge arrives: ARP and ND for its own addresses, DHCP requests, the frames of a virtual machine behind it,
// and what its network allows. A pod without recorded addresses may have any that no other pod has.
func TestOwnFrames(t *testing.T) {
	s := newScene(t, "bridge")
	s.start()
	router := s.pod(1, 8, "app=router")
	router.call.Conf = strings.Replace(router.call.Conf, `"isDefaultGateway"`, `"allowedAddresses":["10.1.0.0/24","fd00:1::/64","fd00:1::/80"],"isDefaultGateway"`, 1)
	free := s.pod(1, 9, "app=free")
	free.call.Conf = `{"cniVersion":"1.1.0","name":"net1","type":"bridge","bridge":"br1"}`
	for _, p := range []*pod{s.evil, s.client, s.web, router, free} {
		s.add(p)
	}
	awaitRules(t, s.web.addresses[0].String())
	everyone, vrrp := net.HardwareAddr{255, 255, 255, 255, 255, 255}, net.HardwareAddr{0, 0, 0x5e, 0, 1, 7}
	at := func(address string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(address), port)
	}
	packet := func(from *pod, source net.HardwareAddr, to *pod, p []byte) func() {
		if source == nil {
			source = from.mac(t)
		}
		return func() { from.sendFrame(t, frame(source, to.mac(t), etherType(p), p)) }
	}
	evilLL, clientLL := linkLocal(s.evil.mac(t)), linkLocal(s.client.mac(t))
	for _, c := range []struct {
		text   string
		to     *pod
		send   func()
		passes bool
	}{
		{"gratuitous ARP", s.client, func() {
			s.evil.sendFrame(t, frame(s.evil.mac(t), everyone, []byte{8, 6}, append(arpRequest(s.evil.mac(t), s.evil.addresses[0], s.evil.addresses[0]), "gratuitous ARP"...)))
		}, true},
		{"ARP probe", s.client, func() {
			s.evil.sendFrame(t, frame(s.evil.mac(t), everyone, []byte{8, 6}, append(arpRequest(s.evil.mac(t), netip.IPv4Unspecified(), s.evil.addresses[0]), "ARP probe"...)))
		}, true},
		{"DHCP request", s.client, func() {
			p := udp(at("0.0.0.0", 68), at("255.255.255.255", 67), "DHCP request")
			s.evil.sendFrame(t, frame(s.evil.mac(t), everyone, []byte{8, 0}, p))
		}, true},
		{"DAD", s.web, packet(s.evil, nil, s.web, icmp(netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff00:2"), 255, 135, []byte("DAD"))), true},
		{"link-local ND", s.web, packet(s.evil, nil, s.web, icmp(evilLL, s.web.addresses[1], 255, 135, []byte("link-local ND"))), true},
		{"MLD report", s.web, packet(s.evil, nil, s.web, icmp(evilLL, netip.MustParseAddr("ff02::16"), 1, 143, []byte("MLD report"))), true},
		{"virtual machine", s.web, packet(s.evil, net.HardwareAddr{2, 9, 9, 9, 9, 9}, s.web, udp(s.evil.at(0, 1000), s.web.at(0, 7), "virtual machine")), true},
		{"virtual router", s.client, packet(router, vrrp, s.client, udp(at("10.1.0.200", 1000), s.client.at(0, 7), "virtual router")), true},
		{"virtual router 6", s.client, packet(router, vrrp, s.client, udp(at("fd00:1::200", 1000), s.client.at(1, 7), "virtual router 6")), true},
		{"another in the network", s.client, packet(router, nil, s.client, udp(s.web.at(0, 1000), s.client.at(0, 7), "another in the network")), false},
		{"any address", s.client, packet(free, nil, s.client, udp(at("10.1.0.201", 1000), s.client.at(0, 7), "any address")), true},
		{"taken address", s.client, packet(free, nil, s.client, udp(s.web.at(0, 1000), s.client.at(0, 7), "taken address")), false},
		{"another's link-local address", s.client, packet(s.evil, nil, s.client, udp(netip.AddrPortFrom(linkLocal(s.web.mac(t)), 1), netip.AddrPortFrom(clientLL, 7), "another's link-local address")), false},
		{"own link-local address", s.client, packet(s.evil, nil, s.client, udp(netip.AddrPortFrom(evilLL, 1), netip.AddrPortFrom(clientLL, 7), "own link-local address")), true},
	} {
		got := frames(t, c.to.ns, c.text, "marker of "+strings.ToUpper(c.text))
		if c.passes {
			await.Until(t, func() bool { c.send(); return got[0].Load() > 0 }, func() string { return c.text + " does not arrive" })
			continue
		}
		c.send()
		await.Until(t, func() bool {
			s.direct(s.evil, c.to, udp(s.evil.at(0, 1000), c.to.at(0, 7), "marker of "+strings.ToUpper(c.text)))
			return got[1].Load() > 0
		}, func() string { return "no marker" })
		if got[0].Load() > 0 {
			t.Error(c.text, "arrives")
		}
	}
}
