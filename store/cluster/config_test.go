package cluster

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseConfig(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		want       Config
	}{
		{"the article's", `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`, Config{
			EnableIPv4: true, Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24,
			SubnetMin: netip.MustParseAddr("10.244.1.0"), SubnetMax: netip.MustParseAddr("10.244.255.0"),
			Backend: Backend{Type: "vxlan", VNI: 1},
		}},
		{"no backend, any case, host bits", `{"nETWORK":"10.1.2.3/22","backend":null}`, Config{
			EnableIPv4: true, Network: netip.MustParsePrefix("10.1.0.0/22"), SubnetLen: 24,
			SubnetMin: netip.MustParseAddr("10.1.1.0"), SubnetMax: netip.MustParseAddr("10.1.3.0"),
			Backend: Backend{Type: "vxlan", VNI: 1},
		}},
		{"small network", `{"Network":"10.1.0.0/28","Backend":{"Port":0,"TxChecksumOffload":true}}`, Config{
			EnableIPv4: true, Network: netip.MustParsePrefix("10.1.0.0/28"), SubnetLen: 30,
			SubnetMin: netip.MustParseAddr("10.1.0.4"), SubnetMax: netip.MustParseAddr("10.1.0.12"),
			Backend: Backend{Type: "vxlan", VNI: 1, TxChecksum: "on"},
		}},
		{"every key", `{"EnableIPv4":true,"EnableIPv6":true,"EnableNFTables":true,"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0",
			"IPv6Network":"fd00::/48","IPv6SubnetLen":64,"IPv6SubnetMin":"fd00:0:0:1::","IPv6SubnetMax":"fd00:0:0:f::",
			"Backend":{"Type":"VXLAN","VNI":4096,"Port":4789,"GBP":true,"Learning":true,"DirectRouting":true,"MTU":9000,"TxChecksumOffload":false}}`, Config{
			EnableIPv4: true, EnableIPv6: true, Network: netip.MustParsePrefix("10.0.0.0/8"), SubnetLen: 20,
			SubnetMin: netip.MustParseAddr("10.10.0.0"), SubnetMax: netip.MustParseAddr("10.99.0.0"),
			IPv6Network: netip.MustParsePrefix("fd00::/48"), IPv6SubnetLen: 64,
			IPv6SubnetMin: netip.MustParseAddr("fd00:0:0:1::"), IPv6SubnetMax: netip.MustParseAddr("fd00:0:0:f::"),
			Backend: Backend{Type: "vxlan", VNI: 4096, Port: 4789, GBP: true, Learning: true, DirectRouting: true, MTU: 9000, TxChecksum: "off"},
		}},
		{"wireguard", `{"Network":"10.244.0.0/16","Backend":{"Type":"WireGuard","ListenPort":4500,"PSK":"YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=","Mode":"separate","PersistentKeepaliveInterval":25,"MTU":1400}}`, Config{
			EnableIPv4: true, Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24,
			SubnetMin: netip.MustParseAddr("10.244.1.0"), SubnetMax: netip.MustParseAddr("10.244.255.0"),
			Backend: Backend{
				Type: "wireguard", VNI: 1, MTU: 1400, ListenPort: 4500, ListenPortV6: 51821, Keepalive: 25,
				PSK: "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=",
			},
		}},
		{"wireguard with one device", `{"Network":"10.244.0.0/16","Backend":{"Type":"wireguard","ListenPortV6":51820,"Mode":"ipv6"}}`, Config{
			EnableIPv4: true, Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24,
			SubnetMin: netip.MustParseAddr("10.244.1.0"), SubnetMax: netip.MustParseAddr("10.244.255.0"),
			Backend: Backend{Type: "wireguard", VNI: 1, ListenPort: 51820, ListenPortV6: 51820, Mode: ModeIPv6},
		}},
		{"IPv6 only, small", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/120","Backend":{"Type":"host-gw"}}`, Config{
			EnableIPv6: true, IPv6Network: netip.MustParsePrefix("fd00::/120"), IPv6SubnetLen: 122,
			IPv6SubnetMin: netip.MustParseAddr("fd00::40"), IPv6SubnetMax: netip.MustParseAddr("fd00::c0"),
			Backend: Backend{Type: "host-gw", VNI: 1},
		}},
	} {
		got, warnings, err := ParseSubnetConfig([]byte(c.conf))
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, warnings %q", c.name, err, warnings)
		} else if *got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, *got, c.want)
		}
	}
}

