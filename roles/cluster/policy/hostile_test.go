package policy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/test/await"
)

// attack is one row of the table in docs/policy.md: what a program with all rights in a pod, or another host, tries.
type attack struct {
	name string
	// ways are those whose rules stop it: without all of them it succeeds. Without ways the attack is not tried without rules.
	ways []string
	// kinds are the kinds of interfaces on which it is tried, all if there are none. v4 and v6 leave out a family.
	kinds      []string
	not4, not6 bool
	// ends are the sender and the receiver of the forbidden text.
	ends func(s *scene) (from, to *pod)
	// send sends the text to an address of the family.
	send func(s *scene, from, to *pod, f int, text string)
	// after restores what send changed, or is nil.
	after func(s *scene)
}

// attacks are all rows.
func attacks() []attack {
	return slices.Concat(connectionAttacks(), sourceAttacks(), routeAttacks(), renamedAttacks(), bridgeAttacks(), claimAttacks(), otherBridgeAttacks())
}

// healthy are what must arrive beside the rules of ways.
func healthy() []attack {
	clientToWeb := func(s *scene) (from, to *pod) { return s.client, s.web }
	errorOfWeb := func(s *scene, from, to *pod, f int, text string) {
		s.routed(s.client, udp(s.client.at(f, 1000), to.at(f, 80), "x"))
		s.routed(from, unreachable(from.addresses[f], to.addresses[f], udp(to.at(f, 80), s.client.at(f, 1000), text)))
	}
	return []attack{
		{name: "a datagram in fragments", ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			for _, p := range fragments(udp(from.at(f, 1000), to.at(f, 7), strings.Repeat(" ", 8)+text), 16) {
				s.routed(from, p)
			}
		}},
		{name: "a datagram in fragments on the bridge", kinds: onBridge(), ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			for _, p := range fragments(udp(from.at(f, 1000), to.at(f, 7), strings.Repeat(" ", 8)+text), 16) {
				s.direct(from, to, p)
			}
		}},
		{name: "an error by a router", ends: outsideToWeb, send: errorOfWeb},
		{name: "an error by the client", ends: clientToWeb, send: errorOfWeb},
		{name: "a Service to itself", ends: func(s *scene) (from, to *pod) { return s.web, s.web }, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, udp(to.at(f, 1000), netip.AddrPortFrom(netip.MustParseAddr([2]string{"10.96.0.1", "fd00:96::1"}[f]), 81), text))
		}},
		{
			name: "a network behind a pod", kinds: []string{"ptp", "routed"}, ends: func(s *scene) (from, to *pod) { return s.evil, s.outside },
			send: func(s *scene, from, to *pod, f int, text string) {
				behind := netip.MustParseAddr([2]string{"10.77.0.1", "fd00:77::1"}[f])
				run(s.t, "ip route replace "+behind.String()+" dev "+from.link())
				s.routed(from, udp(netip.AddrPortFrom(behind, 1000), to.at(f, 80), text))
			},
		},
	}
}

// service translates the address of a Service of web.
func (s *scene) service(t *testing.T) {
	t.Helper()
	for _, line := range []string{
		"add table inet services", "add chain inet services pre { type nat hook prerouting priority -100 ; }",
		"add rule inet services pre ip daddr 10.96.0.1 dnat ip to " + s.web.addresses[0].String(),
		"add rule inet services pre ip6 daddr fd00:96::1 dnat ip6 to " + s.web.addresses[1].String(),
	} {
		run(t, "nft "+line)
	}
	t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "inet", "services").Run() })
	if s.kind == "bridge" { // br_netfilter sends what it translates back to the port
		run(t, "bridge link set dev "+s.web.link()+" hairpin on")
	}
}

// scene is a node with a hostile pod.
type scene struct {
	*node
	kind string
	// evil is a pod that no policy selects. web accepts port 80 from client, and jail reaches nobody but the node. Everybody may send to port 7 of
	// web, and jail to port 7 of everybody. outside is a host beyond the node.
	evil, client, web, jail, outside *pod
	// web1 is an interface of web on another bridge, which no policy selects. second is a pod there, and free one there without recorded addresses.
	web1, second, free *pod
}

