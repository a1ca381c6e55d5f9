package packets_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/test/await"
)

// TestRawUDP exchanges datagrams between interfaces without addresses. It also receives
// datagrams from an ordinary UDP socket.
func TestRawUDP(t *testing.T) {
	n, ns, box := pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	client, err := packets.OpenRawUDP(ns, index(t, n, ns, "eth0"), 68)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := packets.OpenRawUDP(nil, index(t, n, nil, "rawp"), 67)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	all := netip.MustParseAddrPort("255.255.255.255:67")
	var got packets.Datagram
	exchange(t, func(ctx context.Context) error {
		return client.Send(ctx, netip.IPv4Unspecified(), all, nil, []byte("odd"))
	}, func(ctx context.Context) (err error) {
		got, err = server.Receive(ctx)
		return err
	})
	if string(got.Payload) != "odd" || got.From.String() != "0.0.0.0:68" || len(got.MAC) != 6 {
		t.Errorf("came in %+v", got)
	}
	if err := server.Send(ctx, netip.MustParseAddr("10.9.0.1"), netip.MustParseAddrPort("10.9.0.2:68"), got.MAC, []byte("back")); err != nil {
		t.Fatal(err)
	}
	back, err := client.Receive(ctx)
	if err != nil || string(back.Payload) != "back" || back.From.String() != "10.9.0.1:67" {
		t.Errorf("came in %+v, %v", back, err)
	}
	inside(t, box, "ip", "address", "add", "10.9.0.2/24", "dev", "eth0")
	nstest.IP(t, "address add 10.9.0.1/24 dev rawp")
	conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 68})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 { // the second write would fail after an ICMP port unreachable
		if _, err := conn.Write([]byte("kernel")); err != nil {
			t.Fatal(err)
		}
		if back, err = client.Receive(ctx); err != nil || string(back.Payload) != "kernel" {
			t.Errorf("came in %+v, %v", back, err)
		}
	}
}

// exchange sends repeatedly until a datagram is received. A link that just came up can
// lose datagrams.
func exchange(t *testing.T, send, receive func(context.Context) error) {
	t.Helper()
	for end := await.Deadline(); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		err := send(ctx)
		if err == nil {
			err = receive(ctx)
		}
		cancel()
		if err == nil {
			return
		}
	}
	t.Fatal("nothing came in")
}

func TestRawUDPRefuses(t *testing.T) {
	n, ns, _ := pair(t)
	u, err := packets.OpenRawUDP(ns, index(t, n, ns, "eth0"), 68)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	to := netip.MustParseAddrPort("10.9.0.1:67")
	for name, err := range map[string]error{
		"family": u.Send(context.Background(), netip.IPv6Unspecified(), to, nil, nil),
		"size":   u.Send(context.Background(), netip.IPv4Unspecified(), to, nil, make([]byte, 1<<16)),
		"mac":    u.Send(context.Background(), netip.IPv4Unspecified(), to, make(net.HardwareAddr, 20), nil),
	} {
		if !errors.Is(err, netops.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := packets.OpenRawUDP(ns, 9999, 68); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("no such link: %v", err)
	}
}

// TestEnsureLinkLocal checks that the address can be bound at once, whatever the previous
// state of the link.
func TestEnsureLinkLocal(t *testing.T) {
	for name, before := range map[string][]string{
		"being probed":  {"ip", "link", "set", "eth0", "up"},
		"IPv6 off":      {"sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6"},
		"not generated": {"sh", "-c", "ip link set eth0 down addrgenmode none; ip link set eth0 up"},
	} {
		t.Run(name, func(t *testing.T) {
			n, ns, box := pair(t)
			inside(t, box, before...)
			addr, err := n.EnsureLinkLocal(context.Background(), ns, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			u, err := packets.OpenUDP6(ns, index(t, n, ns, "eth0"), netip.AddrPortFrom(addr, 546))
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			if err := u.Send(context.Background(), netip.MustParseAddrPort("[ff02::1:2]:547"), []byte("x")); err != nil {
				t.Error(err)
			}
			again, err := n.EnsureLinkLocal(context.Background(), ns, "eth0")
			if err != nil || again != addr {
				t.Errorf("again %s, %v", again, err)
			}
			if s := inside(t, box, "ip", "-6", "address", "show", "dev", "eth0"); strings.Count(s, "fe80::") != 1 || strings.Contains(s, "tentative") {
				t.Errorf("addresses:\n%s", s)
			}
		})
	}
}
