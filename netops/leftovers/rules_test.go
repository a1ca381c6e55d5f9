package leftovers

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// Chain names of the reference plugins v1.9.1. The digests are those of sha512sum(1) for
// network "net1" and containers "c1" and "c2".
const (
	c1Chain     = "CNI-c2d892b58e87e28a12fe6479"
	c2Chain     = "CNI-74f9b05a6a8182c73e61fd60"
	c1HostPorts = "CNI-DN-c2d892b58e87e28a12fe6"
	c2HostPorts = "CNI-DN-74f9b05a6a8182c73e61f"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// iptablesMasquerade makes the rules that the reference's bridge makes for an address.
func iptablesMasquerade(t *testing.T, chain, id, address, subnet string) {
	t.Helper()
	program, multicast := "iptables", "224.0.0.0/4"
	if strings.Contains(address, ":") {
		program, multicast = "ip6tables", "ff00::/8"
	}
	comment := []string{"-m", "comment", "--comment", `name: "net1" id: "` + id + `"`}
	if !strings.Contains(nstest.Run(t, program, "-t", "nat", "-S"), "-N "+chain+"\n") {
		nstest.Run(t, program, "-t", "nat", "-N", chain)
		nstest.Run(t, program, append([]string{"-t", "nat", "-A", chain, "-d", subnet, "-j", "ACCEPT"}, comment...)...)
		nstest.Run(t, program, append([]string{"-t", "nat", "-A", chain, "!", "-d", multicast, "-j", "MASQUERADE"}, comment...)...)
	}
	nstest.Run(t, program, append([]string{"-t", "nat", "-A", "POSTROUTING", "-s", address, "-j", chain}, comment...)...)
}

// iptablesHostPort makes the rules that the reference's portmap makes for a mapping.
func iptablesHostPort(t *testing.T, chain, id, port, to string) {
	t.Helper()
	if !strings.Contains(nstest.Run(t, "iptables", "-t", "nat", "-S"), "-N CNI-HOSTPORT-DNAT\n") {
		nstest.Run(t, "iptables", "-t", "nat", "-N", "CNI-HOSTPORT-DNAT")
		nstest.Run(t, "iptables", "-t", "nat", "-A", "PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "CNI-HOSTPORT-DNAT")
	}
	nstest.Run(t, "iptables", "-t", "nat", "-N", chain)
	nstest.Run(t, "iptables", "-t", "nat", "-A", chain, "-p", "tcp", "--dport", port, "-j", "DNAT", "--to-destination", to)
	nstest.Run(t, "iptables", "-t", "nat", "-A", "CNI-HOSTPORT-DNAT", "-m", "comment", "--comment", `dnat name: "net1" id: "`+id+`"`,
		"-m", "multiport", "-p", "tcp", "--destination-ports", port, "-j", chain)
}

// rules returns the ruleset without counters and handles.
func rules(t *testing.T) string {
	t.Helper()
	return nstest.Run(t, "nft", "-s", "list", "ruleset")
}

// TestReferencePluginMasqueradeIPTables checks that only the container's chain is deleted, in both
// address families. The chain of a container with two interfaces must stay until both are
// removed.
func TestReferencePluginMasqueradeIPTables(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{})
	t.Cleanup(func() { _ = n.Close() })
	nstest.Run(t, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1", "-j", "ACCEPT")
	nstest.Run(t, "ip6tables", "-t", "nat", "-A", "POSTROUTING", "-s", "2001:db8::1", "-j", "ACCEPT")
	iptablesMasquerade(t, c2Chain, "c2", "10.1.0.3", "10.1.0.0/24")
	others := rules(t)
	make1 := func() {
		iptablesMasquerade(t, c1Chain, "c1", "10.1.0.2", "10.1.0.0/24")
		iptablesMasquerade(t, c1Chain, "c1", "fd00::2", "fd00::/64")
	}
	for name, f := range map[string]Attachment{
		"addresses known":   {Network: "net1", ContainerID: "c1", IfName: "eth0", Addresses: addrs("10.1.0.2", "fd00::2")},
		"addresses unknown": {Network: "net1", ContainerID: "c1", IfName: "eth0"},
	} {
		make1()
		for range 2 {
			if err := Of(n).RemoveMasquerade(t.Context(), f); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if now := strings.TrimSpace(rules(t)); now != strings.TrimSpace(others) {
				t.Fatalf("%s: ruleset is\n%s\nwant\n%s", name, now, others)
			}
		}
	}
	make1()
	iptablesMasquerade(t, c1Chain, "c1", "10.1.0.9", "10.1.0.0/24")
	second := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth1", Addresses: addrs("10.1.0.9"), Others: addrs("10.1.0.2", "fd00::2")}
	if err := Of(n).RemoveMasquerade(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	first := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0", Addresses: second.Others}
	if missing, err := Of(n).MissingMasquerade(t.Context(), first); err != nil || len(missing) > 0 {
		t.Fatalf("the first interface lost %v, %v", missing, err)
	}
	if missing, err := Of(n).MissingMasquerade(t.Context(), second); err != nil || len(missing) != 1 {
		t.Fatalf("the second interface lacks %v, %v", missing, err)
	}
	if err := Of(n).RemoveMasquerade(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if now := strings.TrimSpace(rules(t)); now != strings.TrimSpace(others) {
		t.Fatalf("ruleset is\n%s\nwant\n%s", now, others)
	}
}

// TestReferencePluginLegacy checks the removal of the reference's rules in iptables-legacy.
func TestReferencePluginLegacy(t *testing.T) {
	n := freshNet(t)
	legacy := func(args ...string) string { return nstest.Run(t, "iptables-legacy", args...) }
	legacy("-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1/32", "-j", "ACCEPT")
	legacy("-t", "nat", "-N", "CNI-HOSTPORT-DNAT")
	legacy("-N", "CNI-FORWARD")
	legacy("-A", "CNI-FORWARD", "-s", "10.1.0.2/32", "-p", "tcp", "-j", "ACCEPT")
	listing := func() string { return legacy("-t", "nat", "-S") + legacy("-S") }
	before := listing()
	attach := func(chain, hostPorts, id, address string) {
		comment := []string{"-m", "comment", "--comment", `name: "net1" id: "` + id + `"`}
		legacy("-t", "nat", "-N", chain)
		legacy(append([]string{"-t", "nat", "-A", chain, "-d", "10.1.0.0/24", "-j", "ACCEPT"}, comment...)...)
		legacy(append([]string{"-t", "nat", "-A", "POSTROUTING", "-s", address, "-j", chain}, comment...)...)
		legacy("-t", "nat", "-N", hostPorts)
		legacy("-t", "nat", "-A", hostPorts, "-p", "tcp", "--dport", "8080", "-j", "DNAT", "--to-destination", address+":80")
		legacy("-t", "nat", "-A", "CNI-HOSTPORT-DNAT", "-m", "comment", "--comment", `dnat name: "net1" id: "`+id+`"`,
			"-m", "multiport", "-p", "tcp", "--destination-ports", "8080", "-j", hostPorts)
		legacy("-A", "CNI-FORWARD", "-d", address, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
		legacy("-A", "CNI-FORWARD", "-s", address, "-j", "ACCEPT")
	}
	one := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	both := one
	both.Addresses, both.Others, both.Shares = addrs("10.1.0.2"), addrs("10.1.0.9"), true
	two := []Attachment{{Network: "net1", ContainerID: "c2", IfName: "eth0"}}
	attach(c2Chain, c2HostPorts, "c2", "10.1.0.3")
	others := listing()
	for name, detach := range map[string]func() error{
		"DEL": func() error {
			return errors.Join(Of(n).RemoveMasquerade(t.Context(), one), Of(n).RemoveHostPorts(t.Context(), one), Of(n).RemoveForward(t.Context(), addrs("10.1.0.2")))
		},
		"GC": func() error {
			return errors.Join(Of(n).CollectMasquerade(t.Context(), "net1", two), Of(n).CollectHostPorts(t.Context(), "net1", two), Of(n).RemoveForward(t.Context(), addrs("10.1.0.2")))
		},
	} {
		attach(c1Chain, c1HostPorts, "c1", "10.1.0.2")
		for range 2 {
			if err := detach(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if now := listing(); now != others {
				t.Fatalf("%s: the rules are\n%s\nwant\n%s", name, now, others)
			}
		}
	}
	attach(c1Chain, c1HostPorts, "c1", "10.1.0.9")
	if err := errors.Join(Of(n).RemoveMasquerade(t.Context(), both), Of(n).RemoveHostPorts(t.Context(), both)); err != nil {
		t.Fatal(err)
	}
	if now := listing(); !strings.Contains(now, "-j "+c1Chain) || !strings.Contains(now, "-j "+c1HostPorts) {
		t.Errorf("the container's other interface lost its rules:\n%s", now)
	}
	err := errors.Join(Of(n).CollectMasquerade(t.Context(), "net1", nil), Of(n).CollectHostPorts(t.Context(), "net1", nil),
		Of(n).RemoveForward(t.Context(), addrs("10.1.0.3", "10.1.0.9")))
	if now := listing(); err != nil || now != before {
		t.Errorf("%v, left are\n%s\nwant\n%s", err, now, before)
	}
}

// TestReferencePluginChainInUse removes a chain although an administrator's rule jumps to it.
func TestReferencePluginChainInUse(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{})
	t.Cleanup(func() { _ = n.Close() })
	iptablesMasquerade(t, c1Chain, "c1", "10.1.0.2", "10.1.0.0/24")
	nstest.Run(t, "iptables", "-t", "nat", "-N", "MINE")
	nstest.Run(t, "iptables", "-t", "nat", "-A", "MINE", "-s", "10.1.0.2", "-j", c1Chain)
	if err := Of(n).RemoveMasquerade(t.Context(), Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	if now := rules(t); strings.Contains(now, c1Chain) {
		t.Fatalf("the chain is still there:\n%s", now)
	}
}

// masqueradeRules returns the table of the reference's nftables backend.
func masqueradeRules(rules ...string) string {
	return `table inet cni_plugins_masquerade {
	chain masq_checks {
` + strings.Join(rules, "\n") + `
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr 224.0.0.0/4 return
		goto masq_checks
	}
}`
}

// masqueradeRule returns one rule of that table.
func masqueradeRule(f Attachment, address, subnet string) string {
	family := "ip"
	if strings.Contains(address, ":") {
		family = "ip6"
	}
	comment := masqueradeComment(&f) + ", net: " + f.Network + ", if: " + f.IfName + ", id: " + f.ContainerID
	return family + " saddr " + address + " " + family + " daddr != " + subnet + ` masquerade comment "` + comment + `"`
}

// TestReferencePluginMasqueradeNFT checks that DEL removes the rules whose comments name the
// attachment, and that GC removes those of attachments that are not valid. The table must
// be deleted with its last rule.
func TestReferencePluginMasqueradeNFT(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{})
	t.Cleanup(func() { _ = n.Close() })
	one := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0", Addresses: addrs("10.1.0.2", "fd00::2")}
	two := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth1"}
	three := Attachment{Network: "net1", ContainerID: "c3", IfName: "eth0"}
	other := Attachment{Network: "net2", ContainerID: "c1", IfName: "eth0"}
	nftFile(t, masqueradeRules(masqueradeRule(one, "10.1.0.2", "10.1.0.0/24"), masqueradeRule(one, "fd00::2", "fd00::/64"),
		masqueradeRule(two, "10.1.0.9", "10.1.0.0/24"), masqueradeRule(three, "10.1.0.3", "10.1.0.0/24"), masqueradeRule(other, "10.2.0.2", "10.2.0.0/24")))
	if missing, err := Of(n).MissingMasquerade(t.Context(), one); err != nil || len(missing) > 0 {
		t.Errorf("missing %v, %v", missing, err)
	}
	steps := []struct {
		name string
		do   func() error
		left []string
	}{
		{"DEL", func() error { return Of(n).RemoveMasquerade(t.Context(), one) }, []string{"10.1.0.9", "10.1.0.3", "10.2.0.2"}},
		{"DEL again", func() error { return Of(n).RemoveMasquerade(t.Context(), one) }, []string{"10.1.0.9", "10.1.0.3", "10.2.0.2"}},
		{"GC", func() error {
			return Of(n).CollectMasquerade(t.Context(), "net1", []Attachment{three})
		}, []string{"10.1.0.3", "10.2.0.2"}},
		{"GC without valid attachments", func() error { return Of(n).CollectMasquerade(t.Context(), "net1", nil) }, []string{"10.2.0.2"}},
		{"DEL of the last", func() error { return Of(n).RemoveMasquerade(t.Context(), other) }, nil},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		now := rules(t)
		for _, a := range []string{"10.1.0.2", "fd00::2", "10.1.0.9", "10.1.0.3", "10.2.0.2"} {
			if has := strings.Contains(now, a+" "); has != slices.Contains(s.left, a) {
				t.Fatalf("%s: rule of %s is there: %t, in\n%s", s.name, a, has, now)
			}
		}
		if s.left == nil && strings.TrimSpace(now) != "" {
			t.Errorf("%s: left are\n%s", s.name, now)
		}
	}
}

// nftFile runs an nft script.
func nftFile(t *testing.T, text string) {
	t.Helper()
	nstest.Run(t, "nft", text)
}

// TestReferencePluginHostPorts checks both backends. The rules of the nftables backend name only
// the container. The destination address identifies the attachment.
func TestReferencePluginHostPorts(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{})
	t.Cleanup(func() { _ = n.Close() })
	iptablesHostPort(t, c2HostPorts, "c2", "8081", "10.1.0.3:80")
	others := rules(t)
	one := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0", Addresses: addrs("10.1.0.2"), Others: nil}
	for _, remove := range []func() error{
		func() error { return Of(n).RemoveHostPorts(t.Context(), one) },
		func() error {
			return Of(n).CollectHostPorts(t.Context(), "net1", []Attachment{{ContainerID: "c2"}})
		},
	} {
		iptablesHostPort(t, c1HostPorts, "c1", "8080", "10.1.0.2:80")
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if now := rules(t); now != others {
			t.Fatalf("ruleset is\n%s\nwant\n%s", now, others)
		}
	}
	nstest.Run(t, "nft", "flush", "ruleset")
	nftFile(t, `table ip cni_hostport {
	chain hostports {
		tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
		ip daddr 192.0.2.1 udp dport 53 dnat to 10.2.0.7:53 comment "c1"
		tcp dport 8081 dnat to 10.1.0.3:80 comment "c2"
	}
	chain hostip_hostports { }
	chain masquerading {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
		ip saddr 10.2.0.7 ip daddr 10.2.0.7 masquerade comment "c1"
		ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade comment "c1"
	}
}`)
	check := func(step string, left ...string) {
		t.Helper()
		now := rules(t)
		for _, a := range []string{"dport 8080", "dport 53", "dport 8081", "daddr 10.1.0.2", "daddr 10.2.0.7"} {
			if has := strings.Contains(now, a); has != slices.Contains(left, a) {
				t.Errorf("%s: %q is there: %t, in\n%s", step, a, has, now)
			}
		}
	}
	if err := Of(n).RemoveHostPorts(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	check("first", "dport 53", "dport 8081", "daddr 10.2.0.7")
	if err := Of(n).RemoveHostPorts(t.Context(), Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0", Others: addrs("10.2.0.7")}); err != nil {
		t.Fatal(err)
	}
	check("unknown, not the other's", "dport 53", "dport 8081", "daddr 10.2.0.7")
	if err := Of(n).RemoveHostPorts(t.Context(), Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	check("unknown", "dport 8081")
	if err := Of(n).RemoveHostPorts(t.Context(), Attachment{Network: "net1", ContainerID: "c2", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	if now := strings.TrimSpace(rules(t)); now != "" {
		t.Errorf("left are\n%s", now)
	}
}

// TestReferencePluginForward checks that the two rules of an address are removed. An
// administrator's rules for the same address must stay.
func TestReferencePluginForward(t *testing.T) {
	nstest.Fresh(t)
	n := netops.New(netops.Options{})
	t.Cleanup(func() { _ = n.Close() })
	for _, program := range []string{"iptables", "ip6tables"} {
		nstest.Run(t, program, "-N", "CNI-FORWARD")
		nstest.Run(t, program, "-A", "FORWARD", "-m", "comment", "--comment", "CNI firewall plugin rules", "-j", "CNI-FORWARD")
	}
	nstest.Run(t, "iptables", "-A", "CNI-FORWARD", "-s", "10.1.0.2", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
	nstest.Run(t, "iptables", "-A", "CNI-FORWARD", "-s", "10.1.0.2", "-m", "comment", "--comment", "mine", "-j", "ACCEPT")
	nstest.Run(t, "iptables", "-A", "CNI-FORWARD", "-s", "10.1.0.2", "-j", "DROP")
	nstest.Run(t, "iptables", "-A", "CNI-FORWARD", "-s", "10.1.0.0/24", "-j", "ACCEPT")
	before := rules(t)
	for _, a := range []string{"10.1.0.2", "fd00::2"} {
		program := "iptables"
		if strings.Contains(a, ":") {
			program = "ip6tables"
		}
		nstest.Run(t, program, "-A", "CNI-FORWARD", "-d", a, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
		nstest.Run(t, program, "-A", "CNI-FORWARD", "-s", a, "-j", "ACCEPT")
	}
	if err := Of(n).RemoveForward(t.Context(), addrs("10.1.0.3")); err != nil {
		t.Fatal(err)
	}
	if rules(t) == before {
		t.Fatal("the rules of another address went")
	}
	for range 2 {
		if err := Of(n).RemoveForward(t.Context(), addrs("10.1.0.2", "fd00::2")); err != nil {
			t.Fatal(err)
		}
		if now := rules(t); now != before {
			t.Fatalf("ruleset is\n%s\nwant\n%s", now, before)
		}
	}
}
