package firewall_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// bridgeFilter turns the filtering of bridged frames by iptables (br_netfilter)
// on or off. ok is false if br_netfilter is not loaded.
func bridgeFilter(t *testing.T, on bool) (ok bool) {
	t.Helper()
	for _, f := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		value := "0"
		if on {
			value = "1"
		}
		if err := os.WriteFile("/proc/sys/net/bridge/"+f, []byte(value), 0); err != nil {
			return false
		}
	}
	return true
}

// withBridgeFilter runs a test with br_netfilter and without.
func withBridgeFilter(t *testing.T, f func(*testing.T)) {
	t.Helper()
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprintf("br_netfilter %t", on), func(t *testing.T) {
			if !bridgeFilter(t, on) && on {
				t.Skip("the kernel's br_netfilter is not loaded")
			}
			f(t)
		})
	}
}

// TestPolicySameBridge is the reference's live scenario "same-bridge": networks
// with a policy are isolated from each other, except for replies and published
// ports. Traffic from elsewhere is accepted, because routed networks need it.
func TestPolicySameBridge(t *testing.T) {
	withBridgeFilter(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.attach("a", 1, `{"ingressPolicy":"same-bridge"}`)
		w.attach("b", 1, `{"ingressPolicy":"same-bridge"}`)
		w.attach("c", 2, `{"ingressPolicy":"same-bridge"}`)
		w.attach("o", 3, `{"ingressPolicy":"open"}`)
		w.reach("a", "b", true)
		w.reach("b", "a", true)
		w.reach("a", "c", false)
		w.reach("c", "b", false)
		w.reach("o", "a", true)
		w.reach("outside", "b", true)
		w.reach("b", "o", true)
		w.reach("b", "outside", true)
		w.reach("c", "o", true)
		w.published("outside", a)
		w.published("c", a)
		w.reach("a", "c", true) // the reply
		w.del(a)
		w.reach("c", "b", false) // the policy protects the network's other containers too
	})
}

// published maps a port of the host to a container, as portmap does, and sends
// to it.
func (w *world) published(from string, p *peer) {
	w.t.Helper()
	run(w.t, "nft add table inet published")
	defer run(w.t, "nft delete table inet published")
	run(w.t, "nft add chain inet published prerouting { type nat hook prerouting priority -100 ; }")
	run(w.t, fmt.Sprintf("nft add rule inet published prerouting udp dport 8080 dnat ip to %s:%d", p.addrs[0], w.port))
	run(w.t, fmt.Sprintf("nft add rule inet published prerouting udp dport 8080 dnat ip6 to [%s]:%d", p.addrs[1], w.port))
	for i, host := range []string{"192.0.2.1:8080", "[fd00:ff::1]:8080"} {
		w.reachAt(from, i, netip.MustParseAddrPort(host), p.conns[i], true)
	}
}

// TestPolicyIsolated is the reference's live scenario "isolated". Containers do
// not reach each other through their bridge or through their gateway.
func TestPolicyIsolated(t *testing.T) {
	withBridgeFilter(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.attach("a", 1, `{"ingressPolicy":"isolated"}`)
		b := w.attach("b", 1, `{"ingressPolicy":"isolated"}`)
		w.attach("c", 2, `{"ingressPolicy":"isolated"}`)
		w.reach("a", "b", false)
		w.reach("b", "a", false)
		w.reach("a", "c", false)
		w.reach("outside", "a", true)
		w.reach("a", "outside", true)
		w.published("outside", a)
		in(t, b.ns, "ip route add "+a.addrs[0].String()+"/32 via 10.1.0.1 dev eth0", "ip -6 route add "+a.addrs[1].String()+"/128 via fd00:1::1 dev eth0")
		w.reach("b", "a", false)
	})
}

