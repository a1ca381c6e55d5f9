package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/test/await"
)

// tunnelCase is a change of a host that has a tunnel.
type tunnelCase struct {
	name, script string
	// v6 selects the tunnel over IPv6, wireGuard that of WireGuard.
	v6, wireGuard bool
	// kind and what are of the only fault, "" for none.
	kind FaultKind
	what string
	// unfixed means that no command mends it.
	unfixed bool
}

func tunnelCases() []tunnelCase {
	const in, out = "chain in { type filter hook input priority 0; policy accept; ", "chain out { type filter hook output priority 0; "
	table := func(family, text string) string {
		return "nft 'table " + family + " fw { " + strings.ReplaceAll(text, "; }", "; }\n") + " }'"
	}
	return []tunnelCase{
		// healthy hosts
		{name: "nothing"},
		{name: "other ports", script: table("inet", in+"udp dport 4789 drop; tcp dport 8472 drop; udp dport != 8472 drop; }")},
		{name: "other nodes", script: table("ip", in+"ip saddr 192.0.2.9 drop; ip saddr != 192.0.2.0/24 drop; ip daddr 192.0.2.2 drop; }")},
		{name: "other devices", script: table("inet", in+`iifname "eth*" drop; iifname != "up0" drop; oifname "up0" drop; }`+out+`oifname "eth0" drop; }`)},
		{name: "accepted before", script: table("inet", "set nodes { type ipv4_addr; flags interval; elements = { 192.0.2.0-192.0.2.20, 198.51.100.0/24 }; } "+
			in+"udp dport 8472 ip saddr @nodes accept; udp dport 8472 drop; }")},
		{name: "accepted before a policy", script: table("inet", "chain in { type filter hook input priority 0; policy drop; ct state vmap { established : accept, new : jump new }; } chain new { udp dport { 53, 8472 } accept; }")},
		{name: "returned", script: table("inet", in+"jump others; } chain others { ip saddr 192.0.2.2 return; drop; }")},
		{name: "perhaps", script: table("inet", in+"udp dport 8472 limit rate over 10/second drop; meta mark 7 drop; }")},
		{name: "iptables", script: "iptables -P INPUT DROP; iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A INPUT -p udp -m multiport --dports 53,8000:9000 -j ACCEPT; iptables -A OUTPUT -p udp --dport 8473 -j DROP"},
		{name: "iptables-legacy", script: "iptables-legacy -P INPUT DROP; iptables-legacy -N nodes; iptables-legacy -A INPUT -i up+ -j nodes; iptables-legacy -A nodes ! -s 192.0.2.0/24 -j RETURN; iptables-legacy -A nodes -p udp --dport 8472 -j ACCEPT"},
		{name: "IPv4 for IPv6", v6: true, script: table("ip", in+"udp dport 8472 drop; }")},
		{name: "an answer of WireGuard", wireGuard: true, script: table("inet", "chain in { type filter hook input priority 0; policy drop; ct state established accept; }")},
		{name: "route with enough", script: "ip route add 192.0.2.2 dev up0 mtu 1500"},
		{name: "a rule for another node", script: "ip rule add to 192.0.2.9 blackhole"},

		// rules that drop
		{name: "input", kind: ReceivedDropped, what: "inet fw in handle 2: drop (no tunnels)", script: table("inet", in+`udp dport 8472 counter drop comment "no tunnels"; }`)},
		{name: "input of IPv6", v6: true, kind: ReceivedDropped, what: "ip6 fw in handle 2: drop", script: table("ip6", in+"ip6 saddr 2001:db8::/32 udp dport 8472 log drop; }")},
		{name: "output", kind: SentDropped, what: "ip fw out handle 2: drop", script: table("ip", out+"ip daddr 192.0.2.2 meta l4proto udp reject; }")},
		{name: "postrouting", kind: SentDropped, what: "inet fw post handle 2: drop", script: table("inet", `chain post { type filter hook postrouting priority 0; oifname "up*" udp dport 8000-9000 drop; }`)},
		{name: "prerouting", kind: ReceivedDropped, what: "inet fw pre handle 3: drop", script: table("inet", `chain pre { type filter hook prerouting priority -300; iifname "up0" udp dport { 53, 8472 } drop; }`)},
		{name: "ingress", kind: ReceivedDropped, what: "netdev fw i handle 2: drop", script: table("netdev", `chain i { type filter hook ingress device "up0" priority 0; udp dport 8472 drop; }`)},
		{name: "a map", kind: ReceivedDropped, what: "inet fw in handle 3: drop", script: table("inet", "map m { type inet_service : verdict; elements = { 8472 : drop, 53 : accept }; } "+in+"udp dport vmap @m; }")},
		{name: "policy", kind: ReceivedDropped, what: "inet fw in: policy drop", script: table("inet", "chain in { type filter hook input priority 0; policy drop; ct state established,related accept; iifname lo accept; tcp dport 22 accept; }")},
		{name: "policy and unknown drops", kind: ReceivedDropped, what: "inet fw in: policy drop", script: table("inet", "chain in { type filter hook input priority 0; policy drop; meta mark 7 drop; }")},
		{name: "a subchain", kind: SentDropped, what: "ip fw deny handle 4: drop", script: table("ip", "chain deny { ip daddr 192.0.2.9 return; drop; } "+out+"meta l4proto udp goto deny; }")},
		{name: "iptables-nft", kind: SentDropped, what: "ip filter OUTPUT handle 2: drop", script: "iptables -A OUTPUT -p udp -m udp --dport 8472 -j DROP"},
		{name: "iptables-nft, REJECT", kind: ReceivedDropped, what: "ip6 filter INPUT handle 2: drop", v6: true, script: "ip6tables -A INPUT -p udp -m multiport --dports 53,8472 -j REJECT"},
		{name: "iptables-legacy", kind: ReceivedDropped, what: "iptables-legacy filter INPUT: -p udp -m udp --dport 8472 -j DROP", script: "iptables-legacy -A INPUT -s 192.0.2.9 -j ACCEPT; iptables-legacy -A INPUT -p udp --dport 8472 -j DROP"},
		{name: "iptables-legacy, policy", kind: SentDropped, what: "ip6tables-legacy filter OUTPUT: policy DROP", v6: true, script: "ip6tables-legacy -P OUTPUT DROP; ip6tables-legacy -A OUTPUT -p tcp -j ACCEPT"},
		{name: "iptables-legacy, raw", kind: ReceivedDropped, what: "iptables-legacy raw PREROUTING: -d 192.0.2.1/32 -i up+ -j DROP", script: "iptables-legacy -t raw -A PREROUTING -d 192.0.2.1 -i up+ -j DROP"},
		{name: "WireGuard", wireGuard: true, kind: ReceivedDropped, what: "inet fw in handle 2: drop", script: table("inet", in+"udp sport 51820 udp dport 51820 drop; }")},

		// routes
		{name: "route MTU", kind: RouteMTU, what: "the route over up0 has 1400, and vx0 needs 1500", script: "ip route add 192.0.2.2 dev up0 mtu 1400"},
		{name: "route MTU of IPv6", v6: true, kind: RouteMTU, what: "the route over up0 has 1400, and vx6 needs 1500", script: "ip -6 route add 2001:db8::2 dev up0 mtu 1400"},
		{name: "link MTU", kind: LinkMTU, what: "up0 has 1450, and vx0 needs 1500", script: "ip link set up0 mtu 1450"},
		{name: "WireGuard's MTU", wireGuard: true, kind: RouteMTU, what: "the route over up0 has 1400, and wg0 needs 1500", script: "ip route add 192.0.2.2 dev up0 mtu 1400", unfixed: true},
		{name: "a rule", wireGuard: true, kind: PeerUnreachable, what: "ip rule 100 (lookup 77): blackhole 0.0.0.0/0", script: "ip route add blackhole default table 77; ip rule add priority 100 to 192.0.2.2 lookup 77"},
		{name: "a rule for a routed node", kind: PeerUnreachable, what: "ip rule 100 (blackhole)", script: "bridge fdb del 02:00:00:00:00:77 dev vx0 dst 192.0.2.2; " +
			"bridge fdb append 02:00:00:00:00:77 dev vx0 dst 198.51.100.2; ip route add default via 192.0.2.254; ip rule add priority 100 to 198.51.100.0/24 blackhole"},
		{name: "a rule for a node on the link", script: "ip rule add priority 100 to 192.0.2.0/24 blackhole"},
		{name: "a rule that drops", kind: PeerUnreachable, what: "ip rule 100 (prohibit)", v6: true, script: "ip -6 rule add priority 100 to 2001:db8::2 prohibit"},
		{name: "no route", wireGuard: true, kind: PeerUnreachable, what: "no route matches", script: "ip route flush dev up0", unfixed: true},
	}
}

