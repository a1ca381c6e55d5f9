package netops

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// freshNet returns a Net in a new network namespace.
func freshNet(t *testing.T) *Net {
	t.Helper()
	nstest.Fresh(t)
	n := New(Options{IPTables: nstest.IPTables})
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func forwardOf(network string) *Forward {
	return &Forward{Shared: true, Link: "cni0", Net: netip.MustParsePrefix(network), Admin: "CNI-ADMIN", Label: "cnibox:shared pods"}
}

func ensure(t *testing.T, n *Net, o ...Object) {
	t.Helper()
	if err := n.Ensure(t.Context(), Spec{o}, nil); err != nil {
		t.Fatal(err)
	}
}

// remove runs the inverses that the records of the objects contain.
func remove(t *testing.T, n *Net, o ...Object) {
	t.Helper()
	changes := SharedInverses(Spec{o})
	for _, o := range o {
		if !o.IsShared() {
			changes = append(changes, Change{Undo: &Step{VerbDel, o}})
		}
	}
	if err := n.Undo(t.Context(), changes, nil); err != nil {
		t.Fatal(err)
	}
}

// listing returns the output of iptables -S without the policies of INPUT and OUTPUT.
// iptables prints these even if the chains do not exist.
func listing(t *testing.T, program string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(nstest.Run(t, program, "-S")) {
		if !strings.HasPrefix(line, "-P INPUT") && !strings.HasPrefix(line, "-P OUTPUT") {
			b.WriteString(line)
		}
	}
	return b.String()
}

const listedForward = `-P FORWARD ACCEPT
-N CNI-ADMIN
-N CNI-FORWARD
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.0.0/24 -o cni0 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "cnibox answers to 10.1.0.0/24 cni0: cnibox:shared pods" -j ACCEPT
-A CNI-FORWARD -d 10.1.0.0/24 -o cni0 -m conntrack --ctstate DNAT -m comment --comment "cnibox published by 10.1.0.0/24 cni0: cnibox:shared pods" -j ACCEPT
-A CNI-FORWARD -s 10.1.0.0/24 -i cni0 -m comment --comment "cnibox from 10.1.0.0/24 cni0: cnibox:shared pods" -j ACCEPT
`

// TestForwardListed makes the rules with every backend and family. iptables must list
// them as if it had made them itself.
func TestForwardListed(t *testing.T) {
	for _, c := range []struct {
		program, network, link string
		legacy                 bool
	}{
		{"iptables-nft", "10.1.0.0/24", "cni0", false},
		{"iptables-nft", "10.0.0.0/13", "veth*", false},
		{"iptables-nft", "10.1.0.7/32", "", false},
		{"ip6tables-nft", "fd00:1::/64", "cni0", false},
		{"ip6tables-nft", "fd00:1::7/128", "", false},
		{"iptables-legacy", "10.1.0.0/24", "cni0", true},
		{"ip6tables-legacy", "fd00:1::/64", "cni0", true},
	} {
		t.Run(c.program+" "+c.network, func(t *testing.T) {
			n := freshNet(t)
			f := forwardOf(c.network)
			f.Link, f.Legacy = c.link, c.legacy
			ensure(t, n, f)
			dev := func(flag string) string {
				if c.link == "" {
					return ""
				}
				return " -" + flag + " " + strings.ReplaceAll(c.link, "*", "+")
			}
			want := listedForward
			if c.legacy { // iptables-legacy lists chains in another order
				want = strings.Replace(want, "-P FORWARD ACCEPT\n-N CNI-ADMIN\n-N CNI-FORWARD\n", "-P FORWARD ACCEPT\n-N CNI-ADMIN\n-N CNI-FORWARD\n", 1)
			}
			want = strings.NewReplacer(" -i cni0", dev("i"), " -o cni0", dev("o"), "10.1.0.0/24 cni0:", strings.TrimSpace(c.network+" "+c.link)+":", "10.1.0.0/24", c.network).Replace(want)
			if have := listing(t, c.program); have != want {
				t.Errorf("%s -S:\n%s\nwant:\n%s", c.program, have, want)
			}
			if d, err := n.Verify(t.Context(), Spec{[]Object{f}}, nil); err != nil || len(d) > 0 {
				t.Errorf("verify: %v, %v", d, err)
			}
			plan, err := n.Plan(t.Context(), Spec{[]Object{f}}, nil)
			if err != nil || len(plan.Changes) > 0 {
				t.Errorf("plan of what is there: %v, %v", plan.Changes, err)
			}
			remove(t, n, f)
			if have := listing(t, c.program); have != "-P FORWARD ACCEPT\n" {
				t.Errorf("%s -S after removal:\n%s", c.program, have)
			}
			remove(t, n, f)
		})
	}
}

// TestForwardRace makes the same rules with 32 sets of sockets at once, while iptables
// adds other rules. Each rule must exist exactly once.
func TestForwardRace(t *testing.T) {
	nstest.Fresh(t)
	host := openNamespaceHere(t)
	var wg sync.WaitGroup
	failed := make(chan error, 64)
	for i := range 32 {
		wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if err := unix.Setns(host, unix.CLONE_NEWNET); err != nil {
				failed <- err
				return
			}
			n := New(Options{})
			defer n.Close() //nolint:errcheck // nothing is deleted
			if i%8 == 0 {
				_, err := nstest.IPTables(t.Context(), "iptables-nft", []string{"-A", "FORWARD", "-i", fmt.Sprintf("x%d", i), "-j", "ACCEPT"}, "")
				failed <- err
			}
			failed <- n.Ensure(t.Context(), Spec{[]Object{forwardOf("10.1.0.0/24")}}, nil)
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			t.Error(err)
		}
	}
	have := nstest.Run(t, "iptables-nft", "-S")
	for _, line := range strings.Split(strings.TrimSpace(listedForward), "\n")[3:] {
		if strings.Count(have, line) != 1 {
			t.Errorf("not exactly once: %s\nin:\n%s", line, have)
		}
	}
	if strings.Count(have, "-i x") != 4 {
		t.Errorf("rules of others: %s", have)
	}
}