// TestForwardDrop makes the host drop forwarded packets, as Docker does.
// Packets from containers, replies and packets to published ports are accepted,
// and no others.
func TestForwardDrop(t *testing.T) {
	for _, c := range []struct {
		name  string
		setUp func(testing.TB)
		conf  string
	}{
		{"iptables-nft", docker, `{}`},
		{"iptables-nft, asked for", docker, `{"backend":"iptables"}`},
		{"nft", nftDrop, `{}`},
		{"iptables-legacy", legacyDrop, `{}`},
		{"both", func(t testing.TB) { docker(t); legacyDrop(t) }, `{}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			before := w.attached("before", 1, c.conf)
			w.reach("before", "outside", true)
			c.setUp(t)
			w.reach("before", "outside", false)
			w.OK(before.firewall)
			w.reach("before", "outside", true)
			w.reach("outside", "before", true) // the reply
			w.attach("a", 1, c.conf)
			w.attach("b", 2, c.conf)
			w.reach("outside", "a", false)
			w.reach("a", "b", true)
			w.published("outside", w.peers["b"])
			w.del(w.peers["a"])
			w.reach("before", "outside", true)
		})
	}
}

// TestAdminChain: the administrator's chain is evaluated first.
func TestAdminChain(t *testing.T) {
	w := newWorld(t)
	docker(t)
	w.attach("a", 1, `{"iptablesAdminChainName":"MINE"}`)
	w.reach("a", "outside", true)
	run(t, "iptables-nft -A MINE -s 10.1.0.0/24 -j DROP")
	run(t, "ip6tables-nft -A MINE -s fd00:1::/64 -j DROP")
	w.reach("a", "outside", false)
	w.del(w.peers["a"])
	run(t, "iptables-nft -F MINE")
	run(t, "ip6tables-nft -F MINE")
}

// TestOtherFirewalls: CHECK reports what another program changes in its own
// tables and in iptables', and the next ADD restores our rules.
func TestOtherFirewalls(t *testing.T) {
	w := newWorld(t)
	docker(t)
	run(t, "nft add table inet other")
	t.Cleanup(func() { run(t, "nft delete table inet other") })
	a := w.attach("a", 1, `{"ingressPolicy":"same-bridge"}`)
	run(t, "nft flush table inet other")
	if c := w.check(a); c.Code != 0 {
		t.Errorf("CHECK after another program's table was flushed: %s", c.Stdout)
	}
	run(t, "iptables-nft -F")
	w.reach4("a", "outside", false)
	before := run(t, "nft -s list ruleset") // without counters
	w.Fail(check(a), 106)
	if after := run(t, "nft -s list ruleset"); after != before {
		t.Errorf("CHECK changed the ruleset:\n%s", after)
	}
	b := w.attach("b", 2, `{"ingressPolicy":"same-bridge"}`) // of another network
	w.OK(check(a))
	w.OK(check(b))
	w.reach("a", "outside", true)
	run(t, "iptables-nft -F")
	run(t, "iptables-nft -P FORWARD ACCEPT")
	w.OK(check(a)) // no firewall drops its traffic
	w.reach("a", "outside", true)
}

// TestOtherPolicy: our rules cannot accept packets for another firewall whose
// policy drops them. STATUS logs its chain.
func TestOtherPolicy(t *testing.T) {
	w := newWorld(t)
	a := w.attach("a", 1, `{}`)
	run(t, "nft add table inet mine")
	t.Cleanup(func() { run(t, "nft delete table inet mine") })
	run(t, "nft add chain inet mine guard { type filter hook forward priority 5 ; policy drop ; }")
	w.reach("a", "outside", false)
	status := verb(a.firewall, "STATUS")
	status.ID, status.Netns, status.IfName = "", "", ""
	if s := w.OK(status); !strings.Contains(s.Stderr, "inet mine guard") {
		t.Errorf("STATUS does not log the chain: %q", s.Stderr)
	}
	run(t, "nft add rule inet mine guard iifname br1 accept")
	w.reach("a", "outside", true)
	run(t, "nft flush table inet mine")
	w.OK(check(a))
}

func check(p *peer) rolestest.Call {
	c := p.firewall
	c.Verb = "CHECK"
	return c
}

// reach4 is reach for IPv4 only.
func (w *world) reach4(from, to string, want bool) {
	w.t.Helper()
	w.reachAt(from, 0, netip.AddrPortFrom(w.peers[to].addrs[0], w.port), w.peers[to].conns[0], want)
}
