package attachment

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// TestNames: names that derive from a key are valid, and differ for different keys.
func TestNames(t *testing.T) {
	keys := []store.Key{
		{Network: "n", ContainerID: "c", IfName: "eth0"},
		{Network: "n", ContainerID: "c", IfName: "eth1"},
		{Network: "n", ContainerID: "ce", IfName: "th0"},
		{Network: "nc", ContainerID: "", IfName: "eth0"},
		{Network: strings.Repeat("n", 10_000), ContainerID: "../../etc\x00", IfName: "é"},
	}
	seen := map[string]bool{}
	for _, k := range keys {
		for _, name := range []string{HostLink(k), Label(k), MAC(k, "host"), MAC(k, "container")} {
			if seen[name] {
				t.Errorf("%q is given twice", name)
			}
			seen[name] = true
		}
		if len(HostLink(k)) != 15 {
			t.Errorf("%q has %d bytes, an interface name has 15", HostLink(k), len(HostLink(k)))
		}
	}
}

// TestAlias: an alias is not longer than the kernel's limit, and the owner is read from
// it unless it was truncated.
func TestAlias(t *testing.T) {
	addrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00::2/64")}
	for _, c := range []struct {
		name  string
		key   store.Key
		addrs []netip.Prefix
		whole bool
	}{
		{"short", store.Key{Network: "pods", ContainerID: "abc", IfName: "eth0"}, addrs, true},
		{"layer 2", store.Key{Network: "pods", ContainerID: "abc", IfName: "eth0"}, nil, true},
		{"64 digits", store.Key{Network: "pods", ContainerID: strings.Repeat("a", 64), IfName: "eth0"}, nil, true},
		{"64 digits and addresses", store.Key{Network: "pods", ContainerID: strings.Repeat("a", 64), IfName: "eth0"}, addrs, true},
		{"200 digits and addresses", store.Key{Network: "pods", ContainerID: strings.Repeat("a", 200), IfName: "eth0"}, addrs, false},
		{"huge", store.Key{Network: strings.Repeat("é", 500), ContainerID: "c", IfName: "eth0"}, addrs, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			alias := Alias(c.key, c.addrs)
			if len(alias) > maxAlias {
				t.Errorf("%d bytes", len(alias))
			}
			info, ok := ParseAlias(alias)
			if !ok || info.Label != Label(c.key) || info.Whole != c.whole {
				t.Fatalf("%q is read as %+v, %v", alias, info, ok)
			}
			if c.whole && info.Key != c.key {
				t.Errorf("%q is read as %+v", alias, info.Key)
			}
			if len(info.Addresses) != len(c.addrs) {
				t.Errorf("%q has the addresses %v", alias, info.Addresses)
			}
		})
	}
}

// TestDeviceAlias: the device's name on the host is read from its alias, even if the
// container ID is long.
func TestDeviceAlias(t *testing.T) {
	for _, digits := range []int{3, 64, 300} {
		key := store.Key{Network: "pods", ContainerID: strings.Repeat("a", digits), IfName: "eth0"}
		alias := DeviceAlias(key, "enp3s0f0s88")
		info, ok := ParseAlias(alias)
		if !ok || len(alias) > maxAlias || info.Label != Label(key) || info.Device != "enp3s0f0s88" || info.Key.Network != "pods" || info.Whole != (digits < 200) {
			t.Errorf("%q is read as %+v, %v", alias, info, ok)
		}
	}
	if info, _ := ParseAlias(Alias(store.Key{Network: "n", ContainerID: "c", IfName: "e"}, nil)); info.Device != "" {
		t.Errorf("an alias without a device is read with the device %q", info.Device)
	}
}

// FuzzParseAlias: parsing any text does not panic, and a whole key hashes to its label.
func FuzzParseAlias(f *testing.F) {
	f.Add(Alias(store.Key{Network: "n", ContainerID: "c", IfName: "e"}, []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}))
	f.Add(DeviceAlias(store.Key{Network: "n", ContainerID: "c", IfName: "e"}, "ens3"))
	f.Add("cnibox:0123456789abcdef")
	f.Add("cnibox:shared")
	f.Add("cnibox:0123456789abcdef 10.0.0.1/8 //")
	f.Fuzz(func(t *testing.T, s string) {
		info, ok := ParseAlias(s)
		if ok && info.Whole && Label(info.Key) != info.Label {
			t.Errorf("%q is reported as whole", s)
		}
	})
}