func openNamespaceHere(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestForwardOwners checks that the rules for one address are removed only with their
// owner, and the chain with its last rule, unless the administrator's chain has rules. The
// chains, rules and policies of other programs must stay.
func TestForwardOwners(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy %t", legacy), func(t *testing.T) {
			program := "iptables-nft"
			if legacy {
				program = "iptables-legacy"
			}
			n := freshNet(t)
			nstest.Run(t, program, "-P", "FORWARD", "DROP")
			nstest.Run(t, program, "-A", "FORWARD", "-i", "other0", "-j", "ACCEPT")
			before := nstest.Run(t, program, "-S")
			nstest.Run(t, program, "-N", "CNI-ADMIN")
			nstest.Run(t, program, "-A", "CNI-ADMIN", "-s", "10.1.0.9", "-j", "DROP")
			own := func(label string) *Forward {
				return &Forward{Net: netip.MustParsePrefix("10.1.0.7/32"), Admin: "CNI-ADMIN", Label: label, Legacy: legacy}
			}
			old, late := own("cnibox:00000000000000aa"), own("cnibox:00000000000000bb")
			ensure(t, n, old)
			ensure(t, n, late)
			remove(t, n, old)
			have := nstest.Run(t, program, "-S")
			if strings.Contains(have, "aa") || strings.Count(have, "bb") != 3 {
				t.Errorf("after the old owner's removal:\n%s", have)
			}
			if d, err := n.Verify(t.Context(), Spec{[]Object{late}}, nil); err != nil || len(d) > 0 {
				t.Errorf("verify: %v, %v", d, err)
			}
			nstest.Run(t, program, "-F", "CNI-FORWARD")
			if d, err := n.Verify(t.Context(), Spec{[]Object{late}}, nil); err != nil || len(d) != 4 {
				t.Errorf("verify after a flush: %v, %v", d, err)
			}
			ensure(t, n, late)
			remove(t, n, late)
			have = nstest.Run(t, program, "-S")
			if strings.Contains(have, "bb") || strings.Count(have, "-j CNI-FORWARD") != 1 || strings.Count(have, "-j CNI-ADMIN") != 1 {
				t.Errorf("the administrator's rule is not applied after all:\n%s", have)
			}
			nstest.Run(t, program, "-F", "CNI-ADMIN")
			ensure(t, n, late)
			remove(t, n, late)
			if have := nstest.Run(t, program, "-S"); have != before {
				t.Errorf("after all:\n%s\nwant:\n%s", have, before)
			}
		})
	}
}

