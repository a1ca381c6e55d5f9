package agent

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store/cluster"
)

func addr(s string, flags string) netops.HostAddr {
	a := netops.HostAddr{Prefix: netip.MustParsePrefix(s), Global: true, Permanent: true}
	for _, f := range flags {
		switch f {
		case 'l':
			a.Global = false
		case 'd':
			a.Permanent = false
		case 't':
			a.Temporary = true
		case 'x':
			a.Deprecated = true
		case '?':
			a.Tentative = true
		}
	}
	return a
}

// twoCards returns the interfaces of the article's node. The first one is the hypervisor's.
func twoCards() []netops.HostLink {
	return []netops.HostLink{
		{Name: "lo", Index: 1, MTU: 65536, Up: true, Loopback: true, Addresses: []netops.HostAddr{addr("127.0.0.1/8", "l")}},
		{Name: "eth0", Index: 2, MTU: 1500, Up: true, Default4: true, Metric4: 100, Addresses: []netops.HostAddr{addr("10.0.2.15/24", "d"), addr("fe80::1/64", "l")}},
		{Name: "eth1", Index: 3, MTU: 9000, Up: true, Default4: true, Metric4: 200, Default6: true, Addresses: []netops.HostAddr{
			addr("172.17.8.101/24", "d"), addr("172.17.8.201/24", ""), addr("169.254.3.4/16", "l"),
			addr("2001:db8::aaaa/64", "dt"), addr("2001:db8::bbbb/64", "d"), addr("2001:db8::cccc/64", "dx"), addr("2001:db8::dddd/64", "?"), addr("fe80::2/64", "l"),
		}},
		{Name: "eth2", Index: 4, MTU: 1500, Addresses: nil},
	}
}