// hostilePolicies are those of a scene.
const hostilePolicies = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"%s"},"spec":{%s}}`

func newScene(t *testing.T, kind string) *scene {
	t.Helper()
	role, _, _ := strings.Cut(kind, " ")
	n := newNode(t)
	forward(t)
	n.put("web.json", fmt.Sprintf(hostilePolicies, "web", `"podSelector":{"matchLabels":{"app":"web"}},"ingress":[
		{"ports":[{"port":7,"protocol":"UDP"}]},
		{"ports":[{"port":80},{"port":80,"protocol":"UDP"}],"from":[{"podSelector":{"matchLabels":{"app":"client"}}}]}]`))
	n.put("jail.json", fmt.Sprintf(hostilePolicies, "jail", `"podSelector":{"matchLabels":{"app":"jail"}},"policyTypes":["Egress"],
		"egress":[{"ports":[{"port":7,"protocol":"UDP"}]},{"to":[{"ipBlock":{"cidr":"192.0.2.1/32"}},{"ipBlock":{"cidr":"fd00:192::1/128"}}]}]`))
	s := &scene{
		node: n, kind: role,
		evil: n.podOf(kind, 2, "app=evil"), client: n.podOf(kind, 4, "app=client"), web: n.podOf(kind, 3, "app=web"), jail: n.podOf(kind, 5, "app=jail"),
		outside: n.host2(t), web1: n.pod(2, 3, "app=web"), second: n.pod(2, 2, "app=evil"), free: n.pod(2, 9, "app=evil"),
	}
	s.web1.ns, s.web1.call.Netns, s.web1.call.IfName = s.web.ns, s.web.call.Netns, "net1"
	s.free.call.Conf = `{"cniVersion":"1.1.0","name":"net2","type":"bridge","bridge":"br2"}`
	return s
}

// hostileKinds are the kinds of interfaces in the order of their networks: bridge has 10.1.0.0/24. A second word is the linkType.
func hostileKinds() []string {
	return []string{"bridge", "ptp", "routed", "ptp netkit", "routed netkit"}
}

// podOf returns a pod of a kind of interface.
func (n *node) podOf(kind string, host int, labels string) *pod {
	if kind == "bridge" {
		return n.pod(1, host, labels)
	}
	number := 3 + slices.Index(hostileKinds(), kind)
	p := n.pod(number, host, labels)
	role, linkType, _ := strings.Cut(kind, " ")
	p.call.Type = role
	addresses := fmt.Sprintf(`{"address":"%s/24","gateway":"10.%d.0.254"},{"address":"%s/64","gateway":"fd00:%d::fe"}`, p.addresses[0], number, p.addresses[1], number)
	routes := `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`
	if role == "routed" {
		addresses, routes = fmt.Sprintf(`{"address":"%s/24"},{"address":"%s/64"}`, p.addresses[0], p.addresses[1]), ""
	}
	p.call.Conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net%d","type":"%s","linkType":"%s","ipam":{"type":"static","addresses":[%s]%s}}`, number, role, linkType, addresses, routes)
	return p
}

// host2 returns a host on another network of the node, by the node's interface up0.
func (n *node) host2(t *testing.T) *pod {
	t.Helper()
	p := &pod{ns: netopstest.New(t), addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("fd00:192::2")}}
	run(t, "ip link add up0 type veth peer name eth0 netns "+p.ns.Path())
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "up0").Run() })
	for _, line := range []string{
		"ip addr add 192.0.2.1/24 dev up0", "ip addr add fd00:192::1/64 dev up0 nodad", "ip link set up0 up",
	} {
		run(t, line)
	}
	for _, line := range []string{
		"addr add 192.0.2.2/24 dev eth0", "addr add fd00:192::2/64 dev eth0 nodad", "link set lo up", "link set eth0 up",
		"route add default via 192.0.2.1", "-6 route add default via fd00:192::1",
	} {
		run(t, "nsenter --net="+p.ns.Path()+" ip "+line)
	}
	return p
}