// All faults are reported together.
func TestParseConfigFaults(t *testing.T) {
	for conf, faults := range map[string][]string{
		``:   {"decode"},
		`[]`: {"decode"},
		`{}`: {"Network is missing"},
		`{"Network":"10.244.0.0/16","Backend":{"Port":"abc"}}`: {`Backend.Port is "abc": give a whole number`},
		`{"EnableIPv4":false}`:                                 {"EnableIPv4 and EnableIPv6 are false"},
		`{"EnableIPv6":true,"Network":"10.244.0.0/16"}`:        {"IPv6Network is missing"},
		`{"Network":5,"EnableIPv4":"yes","Backend":{"VNI":-1,"Port":65536,"Type":"udp","MTU":100,"GBP":1,"TxChecksumOffload":"off"}}`: {"Network is 5", `EnableIPv4 is "yes"`, "Backend.VNI is -1", "Backend.Port is 65536", `Backend.Type is "udp"`, "Backend.MTU is 100", "Backend.GBP is 1", `Backend.TxChecksumOffload is "off": give true or false`},
		`{"Network":"10.0.0.0/16","Backend":{"Type":"wireguard","ListenPort":0,"ListenPortV6":51820,"PSK":"c2hvcnQ=","Mode":"both","PersistentKeepaliveInterval":65536}}`: {
			"Backend.ListenPort is 0", "Backend.PSK is not a key", `Backend.Mode is "both": give separate, auto, ipv4 or ipv6`, "Backend.PersistentKeepaliveInterval is 65536",
		},
		`{"Network":"10.0.0.0/16","Backend":{"Type":"wireguard","ListenPortV6":51820}}`:                           {"Backend.ListenPortV6 is the same"},
		`{"Network":"fd00::/48","Backend":[{"PSK":"c2VjcmV0"}]}`:                                                  {`Network is "fd00::/48"`, "Backend is not an object"},
		`{"Network":"10.0.0.0/29"}`:                                                                               {"too small"},
		`{"Network":"10.0.0.0/24","SubnetLen":25}`:                                                                {"SubnetLen is 25: give 26 to 30"},
		`{"Network":"10.0.0.0/24","SubnetLen":31}`:                                                                {"SubnetLen is 31"},
		`{"Network":"10.0.0.0/16","SubnetMin":"10.1.0.0","SubnetMax":"10.0.5.1"}`:                                 {"SubnetMin is 10.1.0.0: not in", "SubnetMax is 10.0.5.1: not the first"},
		`{"Network":"10.0.0.0/16","SubnetMin":"10.0.9.0","SubnetMax":"10.0.5.0"}`:                                 {"before SubnetMin"},
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/125"}`:                                       {"too small"},
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetLen":127,"IPv6SubnetMin":""}`: {"IPv6SubnetLen is 127"},
	} {
		_, _, err := ParseSubnetConfig([]byte(conf))
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", conf, err)
			continue
		}
		for _, f := range faults {
			if !strings.Contains(err.Error(), f) {
				t.Errorf("%s: %q is missing in %v", conf, f, err)
			}
		}
		if strings.Contains(err.Error(), "c2") {
			t.Errorf("%s: the preshared key is in %v", conf, err)
		}
		if n := strings.Count(err.Error(), "invalid: "); len(faults) > 1 && n != len(faults) {
			t.Errorf("%s: %d faults, not %d: %v", conf, n, len(faults), err)
		}
	}
}

// TestExtension: the commands of flannel's backend extension are refused, not executed (CVE-2026-32241 of flannel).
func TestExtension(t *testing.T) {
	const command = "touch /tmp/extension"
	_, _, err := ParseConfig([]byte(`{"Network":"10.0.0.0/16","Backend":{"Type":"extension","PreStartupCommand":"` + command + `","SubnetAddCommand":"` + command + `"}}`))
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `Backend.Type is "extension"`) {
		t.Errorf("configuration: %v", err)
	}
}