// TestFaults: only what keeps the datagrams of a tunnel from a peer is reported, and the printed command
// mends it.
func TestFaults(t *testing.T) {
	for _, c := range tunnelCases() {
		t.Run(c.name, func(t *testing.T) {
			n := freshNet(t)
			nstest.Run(t, "sh", "-ec", `
ip link set lo up
ip link add up0 type veth peer name up1
ip link set up1 up
ip link set up0 up
ip addr add 192.0.2.1/24 dev up0
ip addr add 2001:db8::1/64 dev up0 nodad
ip link add vx0 type vxlan id 1 dstport 8472 local 192.0.2.1 dev up0 nolearning
bridge fdb append 02:00:00:00:00:77 dev vx0 dst 192.0.2.2
ip link add vx6 type vxlan id 2 dstport 8472 local 2001:db8::1 dev up0 nolearning
bridge fdb append 02:00:00:00:00:77 dev vx6 dst 2001:db8::2
ip link set vx6 mtu 1430
`+c.script)
			faults := func() []Fault {
				t.Helper()
				all, err := List(t.Context(), n)
				if err != nil || len(all) != 2 {
					t.Fatalf("tunnels %v, %v", all, err)
				}
				device := all[0]
				if device.Peers[0].Addr().Is6() != c.v6 {
					device = all[1]
				}
				if c.wireGuard { // as List reads it with a kernel that has WireGuard
					peer := netip.MustParseAddrPort("192.0.2.2:51820")
					device = Device{Name: "wg0", Kind: "wireguard", MTU: 1440, Port: 51820, Peers: []netip.AddrPort{peer}}
				}
				filter, err := look.Read(t.Context(), n)
				if err != nil {
					t.Fatal(err)
				}
				found, err := Faults(t.Context(), n, filter, &device, false)
				if err != nil {
					t.Fatal(err)
				}
				return found
			}
			found := faults()
			if c.kind == "" {
				if len(found) > 0 {
					t.Fatalf("on a healthy host: %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Kind != c.kind || found[0].What != c.what || !strings.Contains(found[0].String(), "node ") {
				t.Fatalf("want %s: %s, have %+v", c.kind, c.what, found)
			}
			if c.unfixed {
				return
			}
			rules := nstest.Run(t, "nft", "list", "ruleset")
			nstest.Run(t, "sh", "-ec", found[0].Fix)
			if left := faults(); len(left) > 0 {
				t.Errorf("after %q: %+v\n%s", found[0].Fix, left, rules)
			}
			for line := range strings.Lines(rules) {
				if now := nstest.Run(t, "nft", "list", "ruleset"); !strings.Contains(now, strings.TrimSpace(line)) && !strings.Contains(line, "counter packets") {
					t.Errorf("%q removed %q", found[0].Fix, line)
				}
			}
		})
	}
}

// TestFaultLearnt: a router on the path reports its MTU, which the kernel keeps for a while.
func TestFaultLearnt(t *testing.T) {
	n := freshNet(t)
	router := nstest.NewNeighbour(t)
	nstest.Run(t, "sh", "-ec", fmt.Sprintf(`
ip link set lo up
ip link add up0 type veth peer name up1 netns %[1]d
ip link set up0 up
ip addr add 192.0.2.1/24 dev up0
ip route add default via 192.0.2.254
nsenter -t %[1]d -n sh -ec '
ip link set up1 up
ip addr add 192.0.2.254/24 dev up1
ip link add far type veth peer name end
ip link set far up mtu 1400
ip link set end up mtu 1400
ip addr add 198.51.100.1/24 dev far
ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:99 dev far
echo 1 >/proc/sys/net/ipv4/ip_forward'
ip link add vx0 type vxlan id 1 dstport 8472 local 192.0.2.1 dev up0 nolearning
bridge fdb append 02:00:00:00:00:77 dev vx0 dst 198.51.100.2
`, router.PID))
	faults := func() []Fault {
		t.Helper()
		all, err := List(t.Context(), n)
		if err != nil || len(all) != 1 {
			t.Fatalf("tunnels %v, %v", all, err)
		}
		filter, err := look.Read(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Faults(t.Context(), n, filter, &all[0], true)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := faults(); len(found) > 0 {
		t.Fatalf("before: %+v", found)
	}
	c := nstest.UDP(t, nil, "192.0.2.1:0")
	await.Until(t, func() bool {
		_, _ = c.WriteToUDP(make([]byte, 1472), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.2:9")))
		return len(faults()) > 0
	}, func() string { return "the router's MTU is not reported" })
	found := faults()
	if found[0].Kind != RouteMTU || found[0].What != "a router of the path over up0 has 1400, and vx0 needs 1500" || found[0].Fix != "ip link set up0 mtu 1400" {
		t.Errorf("have %+v", found)
	}
}