// forward makes the node forward packets, check no source, and send no redirects, which quote what they are about.
func forward(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
		"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// hop returns the hardware address of the node's interface to which a pod sends what is for others.
func (s *scene) hop(from *pod) net.HardwareAddr {
	name := "up0"
	switch {
	case from == s.outside:
	case from.call.Type == "bridge":
		name = "br" + from.call.ID[1:2]
	default:
		name = from.link()
	}
	return hardware(netopstest.At("/proc/self/ns/net").Link(s.t, name))
}

// routed sends a packet through the node.
func (s *scene) routed(from *pod, packet []byte) {
	s.t.Helper()
	from.sendFrame(s.t, frame(from.mac(s.t), s.hop(from), etherType(packet), packet))
}

// etherType returns the type of a frame with a packet.
func etherType(packet []byte) []byte {
	if packet[0]>>4 == 6 {
		return []byte{0x86, 0xdd}
	}
	return []byte{8, 0}
}

// at returns an address of a pod with a port.
func (p *pod) at(f int, port uint16) netip.AddrPort { return netip.AddrPortFrom(p.addresses[f], port) }

// toWeb are the ends of an attack on web.
func toWeb(s *scene) (from, to *pod) { return s.evil, s.web }

// outsideToWeb are those of an attack on web by another host.
func outsideToWeb(s *scene) (from, to *pod) { return s.outside, s.web }

// jailToOutside are those of an attack by a pod whose egress is forbidden.
func jailToOutside(s *scene) (from, to *pod) { return s.jail, s.outside }

// try plays an attack, and reports whether its text arrived. It would have arrived before a marker that follows on the same way, which
// the policies allow. With until it plays it until the text arrives.
func (a *attack) try(t *testing.T, s *scene, f int, until bool) bool {
	t.Helper()
	from, to := a.ends(s)
	text := fmt.Sprintf("forbidden %s %d %v", a.name, f, until)
	marker := "marker of " + text[len("forbidden "):]
	arrived := frames(t, to.ns, text, marker)
	if a.after != nil {
		defer a.after(s)
	}
	if until {
		await.Until(t, func() bool { a.send(s, from, to, f, text); return arrived[0].Load() > 0 }, func() string {
			out, _ := exec.Command("nft", "list", "ruleset").CombinedOutput()
			return "nothing arrives without the rules of " + strings.Join(a.ways, " and ") + ", so the test shows nothing:\n" + string(out)
		})
		return true
	}
	a.send(s, from, to, f, text)
	await.Until(t, func() bool {
		s.routed(from, udp(from.at(f, 7000), to.at(f, 7), marker))
		return arrived[1].Load() > 0
	}, func() string { return "no marker" })
	return arrived[0].Load() > 0
}

// each plays attacks of a scene.
func (s *scene) each(t *testing.T, all []attack, play func(t *testing.T, a *attack, f int)) {
	t.Helper()
	for i := range all {
		a := &all[i]
		if len(a.kinds) > 0 && !slices.Contains(a.kinds, s.kind) {
			continue
		}
		for f, family := range []string{"IPv4", "IPv6"} {
			if f == 0 && a.not4 || f == 1 && a.not6 {
				continue
			}
			t.Run(a.name+", "+family, func(t *testing.T) {
				before := s.t
				defer func() { s.t = before }()
				s.t = t
				play(t, a, f)
			})
		}
	}
}

// TestHostile: each attack fails on each kind of interface, also after nft has loaded what it listed. It succeeds when the rules of its way are
// deleted while no agent runs.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for _, kind := range hostileKinds() {
		t.Run(kind, func(t *testing.T) {
			if strings.HasSuffix(kind, "netkit") {
				netopstest.NeedKind(t, "netkit")
			}
			s := newScene(t, kind)
			stop := s.start()
			for _, p := range []*pod{s.evil, s.client, s.web, s.jail, s.web1, s.second, s.free} {
				s.add(p)
			}
			awaitRules(t, s.web.addresses[0].String())
			fails := func(t *testing.T, a *attack, f int) {
				if a.try(t, s, f, false) {
					t.Error("the attack succeeds")
				}
			}
			s.service(t)
			s.each(t, attacks(), fails)
			s.each(t, healthy(), func(t *testing.T, a *attack, f int) { a.try(t, s, f, true) })
			stop()
			saved := filepath.Join(s.Dir(), "saved")
			out, err := exec.Command("nft", "list", "ruleset").Output()
			if err == nil {
				err = os.WriteFile(saved, append([]byte("flush ruleset\n"), out...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			run(t, "nft -f "+saved)
			s.each(t, attacks(), fails)
			s.each(t, attacks(), func(t *testing.T, a *attack, f int) {
				if len(a.ways) > 0 {
					defer run(t, "nft -f "+saved)
					deleteWays(t, a.ways)
					a.try(t, s, f, true)
				}
			})
		})
	}
}

var listedHandle = regexp.MustCompile(`comment "([^"]*)" # handle ([0-9]+)$`)

// deleteWays deletes the rules of ways.
func deleteWays(t *testing.T, ways []string) {
	t.Helper()
	deleted, bridged := map[string]bool{}, false
	for _, table := range []string{"inet cnibox_policy", "bridge cnibox_policy"} {
		out, _ := exec.Command("nft", append([]string{"-a", "list", "table"}, strings.Fields(table)...)...).Output() // there may be no bridge
		bridged = len(out) > 0                                                                                       // the last one is of bridges
		chain := ""
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if words := strings.Fields(line); len(words) > 1 && words[0] == "chain" {
				chain = words[1]
			}
			if m := listedHandle.FindStringSubmatch(line); m != nil && slices.Contains(ways, m[1]) {
				run(t, fmt.Sprintf("nft delete rule %s %s handle %s", table, chain, m[2]))
				deleted[m[1]] = true
			}
		}
	}
	there := 0
	for _, w := range podfilter.Ways() {
		if slices.Contains(ways, w.Name) && (w.Family == "inet" || bridged) {
			there++
		}
	}
	if len(deleted) != there {
		t.Errorf("the rules of %v have the comments %v", ways, deleted)
	}
}

// TestWays: each way has an attack, and a row in docs/policy.md.
func TestWays(t *testing.T) {
	page, err := os.ReadFile("../../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range podfilter.Ways() {
		if !slices.ContainsFunc(attacks(), func(a attack) bool { return slices.Contains(a.ways, w.Name) }) {
			t.Errorf("no attack for the way %s", w.Name)
		}
		if !strings.Contains(string(page), "| `"+w.Name+"` |") {
			t.Errorf("docs/policy.md has no row for the way %s: a program %s", w.Name, w.Attack)
		}
	}
}

// connectionAttacks use what conntrack does not know, or believes.
func connectionAttacks() []attack {
	webToEvil := func(s *scene) (from, to *pod) { return s.web, s.evil }
	outsideToJail := func(s *scene) (from, to *pod) { return s.outside, s.jail }
	own := func(s *scene, from, to *pod, f int, text string) {
		s.routed(from, udp(to.at(f, 1000), to.at(f, 81), text))
	}
	return []attack{
		{name: "segment without a connection", ways: []string{"no-connection"}, ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, tcp(from.at(f, 1000), to.at(f, 81), tcpRST, text))
		}},
		{name: "a server's segment", ways: []string{"midstream"}, ends: webToEvil, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, tcp(from.at(f, 81), to.at(f, 1000), tcpACK, text))
		}},
		{name: "a server's chunk", ways: []string{"midstream"}, ends: webToEvil, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, sctp(from.at(f, 81), to.at(f, 1000), sctpHeartbeat, text))
		}},
		{name: "an answer to a pod without egress", ways: []string{"midstream"}, ends: outsideToJail, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, tcp(from.at(f, 81), to.at(f, 1000), tcpACK, text))
		}},
		{name: "own address", ways: []string{"own-address", "forged-source", "forged-frame", "to-itself"}, ends: toWeb, send: own},
		{name: "own address from outside", ways: []string{"own-address", "forged-pod"}, ends: outsideToWeb, send: own},
		{name: "an error about another's connection", ways: []string{"related"}, ends: toWeb, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(s.client, udp(s.client.at(f, 1000), to.at(f, 80), "x"))
			s.routed(from, unreachable(from.addresses[f], to.addresses[f], udp(to.at(f, 80), s.client.at(f, 1000), text)))
		}},
		{name: "an error of a pod without egress", ways: []string{"related"}, ends: jailToOutside, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(s.client, udp(s.client.at(f, 1000), to.at(f, 80), "x"))
			s.routed(from, unreachable(from.addresses[f], to.addresses[f], udp(to.at(f, 80), s.client.at(f, 1000), text)))
		}},
		{name: "routed neighbour discovery", ways: []string{"routed-nd"}, ends: toWeb, not4: true, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, icmp(from.addresses[f], to.addresses[f], 64, 135, []byte(text)))
		}},
	}
}

// sourceAttacks forge the source of packets.
func sourceAttacks() []attack {
	asClient := func(s *scene, from, to *pod, f int, text string) {
		s.routed(from, udp(s.client.at(f, 2000), to.at(f, 80), text))
	}
	links := []string{"ptp", "routed"}
	return []attack{
		{name: "another pod's address", ways: []string{"forged-source"}, kinds: links, ends: toWeb, send: asClient},
		{name: "another pod's address from outside", ways: []string{"forged-pod"}, ends: outsideToWeb, send: asClient},
		{name: "an answer to itself", ways: []string{"forged-source"}, kinds: links, ends: jailToOutside, send: func(s *scene, from, to *pod, f int, text string) {
			s.routed(from, udp(to.at(f, 53), from.at(f, 3000), "x"))
			s.routed(from, udp(from.at(f, 3000), to.at(f, 53), text))
		}},
	}
}
