package metadata

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseMAC(t *testing.T) {
	const want = "00:0d:3a:51:c4:90"
	for _, s := range []string{"000D3A51C490", "000d3a51c490", "00:0d:3a:51:c4:90", "00-0D-3A-51-C4-90", "000d.3a51.c490"} {
		if mac, err := parseMAC(s); mac != want || err != nil {
			t.Errorf("%q: %q, %v", s, mac, err)
		}
	}
	for _, s := range []string{
		"", "00", "000D3A51C49", "000D3A51C4901", "00:0d:3a:51:c4", "00:0d:3a:51:c4:9g", "0:d:3a:51:c4:90", "00:0d-3a:51:c4:90",
		"000000000000", "ffffffffffff", "01:00:5e:00:00:01", "80:00:02:08:fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:01", " 000D3A51C490",
	} {
		if mac, err := parseMAC(s); err == nil {
			t.Errorf("%q: %q", s, mac)
		}
	}
	if mac, err := parseMAC("*"); mac != "*" || err != nil {
		t.Error(mac, err)
	}
}

func TestWithMask(t *testing.T) {
	for in, want := range map[[2]string]string{
		{"10.1.2.3", "255.255.240.0"}: "10.1.0.0/20", {"10.1.2.3", "24"}: "10.1.2.0/24", {"10.1.2.3", "0.0.0.0"}: "0.0.0.0/0",
		{"2001:db8::5", "ffff:ffff:ffff:ffff::"}: "2001:db8::/64", {"2001:db8::5", "64"}: "2001:db8::/64",
		{"10.1.2.3", "255.0.255.0"}: "10.1.2.3/255.0.255.0", {"10.1.2.3", "33"}: "10.1.2.3/33", {"10.1.2.3", "ffff::"}: "10.1.0.0/16",
		{"10.1.2.3", ""}: "10.1.2.3/", {"x", "24"}: "x/24", {"10.1.2.3", "-1"}: "10.1.2.3/-1", {"10.1.2.3", "24x"}: "10.1.2.3/24x",
	} {
		if have := withMask(in[0], in[1]); have != want {
			t.Errorf("%v: %s, want %s", in, have, want)
		}
	}
}

// many returns a reply with n addresses of a /8, from 10.0.0.2 on.
func many(n int) []string {
	var list []string
	a := netip.MustParseAddr("10.0.0.2")
	for range n {
		list = append(list, a.String())
		a = a.Next()
	}
	return list
}

func TestBounds(t *testing.T) {
	for asked, want := range map[int]int{10000: 10000, maxAddresses: maxAddresses, maxAddresses + 1000: maxAddresses} {
		nics, dropped := normalise([]nic{{mac: "000D3A51C490", subnets: []subnet{{prefix: "10.0.0.0/8", addresses: many(asked)}}}}, nil)
		if have := count(nics); have != want || len(dropped) > maxDropped+1 || (asked > want) != (len(dropped) > 0) {
			t.Errorf("%d addresses: %d, %d dropped", asked, have, len(dropped))
		}
	}
	var nics []nic
	for i := range maxNICs + 5 {
		nics = append(nics, nic{mac: fmt.Sprintf("000D3A51%04X", i)})
	}
	if have, dropped := normalise(nics, nil); len(have) != maxNICs || len(dropped) != 5 {
		t.Errorf("%d interfaces, %d dropped", len(have), len(dropped))
	}
	s := subnet{prefix: "10.0.0.0/8"}
	for i := range 70000 {
		s.ranges = append(s.ranges, fmt.Sprintf("10.%d.%d.%d/30", i>>14, i>>6&255, i&63*4))
	}
	if have, _ := normalise([]nic{{mac: "*", subnets: []subnet{s}}}, nil); count(have) != maxAddresses {
		t.Errorf("%d ranges", count(have))
	}
}

// The order of a reply does not matter: otherwise every query could look like a change.
func TestOrder(t *testing.T) {
	nics := []nic{
		{mac: "000D3A51C490", device: unnumbered, subnets: []subnet{{prefix: "10.0.0.0/16", own: []string{"10.0.0.4"}, addresses: many(50)}}, dns: []string{"10.0.0.2"}},
		{mac: "000D3A51C491", device: unnumbered, primary: true, subnets: []subnet{
			{prefix: "10.0.0.0/16", own: []string{"10.0.0.5"}, ranges: []string{"10.0.9.0/24", "10.0.8.0/24"}},
			{prefix: "10.1.0.0/16", addresses: []string{"10.1.0.9", "10.1.0.8"}},
		}, network: []string{"10.0.0.0/8", "fd00::/8"}},
		{mac: "000D3A51C492", device: unnumbered},
	}
	want, _ := normalise(nics, nil)
	for range 20 {
		shuffled := slices.Clone(nics)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i := range shuffled {
			n := &shuffled[i]
			n.subnets, n.network = slices.Clone(n.subnets), slices.Clone(n.network)
			rand.Shuffle(len(n.subnets), func(i, j int) { n.subnets[i], n.subnets[j] = n.subnets[j], n.subnets[i] })
			rand.Shuffle(len(n.network), func(i, j int) { n.network[i], n.network[j] = n.network[j], n.network[i] })
			for j := range n.subnets {
				list := slices.Clone(n.subnets[j].addresses)
				rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				n.subnets[j].addresses = list
			}
		}
		if have, _ := normalise(shuffled, nil); !reflect.DeepEqual(have, want) {
			t.Fatalf("%+v\nand not\n%+v", have, want)
		}
	}
}

