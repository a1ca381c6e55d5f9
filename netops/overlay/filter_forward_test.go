package overlay

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// accepting are the overlay's rules as iptables lists them.
const accepting = `-A FORWARD -s 10.244.0.0/16 -m comment --comment "cnibox overlay from 10.244.0.0/16" -j ACCEPT
-A FORWARD -d 10.244.0.0/16 -m comment --comment "cnibox overlay to 10.244.0.0/16" -j ACCEPT
`

// forwarding returns a NAT that accepts forwarded packets.
func forwarding(n overlayNet) NAT {
	w := natOf(n)
	w.Forward = true
	return w
}

// forwardFilter opens a Filter in a new namespace.
func forwardFilter(t *testing.T) *Filter {
	t.Helper()
	nstest.Fresh(t)
	f, err := OpenFilter(netops.New(netops.Options{IPTables: nstest.IPTables}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestOverlayForward: the rules that accept pods' packets are in iptables' FORWARD chain before the chain refuses anything, behind
// other programs' rules and before one that refuses all packets. Each change of the chain leads to a notification, and Ensure repairs it.
// Without a chain none is made, and Remove leaves nothing.
func TestOverlayForward(t *testing.T) {
	const third, reject = "-A FORWARD -s 192.0.2.1/32 -j DROP\n", "-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n"
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(program, func(t *testing.T) {
			f := forwardFilter(t)
			legacy := program == "iptables-legacy"
			ensureFilter(t, f, forwarding(net4()), forwarding(net6()))
			if tables := nstest.Run(t, "nft", "list", "tables"); strings.Contains(tables, "filter") || iptables.IsLegacyLoaded(unix.NFPROTO_IPV4, "filter") {
				t.Errorf("a table was made: %s", tables)
			}
			for _, c := range []struct{ change, want string }{
				{"-P FORWARD ACCEPT", "-P FORWARD ACCEPT\n" + accepting},
				{"-P FORWARD DROP", "-P FORWARD DROP\n" + accepting},
				{"-F FORWARD", "-P FORWARD DROP\n" + accepting},
				{"-A FORWARD -j REJECT", "-P FORWARD DROP\n" + accepting + reject},
				{"-F FORWARD", "-P FORWARD DROP\n" + accepting},
				{"-I FORWARD -s 192.0.2.1 -j DROP", "-P FORWARD DROP\n" + third + accepting},
				{"-D FORWARD 3", "-P FORWARD DROP\n" + third + accepting},
			} {
				nstest.Run(t, program, strings.Fields(c.change)...)
				if legacy {
					f.Recheck() // watchLegacy reads the namespace of the process
				} else {
					await.Next(t, f.Changes(), c.change+": a change notification")
				}
				ensureFilter(t, f, forwarding(net4()))
				ensureFilter(t, f, forwarding(net4()))
				have := nstest.Run(t, program, "-S", "FORWARD")
				if have != c.want {
					t.Errorf("%s:\n%s", c.change, have)
				}
			}
			// A rule of another program refuses everything: the overlay's come before it. One that is put before them is named.
			nstest.Run(t, program, "-F", "FORWARD")
			nstest.Run(t, program, strings.Fields(strings.TrimSpace(third))...)
			nstest.Run(t, program, "-A", "FORWARD", "-j", "REJECT")
			f.Recheck()
			ensureFilter(t, f, forwarding(net4()))
			if have := nstest.Run(t, program, "-S", "FORWARD"); have != "-P FORWARD DROP\n"+third+accepting+reject {
				t.Errorf("before a refusal:\n%s", have)
			}
			nstest.Run(t, program, "-I", "FORWARD", "-j", "DROP")
			f.Recheck()
			for range 2 {
				if err := f.Ensure(t.Context(), []NAT{forwarding(net4())}); err == nil || !strings.Contains(err.Error(), "rule 1 of chain FORWARD refuses all packets before those of 10.244.0.0/16 are accepted: run 'ip") {
					t.Errorf("a refusal before the rules: %v", err)
				}
			}
			nstest.Run(t, program, "-D", "FORWARD", "1")
			// Another network replaces the first one's rules.
			other := forwarding(net4())
			other.Network, other.Subnet = netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.0.1.0/24")
			f.Recheck()
			ensureFilter(t, f, other)
			if have := nstest.Run(t, program, "-S", "FORWARD"); have != "-P FORWARD DROP\n"+third+strings.ReplaceAll(accepting, "10.244.", "10.0.")+reject {
				t.Errorf("another network:\n%s", have)
			}
			if err := f.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if have := nstest.Run(t, program, "-S", "FORWARD"); have != "-P FORWARD DROP\n"+third+reject {
				t.Errorf("left:\n%s", have)
			}
			if iptables.IsLegacyLoaded(unix.NFPROTO_IPV6, "filter") {
				t.Error("a legacy table for IPv6 was made")
			}
		})
	}
}

// TestOverlayForwardQuiet: a program that rewrites its own chains of iptables' filter table, as kube-proxy does, causes no
// notification. Many changes of FORWARD cause few, and each Ensure reads the chain once.
func TestOverlayForwardQuiet(t *testing.T) {
	f := forwardFilter(t)
	nstest.Run(t, "iptables-nft", "-P", "FORWARD", "ACCEPT")
	await.Next(t, f.Changes(), "the chain")
	ensureFilter(t, f, forwarding(net4()))
	restore := func(lines string, times int) *exec.Cmd {
		cmd := exec.Command("iptables-nft-restore", "--noflush")
		cmd.Stdin = strings.NewReader(strings.Repeat("*filter\n"+lines+"COMMIT\n", times))
		return cmd
	}
	proxy := ":KUBE-FORWARD - [0:0]\n:KUBE-SERVICES - [0:0]\n" + strings.Repeat("-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REJECT\n", 20) +
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n"
	if out, err := restore(proxy, 50).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nstest.Run(t, "nft", "delete", "table", "inet", "cnibox_overlay") // arrives after all others
	await.Next(t, f.Changes(), "the end")
	if !f.forwardKnown {
		t.Error("changes of kube-proxy's chains are reported")
	}
	ensureFilter(t, f, forwarding(net4()))
	changes := restore("-A FORWARD -s 192.0.2.1 -j ACCEPT\n-A FORWARD -s 192.0.2.2 -j ACCEPT\n", 300)
	begin, ended := time.Now(), make(chan error, 1)
	if err := changes.Start(); err != nil { // in this thread's namespace
		t.Fatal(err)
	}
	go func() { ended <- changes.Wait() }()
	times := 0
	for running := true; running; {
		select {
		case <-f.Changes():
			times++
			ensureFilter(t, f, forwarding(net4()))
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		}
	}
	t.Logf("%d notifications of 300 changes in %v", times, time.Since(begin))
	if most := 1 + int(time.Since(begin)/(20*time.Millisecond)); times == 0 || times > most {
		t.Errorf("%d notifications, %d at most", times, most)
	}
}