func TestChooseUnderlay(t *testing.T) {
	for _, tt := range []struct {
		name  string
		s     selection
		need6 bool
		want  string
	}{
		{"default route", selection{}, false, "eth0 1500 10.0.2.15 > 10.0.2.15"},
		{"default route, both families on one interface", selection{}, true, "eth1 9000 172.17.8.201 > 172.17.8.201 2001:db8::bbbb > 2001:db8::bbbb"},
		{"name", selection{ifaces: []string{"nosuch", "eth1"}}, false, "eth1 9000 172.17.8.201 > 172.17.8.201"},
		{"address", selection{ifaces: []string{"172.17.8.101"}}, false, "eth1 9000 172.17.8.101 > 172.17.8.101"},
		{"regular expression for an address", selection{regexes: []*regexp.Regexp{regexp.MustCompile(`^172\.17\.`)}}, false, "eth1 9000 172.17.8.201 > 172.17.8.201"},
		{"regular expression for a name", selection{regexes: []*regexp.Regexp{regexp.MustCompile(`^eth[1-9]`)}}, false, "eth1 9000 172.17.8.201 > 172.17.8.201"},
		{"can reach", selection{canReach: netip.MustParseAddr("198.51.100.1")}, false, "eth1 9000 172.17.8.201 > 172.17.8.201"},
		{"public address of an interface", selection{public4: netip.MustParseAddr("172.17.8.101")}, false, "eth1 9000 172.17.8.101 > 172.17.8.101"},
		{"public address behind NAT", selection{ifaces: []string{"eth1"}, public4: netip.MustParseAddr("203.0.113.7")}, false, "eth1 9000 172.17.8.201 > 203.0.113.7"},
		{"public address behind NAT, none named", selection{public4: netip.MustParseAddr("203.0.113.7")}, false, "no interface to the other nodes: no interface has the public address; name one with -iface if a router translates the address; there are: eth0 10.0.2.15/24, eth1 "},
		{"none fits", selection{ifaces: []string{"ens3"}, regexes: []*regexp.Regexp{regexp.MustCompile("^wg")}}, false, `no interface to the other nodes: no interface matches -iface "ens3", -iface-regex "^wg"; there are: eth0 10.0.2.15/24, eth1 172.17.8.101/24 172.17.8.201/24`},
		{"no address", selection{ifaces: []string{"eth2"}}, true, "interface \"eth2\" has no IPv4 address\ninterface \"eth2\" has no IPv6 address"},
		{"no IPv6", selection{ifaces: []string{"eth0"}}, true, `interface "eth0" has no IPv6 address`},
	} {
		u, err := tt.s.choose(twoCards(), true, tt.need6, func(a netip.Addr) (string, error) {
			if a == netip.MustParseAddr("198.51.100.1") {
				return "eth1", nil
			}
			return "", netops.ErrNotExist
		})
		got := fmt.Sprintf("%s %d %s > %s", u.link, u.mtu, u.local4, u.public4)
		if u.local6.IsValid() {
			got += fmt.Sprintf(" %s > %s", u.local6, u.public6)
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, tt.want) || err == nil && got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// TestOverrides: an annotation has precedence over the flag.
func TestOverrides(t *testing.T) {
	s := selection{public4: netip.MustParseAddr("10.0.2.15")}
	s.override(cluster.Overrides{NodeIP: netip.MustParseAddr("172.17.8.101")})
	u, err := s.choose(twoCards(), true, false, nil)
	if err != nil || u.link != "eth1" || u.local4 != netip.MustParseAddr("172.17.8.101") {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestNoDefaultRoute(t *testing.T) {
	links := twoCards()
	links[1].Default4, links[2].Default4 = false, false
	if _, err := (&selection{}).choose(links, true, false, nil); err == nil || !strings.Contains(err.Error(), "there is no default route; name the interface with -iface; there are: eth0") {
		t.Error(err)
	}
	if _, err := (&selection{}).choose(nil, true, false, nil); err == nil || !strings.Contains(err.Error(), "there are no interfaces") {
		t.Error(err)
	}
	u, err := (&selection{}).choose(links, false, true, nil)
	if err != nil || u.link != "eth1" || u.local4.IsValid() {
		t.Errorf("IPv6 alone: %+v, %v", u, err)
	}
}

func TestPodMTU(t *testing.T) {
	for _, tt := range []struct {
		backend    string
		configured int
		underlay   int
		v6         bool
		want       int
		err        string
	}{
		{backendVXLAN, 0, 1500, false, 1450, ""},
		{backendVXLAN, 0, 1500, true, 1430, ""},
		{backendVXLAN, 1400, 1500, false, 1350, ""},
		{backendVXLAN, 9000, 1500, true, 1430, ""}, // the kernel rejects a larger one
		{backendHostGW, 0, 1500, true, 1500, ""},
		{backendHostGW, 1400, 9000, false, 1400, ""},
		{backendWireGuard, 0, 1500, false, 1440, ""},
		{backendWireGuard, 1400, 1500, true, 1320, ""},
		{"wireguard ipv4", 0, 1500, true, 1440, ""},
		{"wireguard auto", 0, 1500, false, 1420, ""},
		{backendVXLAN, 0, 1340, true, 0, "the interface's MTU of 1340 leaves 1270 bytes for pods' IPv6 packets, they need 1280"},
		{backendVXLAN, 1280, 1500, true, 0, "the configured MTU of 1280 leaves 1210"},
	} {
		backend, mode, _ := strings.Cut(tt.backend, " ")
		c := &cluster.Config{EnableIPv4: true, EnableIPv6: true, Backend: cluster.Backend{Type: backend, Mode: mode, MTU: tt.configured}}
		got, err := podMTU(c, tt.underlay, tt.v6)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%+v: %d, %v", tt, got, err)
		}
	}
}

func TestDeviceName(t *testing.T) {
	for vni, want := range map[uint32][2]string{1: {"flannel.1", "flannel-v6.1"}, 4096: {"flannel.4096", "flannel-v6.4096"}, 16777215: {"fl.16777215", "fl6.16777215"}} {
		if got := [2]string{deviceName(vni, false), deviceName(vni, true)}; got != want {
			t.Errorf("%d: %q, want %q", vni, got, want)
		}
	}
	if mac := newMAC(); !isUnicast(mac) || mac[1] != '2' && mac[1] != '6' && mac[1] != 'a' && mac[1] != 'e' {
		t.Errorf("%s is no locally administered address", mac)
	}
}
