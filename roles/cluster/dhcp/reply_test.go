package dhcp

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

func someWho(t testing.TB) *profile {
	t.Helper()
	c, err := protocol.Decode([]byte(`{"ipam":{"request":[{"option":"interface-mtu"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	return &profile{conf: c, identity: "c1/lan/eth0", log: slog.New(slog.DiscardHandler)}
}

// FuzzReply4: any reply of a server gives a valid grant, or none.
func FuzzReply4(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	request, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}))
	if err != nil {
		f.Fatal(err)
	}
	_, dst, _ := net.ParseCIDR("10.0.0.0/8")
	ack, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 10)),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithLeaseTime(60), dhcpv4.WithDomainSearchList("a.b"),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1))), dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1))),
		dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(&dhcpv4.Route{Dest: dst, Router: net.IPv4(10, 9, 0, 2)})),
		dhcpv4.WithGeneric(dhcpv4.OptionStaticRoutingTable, []byte{192, 168, 1, 0, 10, 9, 0, 3}), dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 0}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ack.ToBytes())
	w := someWho(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := dhcpv4.FromBytes(b)
		if err != nil || !answers4(in, request) || in.MessageType() != dhcpv4.MessageTypeAck {
			return
		}
		g, err := w.grant4(&reply{DHCPv4: in, mac: mac}, time.Unix(1000, 0))
		if err != nil {
			return
		}
		checkGrant(t, g)
	})
}

// FuzzReply6 is the same for DHCPv6.
func FuzzReply6(f *testing.F) {
	c := &client6{profile: someWho(f)}
	request := c.message(dhcpv6.MessageTypeRequest, &dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, netip.MustParseAddr("fd09::1"))
	request.TransactionID = dhcpv6.TransactionID{1, 2, 3}
	reply, err := dhcpv6.NewReplyFromMessage(request, dhcpv6.WithServerID(request.Options.ServerID()), dhcpv6.WithDNS(net.ParseIP("fd09::1")), dhcpv6.WithDomainSearchList("a.b"),
		dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd09::1"), PreferredLifetime: time.Minute, ValidLifetime: time.Hour}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(reply.ToBytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := dhcpv6.MessageFromBytes(b)
		if err != nil || !answers6(in, request) {
			return
		}
		addr := address6(in)
		if !addr.IsValid() {
			_ = status6(in)
			return
		}
		g, err := c.profile.grant6(in, addr, net.HardwareAddr{2, 0, 0, 0, 0, 1}, time.Unix(1000, 0))
		if err != nil {
			return
		}
		checkGrant(t, g)
		if _, err := serverDUID(g); err != nil {
			t.Errorf("server %q: %v", g.Server, err)
		}
	})
}

// checkGrant checks the properties of a grant on which the other code depends.
func checkGrant(t *testing.T, g *store.DHCPGrant) {
	t.Helper()
	if !g.Address.IsValid() || g.Address.Bits() == 0 || g.Address.Addr().IsUnspecified() || g.Address.Addr().IsMulticast() {
		t.Errorf("address %s", g.Address)
	}
	ordered := g.Start.Before(g.Renew) && !g.Rebind.Before(g.Renew) && g.Expire.After(g.Rebind)
	if !g.Expire.IsZero() && !ordered {
		t.Errorf("times %v %v %v %v", g.Start, g.Renew, g.Rebind, g.Expire)
	}
	res, err := decodeResult(g)
	if err != nil {
		t.Fatal(err)
	}
	near := []netip.Prefix{g.Address.Masked()}
	for _, r := range res.Routes {
		gw := attach.Addr(r.GW)
		dst, _ := attach.Prefix(r.Dst)
		if gw.IsUnspecified() {
			near = append(near, dst)
		} else if !slices.ContainsFunc(near, func(n netip.Prefix) bool { return n.Contains(gw) }) {
			t.Errorf("route %s via %s: of %s", dst, gw, near)
		}
	}
	for _, s := range append(res.DNS.Search, res.DNS.Domain) {
		if s != "" && !isDomain(s) {
			t.Errorf("domain %q", s)
		}
	}
}

// TestTimes: contradictory values of T1 and T2 are replaced.
func TestTimes(t *testing.T) {
	for _, c := range []struct{ lease, t1, t2, wantT1, wantT2 time.Duration }{
		{100, 50, 87, 50, 87},
		{100, 0, 0, 50, 87},
		{100, 200, 300, 50, 87},
		{100, 90, 80, 90, 90},
		{100, 10, 5, 10, 87},
		{100, -5, 50, 50, 87},
	} {
		var g store.DHCPGrant
		start := time.Unix(1000, 0)
		setTimes(&g, start, c.lease*time.Second, c.t1*time.Second, c.t2*time.Second)
		t1, t2 := g.Renew.Sub(start), g.Rebind.Sub(start).Truncate(time.Second)
		if t1 != c.wantT1*time.Second || t2 != c.wantT2*time.Second || !g.Expire.Equal(start.Add(c.lease*time.Second)) {
			t.Errorf("%v: T1 %s T2 %s end %s", c, t1, t2, g.Expire)
		}
	}
	var g store.DHCPGrant
	if setTimes(&g, time.Now(), infinite, 0, 0); !g.Expire.IsZero() {
		t.Errorf("an infinite lease ends at %s", g.Expire)
	}
	if setTimes(&g, time.Unix(1000, 0), 0, 0, 0); g.Expire.Sub(g.Start) < minLease {
		t.Errorf("a lease of zero seconds lasts %s", g.Expire.Sub(g.Start))
	}
}

func TestPause(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		time.Hour: 30 * time.Minute, 90 * time.Second: time.Minute, 10 * time.Second: 10 * time.Second, -time.Second: 0,
	} {
		if got := pause(left); got != want {
			t.Errorf("with %s left %s, want %s", left, got, want)
		}
	}
}
