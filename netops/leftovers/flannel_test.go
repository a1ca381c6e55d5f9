package leftovers

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestFlannelRules makes flanneld's rules with both backends of iptables and with nftables, in both address families, beside rules
// of other programs. All of flanneld's rules are removed, also a jump that another program added, and no other rule.
func TestFlannelRules(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{IPTables: nstest.IPTables})
	t.Cleanup(func() { _ = n.Close() })
	programs := []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}
	state := func() string {
		all := rules(t)
		for _, p := range programs {
			all += nstest.Run(t, p, "-t", "nat", "-S") + nstest.Run(t, p, "-S")
		}
		return all
	}
	for _, p := range programs {
		nstest.Run(t, p, "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE")
		nstest.Run(t, p, "-N", "OTHER")
		nstest.Run(t, p, "-A", "FORWARD", "-i", "eth0", "-j", "ACCEPT")
	}
	before := state()
	for _, p := range programs {
		nstest.Run(t, p, "-t", "nat", "-N", "FLANNEL-POSTRTG")
		nstest.Run(t, p, "-t", "nat", "-A", "FLANNEL-POSTRTG", "-m", "comment", "--comment", "flanneld masq", "-j", "MASQUERADE")
		nstest.Run(t, p, "-t", "nat", "-A", "POSTROUTING", "-m", "comment", "--comment", "flanneld masq", "-j", "FLANNEL-POSTRTG")
		nstest.Run(t, p, "-t", "nat", "-A", "POSTROUTING", "-j", "FLANNEL-POSTRTG")
		nstest.Run(t, p, "-N", "FLANNEL-FWD")
		nstest.Run(t, p, "-A", "FLANNEL-FWD", "-m", "comment", "--comment", "flanneld forward", "-j", "ACCEPT")
		nstest.Run(t, p, "-A", "FORWARD", "-m", "comment", "--comment", "flanneld forward", "-j", "FLANNEL-FWD")
		nstest.Run(t, p, "-A", "OTHER", "-j", "FLANNEL-FWD")
	}
	nstest.Run(t, "nft", "add table ip flannel-ipv4; add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority srcnat; }; add table ip6 flannel-ipv6")
	found, err := Of(n).Flannel(t.Context())
	if err != nil || len(found) != 10 {
		t.Fatalf("found %q, %v", found, err)
	}
	for _, want := range []string{
		"chain FLANNEL-POSTRTG of nftables table ip nat", "chain FLANNEL-FWD of nftables table ip6 filter",
		"chain FLANNEL-POSTRTG of iptables-legacy's table nat", "chain FLANNEL-FWD of ip6tables-legacy's table filter", "nftables table ip6 flannel-ipv6",
	} {
		if !strings.Contains(strings.Join(found, "\n"), want) {
			t.Errorf("found %q, want %q among them", found, want)
		}
	}
	for range 2 { // the second call has nothing to do
		if err := Of(n).RemoveFlannel(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := state(); now != before {
			t.Errorf("the rules were\n%s\nand are\n%s", before, now)
		}
	}
	if found, err := Of(n).Flannel(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("found %q, %v", found, err)
	}
}