func TestParseConfigWarnings(t *testing.T) {
	// Keys for Windows are accepted, because configurations are shared with such
	// nodes.
	_, warnings, err := ParseConfig([]byte(`{"Network":"10.0.0.0/30","zone":1,"Backend":{"type":"vxlan","MacPrefix":"0E-2A","Name":"x","PSK":"s"}}`))
	if err != nil || len(warnings) != 2 || !strings.HasPrefix(warnings[0], "zone ") || !strings.HasPrefix(warnings[1], "Backend.PSK ") {
		t.Fatalf("%q, %v", warnings, err)
	}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func others(taken []netip.Prefix) SubnetRequest {
	w := SubnetRequest{Name: "node"}
	for _, p := range taken {
		w.Others = append(w.Others, &Node{Name: "other", PodCIDRs: []netip.Prefix{p}})
	}
	return w
}

func TestAssignFree(t *testing.T) {
	config := func(conf string) *Config {
		c, _, err := ParseSubnetConfig([]byte(conf))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, c := range []struct {
		name, conf string
		taken      []netip.Prefix
		want       []netip.Prefix
		err        error
	}{
		{"one is free", `{"Network":"10.0.0.0/22"}`, prefixes("10.0.1.0/24", "10.0.3.0/24"), prefixes("10.0.2.0/24"), nil},
		{"all are taken", `{"Network":"10.0.0.0/22"}`, prefixes("10.0.1.0/24", "10.0.3.0/24", "10.0.2.0/24"), nil, ErrFull},
		{"larger and smaller ones, of a former configuration", `{"Network":"10.0.0.0/20"}`, prefixes("10.0.0.0/21", "10.0.8.16/28", "10.0.9.0/24", "10.0.10.0/23", "10.0.12.0/23", "10.0.15.0/24"), prefixes("10.0.14.0/24"), nil},
		{"the top of the addresses", `{"Network":"255.255.252.0/22"}`, prefixes("255.255.254.0/23"), prefixes("255.255.253.0/24"), nil},
		{"records that hold no subnet of the network", `{"Network":"10.0.0.0/22"}`, prefixes("0.0.0.0/0", "10.0.0.0/22", "10.0.1.0/24", "192.0.2.0/24", "10.0.3.0/24"), prefixes("10.0.2.0/24"), nil},
		{"both families", `{"Network":"10.0.0.0/22","EnableIPv6":true,"IPv6Network":"fd00::/62"}`, prefixes("10.0.1.0/24", "fd00::/64", "10.0.2.0/24", "fd00:0:0:2::/63"), prefixes("10.0.3.0/24", "fd00:0:0:1::/64"), nil},
		{"one family is full", `{"Network":"10.0.0.0/22","EnableIPv6":true,"IPv6Network":"fd00::/62"}`, prefixes("fd00:0:0:1::/64", "fd00:0:0:2::/63"), nil, ErrFull},
	} {
		conf := config(c.conf)
		got, err := conf.Assign(others(c.taken))
		if !errors.Is(err, c.err) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
		for _, p := range got {
			if !conf.Fits(p) {
				t.Errorf("%s: %s does not fit", c.name, p)
			}
		}
	}
	// Nodes that start together choose different subnets among the first hundred.
	conf, seen := config(`{"Network":"10.0.0.0/8"}`), map[netip.Prefix]bool{}
	for range 200 {
		got, err := conf.Assign(SubnetRequest{})
		if err != nil || !netip.MustParsePrefix("10.0.0.0/17").Overlaps(got[0]) || got[0] == netip.MustParsePrefix("10.0.0.0/24") {
			t.Fatal(got, err)
		}
		seen[got[0]] = true
	}
	if len(seen) < 50 {
		t.Errorf("200 nodes chose among %d subnets", len(seen))
	}
}

func TestAssign(t *testing.T) {
	dual, _, err := ParseSubnetConfig([]byte(`{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}`))
	if err != nil {
		t.Fatal(err)
	}
	holders := []*Node{
		{Name: "b", PublicIP: netip.MustParseAddr("192.0.2.2"), PodCIDRs: prefixes("10.0.5.0/24")},
		{Name: "d", PodCIDRs: prefixes("10.0.6.0/24")},
		{Name: "a", PodCIDRs: prefixes("10.0.6.128/25")},
		{Name: "c", PodCIDRs: prefixes("10.0.1.0/24")},
	}
	own := func(p4, p6 string) []netip.Prefix { return prefixes(p4, p6) }
	for _, c := range []struct {
		name    string
		request SubnetRequest
		want    []netip.Prefix
		err     string
	}{
		{"own", SubnetRequest{Own: own("10.0.1.0/24", "fd00:0:0:1::/64")}, own("10.0.1.0/24", "fd00:0:0:1::/64"), ""},
		{"own before previous", SubnetRequest{Own: own("10.0.1.0/24", "fd00:0:0:1::/64"), Previous: own("10.0.2.0/24", "fd00:0:0:2::/64")}, own("10.0.1.0/24", "fd00:0:0:1::/64"), ""},
		{"previous where own does not fit", SubnetRequest{Own: own("10.9.1.0/24", "fd00:0:0:1::/64"), Previous: own("10.0.2.0/24", "fd00:0:0:2::/64")}, own("10.0.2.0/24", "fd00:0:0:1::/64"), ""},
		{"own that another took first", SubnetRequest{Own: own("10.0.5.0/24", "fd00:0:0:1::/64")}, nil, "b (192.0.2.2) has 10.0.5.0/24"},
		{"own that another asks for later", SubnetRequest{Name: "aa", Own: own("10.0.5.0/24", "fd00:0:0:1::/64")}, own("10.0.5.0/24", "fd00:0:0:1::/64"), ""},
		{"demanded", SubnetRequest{Own: own("10.0.1.0/24", "fd00:0:0:1::/64"), Demanded: own("10.0.9.0/26", "fd00:0:0:9::/80")}, own("10.0.9.0/26", "fd00:0:0:9::/80"), ""},
		{"demanded, held", SubnetRequest{Demanded: own("10.0.6.0/24", "fd00:0:0:9::/64")}, nil, "a has 10.0.6.128/25"},
		{"demanded and own, held later", SubnetRequest{Name: "aa", Own: own("10.0.5.0/24", "fd00:0:0:1::/64"), Demanded: own("10.0.5.0/24", "fd00:0:0:1::/64")}, own("10.0.5.0/24", "fd00:0:0:1::/64"), ""},
		{"demanded elsewhere", SubnetRequest{Demanded: own("10.9.6.0/24", "fd00:0:0:9::/64")}, nil, "not inside"},
		{"demanded in one family", SubnetRequest{Demanded: prefixes("10.0.9.0/24")}, nil, "not one of each"},
		{"the network itself", SubnetRequest{Demanded: own("10.0.0.0/16", "fd00:0:0:9::/64")}, nil, "not inside"},
	} {
		if c.request.Name == "" {
			c.request.Name = "c"
		}
		c.request.Others = holders
		got, err := dual.Assign(c.request)
		if c.err == "" && (err != nil || !slices.Equal(got, c.want)) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	if got, err := dual.Assign(SubnetRequest{Name: "c", Previous: own("10.0.5.0/24", "fd00:0:0:7::/64"), Others: holders}); err != nil || got[0] == holders[0].PodCIDRs[0] || got[1] != netip.MustParsePrefix("fd00:0:0:7::/64") {
		t.Errorf("previous that another has: %v, %v", got, err)
	}
}

func TestFits(t *testing.T) {
	c, _, err := ParseSubnetConfig([]byte(`{"Network":"10.0.0.0/16","SubnetMin":"10.0.10.0","SubnetMax":"10.0.20.0"}`))
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		"10.0.10.0/24": true, "10.0.20.0/24": true, "10.0.9.0/24": false, "10.0.21.0/24": false, "10.0.10.0/25": false, "10.0.10.1/24": false,
		"10.1.10.0/24": false, "fd00::/64": false, "10.0.0.0/16": false,
	} {
		if got := c.Fits(netip.MustParsePrefix(p)); got != want {
			t.Errorf("%s: %t", p, got)
		}
	}
}