// An address of one of the node's links is never an address for pods, whichever
// interface the cloud names for it.
func TestNodesOwn(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("::ffff:10.0.0.8"), netip.MustParseAddr("fe80::1%eth0")}
	nics, dropped := normalise([]nic{
		{mac: "000D3A51C490", subnets: []subnet{{prefix: "10.0.0.0/24", own: []string{"10.0.0.4"}, addresses: many(10)}}},
		{mac: "000D3A51C491", subnets: []subnet{{prefix: "10.0.0.0/24", addresses: []string{"10.0.0.4", "10.0.0.20"}}}},
	}, own)
	if s := fmt.Sprint(nics[0].Subnets[0].Own, nics[0].Subnets[0].Addresses, nics[1].Subnets[0].Addresses); s !=
		"[10.0.0.4 10.0.0.8 10.0.0.9] [10.0.0.2 10.0.0.3 10.0.0.5 10.0.0.6 10.0.0.7 10.0.0.10 10.0.0.11] [10.0.0.20]" || len(dropped) > 0 {
		t.Error(s, dropped)
	}
}

// No reply assigns a link-local address, the metadata service's or a multicast address
// to a pod, neither as an address nor in a range.
func TestReservedAddresses(t *testing.T) {
	for _, prefix := range []string{
		"0.0.0.0/0", "0.0.0.0/1", "0.0.0.0/8", "64.0.0.0/2", "127.0.0.0/24", "128.0.0.0/1", "169.254.0.0/16", "169.254.169.254/32", "192.0.0.0/2", "224.0.0.0/24",
		"::/0", "::/64", "::1/128", "::ffff:10.0.0.0/104", "fe80::/64", "8000::/1", "ff02::/16",
	} {
		p := netip.MustParsePrefix(prefix)
		have, dropped := normalise([]nic{{mac: "*", subnets: []subnet{{prefix: prefix, addresses: []string{p.Addr().Next().Next().String()}, ranges: []string{prefix}}}}}, nil)
		if count(have) != 0 || len(dropped) != 1 || !strings.Contains(dropped[0], "cannot be used") {
			t.Errorf("%s: %v, dropped %q", prefix, have, dropped)
		}
	}
	for _, prefix := range []string{"1.0.0.0/8", "100.64.0.0/10", "126.0.0.0/8", "168.63.129.0/24", "240.0.0.0/4", "2001:db8::/64", "fd00::/8"} {
		p := netip.MustParsePrefix(prefix)
		have, dropped := normalise([]nic{{mac: "*", subnets: []subnet{{prefix: prefix, addresses: []string{p.Addr().Next().Next().String()}}}}}, nil)
		if count(have) != 1 || len(dropped) != 0 {
			t.Errorf("%s: %v, dropped %q", prefix, have, dropped)
		}
	}
}

// An error about a value of the wrong type uses JSON's terms and not Go's.
func TestWrongTypes(t *testing.T) {
	for text, want := range map[string]string{
		`"x"`:                   "unexpected string at byte 3",
		`[1]`:                   "unexpected number",
		`[{"subnets": {}}]`:     `unexpected object at byte 14 in "subnets"`,
		`{"Interfaces": "all"}`: `unexpected string at byte 20 in "Interfaces"`,
	} {
		_, err := decodeFileXML([]byte(text))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "struct") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// validate returns an error if a normalised reply breaks a rule on which the callers
// depend.
func validate(nics []nic, own []netip.Addr) error {
	have, dropped := normalise(nics, own)
	if len(dropped) > maxDropped+1 {
		return fmt.Errorf("%d texts", len(dropped))
	}
	for _, d := range dropped {
		if len(d) > 1000 || strings.ContainsAny(d, "\n\r\x1b") {
			return fmt.Errorf("text %q", d)
		}
	}
	seen := map[netip.Addr]bool{}
	var ranges []netip.Prefix
	macs := map[string]bool{}
	for _, n := range have {
		if mac, err := parseMAC(n.MAC); err != nil || mac != n.MAC || macs[mac] {
			return fmt.Errorf("MAC %q", n.MAC)
		}
		macs[n.MAC] = true
		prefixes := map[netip.Prefix]bool{}
		for _, s := range n.Subnets {
			if !s.Prefix.IsValid() || s.Prefix != s.Prefix.Masked() || prefixes[s.Prefix] {
				return fmt.Errorf("subnet %v", s.Prefix)
			}
			prefixes[s.Prefix] = true
			for _, a := range s.Addresses {
				if !s.Prefix.Contains(a) || seen[a] || slices.Contains(s.Own, a) || a == s.Gateway {
					return fmt.Errorf("address %v of %v", a, s.Prefix)
				}
				seen[a] = true
			}
			for _, r := range s.Ranges {
				if r != r.Masked() || !s.Prefix.Contains(r.Addr()) {
					return fmt.Errorf("range %v of %v", r, s.Prefix)
				}
				ranges = append(ranges, r)
			}
		}
	}
	for i, r := range ranges {
		for _, other := range ranges[i+1:] {
			if r.Overlaps(other) {
				return fmt.Errorf("ranges %v and %v", r, other)
			}
		}
		for a := range seen {
			if r.Contains(a) {
				return fmt.Errorf("address %v in range %v", a, r)
			}
		}
	}
	return nil
}
