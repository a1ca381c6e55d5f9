package attachment_test

import (
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

func TestNICs(t *testing.T) {
	const zero, one, two, three, four = "00:00:00:00:00:00", "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03", "02:00:00:00:00:04"
	got := attachment.NICs([]netops.LinkInfo{
		{Name: "lo", Index: 1, MAC: zero},
		{Name: "tun0", Index: 2, Kind: "tun"},
		{Name: "vf0", Index: 3, MAC: one, Master: "eth0"}, // a virtual function has a lower index than its master
		{Name: "eth0", Index: 4, MAC: one, Master: "azure0"},
		{Name: "azure0", Index: 9, MAC: one, Kind: "bridge"},
		{Name: "eth1.5", Index: 8, MAC: two, Kind: "vlan"}, // the kernel may dump links in any order
		{Name: "eth1", Index: 5, MAC: two},
		{Name: "eth2", Index: 6, MAC: three, Master: "bond0"},
		{Name: "bond0", Index: 10, MAC: three, Kind: "bond"},
		{Name: "br0", Index: 7, MAC: four, Kind: "bridge"},
	})
	for mac, want := range map[string]string{zero: "", "": "", "*": "", one: "eth0", two: "eth1", three: "bond0", four: ""} {
		if got[mac].Name != want {
			t.Errorf("%q: %q, want %q", mac, got[mac].Name, want)
		}
	}
}
