package leftovers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestReferencePluginPorts finds the ports that the rules of each backend map to containers. It
// must not find mappings of other programs.
func TestReferencePluginPorts(t *testing.T) {
	iptables := func(program string) func(*testing.T) {
		return func(t *testing.T) {
			nat := func(program string, args ...string) {
				nstest.Run(t, program, append([]string{"-t", "nat"}, args...)...)
			}
			entry := func(program, chain, id string, words ...string) {
				nat(program, append([]string{"-A", "CNI-HOSTPORT-DNAT", "-m", "comment", "--comment", `dnat name: "net1" id: "` + id + `"`, "-m", "multiport"}, append(words, "-j", chain)...)...)
			}
			for _, p := range []string{program, strings.Replace(program, "ip", "ip6", 1)} {
				nat(p, "-N", "CNI-HOSTPORT-DNAT")
				nat(p, "-N", "CNI-HOSTPORT-SETMARK")
				nat(p, "-N", c1HostPorts)
				nat(p, "-N", c2HostPorts)
				nat(p, "-N", "CNI-DN-0123456789")
			}
			nat(program, "-A", "PREROUTING", "-p", "tcp", "--dport", "1000", "-j", "DNAT", "--to-destination", "10.1.0.9")
			entry(program, c1HostPorts, "c1", "-p", "tcp", "--destination-ports", "1000,1001", "-s", "10.0.0.0/8")
			entry(program, c1HostPorts, "c1", "-p", "udp", "--destination-ports", "1000")
			nat(program, "-A", c1HostPorts, "-p", "tcp", "--dport", "1000", "-s", "10.1.0.0/24", "-j", "CNI-HOSTPORT-SETMARK")
			nat(program, "-A", c1HostPorts, "-p", "tcp", "--dport", "1000", "-j", "DNAT", "--to-destination", "10.1.0.2:80")
			nat(program, "-A", c1HostPorts, "-p", "tcp", "--dport", "1001", "-d", "192.0.2.1", "-j", "DNAT", "--to-destination", "10.1.0.2:81")
			nat(program, "-A", c1HostPorts, "-p", "udp", "--dport", "1000", "-j", "DNAT", "--to-destination", "10.1.0.2:80")
			entry(program, c2HostPorts, "c2", "-p", "sctp", "--destination-ports", "1002")
			nat(program, "-A", c2HostPorts, "-p", "sctp", "--dport", "1002", "-j", "DNAT", "--to-destination", "10.1.0.3:80")
			// The chain's name is not the digest of the network and container in its entry.
			entry(program, "CNI-DN-0123456789", "c3", "-p", "tcp", "--destination-ports", "1000")
			nat(program, "-A", "CNI-DN-0123456789", "-p", "tcp", "--dport", "1000", "-j", "DNAT", "--to-destination", "10.1.0.4:80")
			six := strings.Replace(program, "ip", "ip6", 1)
			entry(six, c1HostPorts, "c1", "-p", "tcp", "--destination-ports", "1000")
			nat(six, "-A", c1HostPorts, "-p", "tcp", "--dport", "1000", "-d", "2001:db8::1", "-j", "DNAT", "--to-destination", "[fd00::2]:80")
		}
	}
	found4 := []string{`tcp 1000 * "net1" c1`, `tcp 1001 192.0.2.1 "net1" c1`, `udp 1000 * "net1" c1`, `sctp 1002 * "net1" c2`}
	found6 := []string{`tcp 1000 2001:db8::1 "net1" c1`}
	unnamed := func(found []string) (out []string) {
		for _, f := range found {
			out = append(out, strings.Replace(f, "net1", "", 1))
		}
		return out
	}
	for _, v := range []struct {
		name         string
		set          func(*testing.T)
		want4, want6 []string
	}{
		{"nothing", func(*testing.T) {}, nil, nil},
		{"iptables-nft", iptables("iptables-nft"), found4, found6},
		{"iptables-legacy", iptables("iptables-legacy"), found4, found6},
		{"nftables", func(t *testing.T) {
			nstest.Run(t, "nft", `table ip cni_hostport {
	chain hostports {
		tcp dport 1000 dnat to 10.1.0.2:80 comment "c1"
		ip daddr 192.0.2.1 tcp dport 1001 dnat to 10.1.0.2:81 comment "c1"
		udp dport 1000 dnat to 10.1.0.2:80 comment "c1"
	}
	chain hostip_hostports {
		sctp dport 1002 dnat to 10.1.0.3:80 comment "c2"
	}
	chain masquerading { ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade comment "c1"; }
}
table ip6 cni_hostport {
	chain hostports { ip6 daddr 2001:db8::1 tcp dport 1000 dnat to [fd00::2]:80 comment "c1"; }
}
table ip nat {
	chain other {
		tcp dport 1000 dnat to 10.1.0.9:80
	}
}`)
		}, unnamed(found4), unnamed(found6)},
	} {
		t.Run(v.name, func(t *testing.T) {
			n := freshNet(t)
			v.set(t)
			wanted := func(_ string, port uint16) bool { return port >= 1000 && port <= 1002 }
			for is6, want := range map[bool][]string{false: v.want4, true: v.want6} {
				held, err := Of(n).Ports(t.Context(), is6, wanted)
				if err != nil {
					t.Fatal(err)
				}
				var have []string
				for _, p := range held {
					node := "*"
					if p.Node.IsValid() {
						node = p.Node.String()
					}
					have = append(have, fmt.Sprintf("%s %d %s %q %s", p.Proto, p.Port, node, p.Network, p.ContainerID))
				}
				slices.Sort(have)
				slices.Sort(want)
				if !slices.Equal(have, want) {
					t.Errorf("IPv6 %t: held are %q, want %q", is6, have, want)
				}
				if none, err := Of(n).Ports(t.Context(), is6, func(string, uint16) bool { return false }); err != nil || len(none) > 0 {
					t.Errorf("IPv6 %t: of no wanted port %v, %v", is6, none, err)
				}
			}
		})
	}
}

// TestReferencePluginLegacyUnread checks that the iptables-legacy program is not run if its tables
// contain only rules of other programs. The program would read all rules.
func TestReferencePluginLegacyUnread(t *testing.T) {
	nstest.Fresh(t)
	runs := 0
	n := netops.New(netops.Options{IPTables: func(ctx context.Context, program string, args []string, input string) (string, error) {
		runs++
		return nstest.IPTables(ctx, program, args, input)
	}})
	t.Cleanup(func() { _ = n.Close() })
	read := func() int {
		t.Helper()
		runs = 0
		for _, is6 := range []bool{false, true} {
			if _, err := Of(n).Ports(t.Context(), is6, func(string, uint16) bool { return true }); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Of(n).Has(t.Context(), Attachment{Network: "net1", ContainerID: "c1"}); err != nil {
			t.Fatal(err)
		}
		return runs
	}
	nstest.Run(t, "iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "1000", "-j", "DNAT", "--to-destination", "10.1.0.9")
	nstest.Run(t, "ip6tables-legacy", "-t", "nat", "-N", "KUBE-HOSTPORTS")
	if have := read(); have != 0 {
		t.Errorf("a program was run %d times for rules of others", have)
	}
	nstest.Run(t, "ip6tables-legacy", "-t", "nat", "-N", "CNI-HOSTPORT-DNAT")
	if have := read(); have != 1 {
		t.Errorf("a program was run %d times for one table of the reference's, want once", have)
	}
}
