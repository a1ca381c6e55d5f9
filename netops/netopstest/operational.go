package netopstest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// CheckOperational checks that all links of the host but lo are in operation. A list shows
// the state as it is; a request for one link would bring it into operation, since Linux 6.8.
func CheckOperational(t testing.TB, what string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, l := range links {
		if a := l.Attrs(); a.Name != "lo" && a.OperState != netlink.OperUp {
			t.Errorf("%s: link %q is %s", what, a.Name, a.OperState)
		}
	}
}

// CheckLinkLocal checks the prefix lengths of the IPv6 link-local addresses of a link of
// the host. The link must have no anycast address.
func CheckLinkLocal(t testing.TB, link string, want ...int) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	var have []int
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() {
			bits, _ := a.Mask.Size()
			have = append(have, bits)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("link %q has link-local addresses with the prefix lengths %v, not %v: %v", link, have, want, addrs)
	}
	anycast, err := os.ReadFile("/proc/net/anycast6")
	if err != nil || strings.Contains(string(anycast), link) {
		t.Errorf("link %q has an anycast address: %s %v", link, anycast, err)
	}
}