// TestForwardPolicy checks that ForwardPolicy finds the firewalls that refuse to forward,
// and that it changes nothing.
func TestForwardPolicy(t *testing.T) {
	for _, c := range []struct {
		name  string
		setUp []string
		is6   bool
		want  ForwardPolicy
	}{
		{name: "no filter"},
		{name: "accepting", setUp: []string{"iptables-nft -A FORWARD -i x -j DROP", "iptables-legacy -A FORWARD -i x -j DROP"}},
		{name: "docker", setUp: []string{"iptables-nft -P FORWARD DROP"}, want: ForwardPolicy{Refused: true}},
		{name: "other family", setUp: []string{"iptables-nft -P FORWARD DROP", "iptables-legacy -P FORWARD DROP"}, is6: true},
		{name: "IPv6", setUp: []string{"ip6tables-nft -P FORWARD DROP", "ip6tables-legacy -P FORWARD DROP"}, is6: true, want: ForwardPolicy{Refused: true, RefusedLegacy: true}},
		{name: "last rule", setUp: []string{"iptables-nft -A FORWARD -i x -j ACCEPT", "iptables-nft -A FORWARD -m comment --comment all -j REJECT"}, want: ForwardPolicy{Refused: true}},
		{name: "overlay", setUp: []string{
			"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -s 10.244.0.0/16 -m comment --comment OVERLAY -j ACCEPT", "iptables-legacy -P FORWARD DROP",
			"iptables-legacy -A FORWARD -s 10.245.0.0/16 -m comment --comment OVERLAY -j ACCEPT",
		}, want: ForwardPolicy{Refused: true, RefusedLegacy: true}},
		{name: "refusal before the overlay", setUp: []string{"iptables-nft -A FORWARD -j DROP", "iptables-nft -A FORWARD -s 10.244.0.0/16 -m comment --comment OVERLAY -j ACCEPT"}, want: ForwardPolicy{Refused: true}},
		{name: "last rule nft", setUp: []string{"nft add table ip filter", "nft add chain ip filter FORWARD { type filter hook forward priority 0 ; }", "nft add rule ip filter FORWARD drop"}, want: ForwardPolicy{Refused: true}},
		{name: "legacy", setUp: []string{"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -i x -j ACCEPT"}, want: ForwardPolicy{RefusedLegacy: true}},
		{name: "firewalld", setUp: []string{"nft add table inet firewalld", "nft add chain inet firewalld filter_FORWARD"}, want: ForwardPolicy{Firewalld: true}},
		{name: "firewalld iptables", setUp: []string{"iptables-nft -N FORWARD_direct", "iptables-nft -A FORWARD -j FORWARD_direct"}, want: ForwardPolicy{Firewalld: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := freshNet(t)
			for _, s := range c.setUp {
				w := strings.Fields(s)
				if i := slices.Index(w, "OVERLAY"); i >= 0 {
					w[i] = iptables.OverlayFrom + w[slices.Index(w, "-s")+1]
				}
				nstest.Run(t, w[0], w[1:]...)
			}
			before := nstest.Run(t, "nft", "list", "ruleset")
			have, err := n.FilterTables().Policy(t.Context(), c.is6)
			if err != nil || !reflect.DeepEqual(have, c.want) {
				t.Errorf("%+v, %v, want %+v", have, err, c.want)
			}
			if after := nstest.Run(t, "nft", "list", "ruleset"); after != before {
				t.Errorf("changed the ruleset:\n%s", after)
			}
			if c.setUp == nil && iptables.IsLegacyLoaded(unix.NFPROTO_IPV4, "filter") {
				t.Error("a legacy table was made")
			}
		})
	}
}

// TestForwardPolicyChanging checks that ForwardPolicy reads the ruleset again if another
// program changed it meanwhile.
func TestForwardPolicyChanging(t *testing.T) {
	n := freshNet(t)
	host := openNamespaceHere(t)
	ruleset := strings.Builder{}
	ruleset.WriteString("table ip filter { chain OTHER { }\nchain FORWARD { type filter hook forward priority 0 ;\n")
	for i := range 200 {
		fmt.Fprintf(&ruleset, "iifname x%d accept\n", i)
	}
	ruleset.WriteString("drop\n}\n}\n")
	if _, err := nstest.IPTables(t.Context(), "nft", []string{"-f", "-"}, ruleset.String()); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(host, unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := nstest.IPTables(t.Context(), "nft", []string{"add rule ip filter OTHER accept"}, ""); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		if have, err := n.FilterTables().Policy(t.Context(), false); err != nil || !have.Refused {
			t.Errorf("%+v, %v", have, err)
			break
		}
	}
	close(stop)
	wg.Wait()
}

// TestForwardInvalid checks that validate refuses values that the kernel or iptables
// would refuse.
func TestForwardInvalid(t *testing.T) {
	for _, f := range []Forward{
		{Shared: true, Admin: "CNI-ADMIN"},
		{Shared: true, Admin: "CNI-ADMIN", Net: netip.MustParsePrefix("10.1.0.1/24")},
		{Admin: "CNI-ADMIN", Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: "a b", Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: "-j", Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: "FORWARD", Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: "CNI-FORWARD", Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: "a\nCOMMIT", Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: strings.Repeat("a", 29), Net: netip.MustParsePrefix("10.1.0.0/24")},
		{Shared: true, Admin: "CNI-ADMIN", Net: netip.MustParsePrefix("10.1.0.0/24"), Link: "a b"},
	} {
		if err := f.validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
