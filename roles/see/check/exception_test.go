package check

import (
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/netops/look"
)

// TestException: a condition is one that the chain can have.
func TestException(t *testing.T) {
	pod, other, port := netip.MustParseAddr("10.78.0.2"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")
	packet := Packets{From: pod, To: other, Original: port, In: []string{"veth0"}, Out: []string{"eth0"}}
	pods, answers := Packets{In: []string{"br78", "veth9"}}, Packets{Out: []string{"br78", "veth9"}, AreAnswers: true}
	for _, c := range []struct {
		drop look.Drop
		of   Packets
		want string
	}{
		{look.Drop{Chain: "inet fw f"}, packet, "ip saddr 10.78.0.2 ip daddr 192.0.2.9 accept"},
		{look.Drop{Chain: "inet fw f"}, Packets{From: netip.MustParseAddr("fd00::2"), To: netip.MustParseAddr("2001:db8::9")}, "ip6 saddr fd00::2 ip6 daddr 2001:db8::9 accept"},
		{look.Drop{Chain: "inet fw f", SeesOriginal: true}, packet, "ip saddr 10.78.0.2 ip daddr 192.0.2.1 accept"},
		{look.Drop{Chain: "inet fw f"}, pods, "iifname '{ br78, veth9 }' accept"},
		{look.Drop{Chain: "inet fw f"}, answers, "oifname '{ br78, veth9 }' ct state established,related accept"},
		{look.Drop{Chain: "ip filter FORWARD"}, pods, "iifname br78 accept"},
		{look.Drop{Chain: "ip filter FORWARD", IsLegacy: true}, answers, "-o br78 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"},
		{look.Drop{Chain: "ip filter FORWARD", IsLegacy: true}, packet, "-s 10.78.0.2 -d 192.0.2.9 -j ACCEPT"},
		{look.Drop{Chain: "bridge x f"}, packet, "iifname veth0 oifname eth0 accept"},
		{look.Drop{Chain: "bridge x f"}, answers, "oifname '{ br78, veth9 }' accept"},
		{look.Drop{Chain: "arp x f"}, Packets{From: pod, To: other, In: []string{"br78"}, Out: []string{""}}, "iifname br78 accept"},
		{look.Drop{Chain: "netdev x f"}, packet, "ip saddr 10.78.0.2 accept"},
		{look.Drop{Chain: "netdev x f", IsAlways: true}, packet, "accept"},
		{look.Drop{Chain: "netdev x f"}, answers, "accept"},
	} {
		c.drop.Before = "insert"
		if have := Exception(&c.drop, c.of); have != "insert "+c.want {
			t.Errorf("%+v of %+v: %q, want %q", c.drop, c.of, have, c.want)
		}
	}
}
