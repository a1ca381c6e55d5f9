package netops_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// newUplink creates a node's NIC and the network behind it: a gateway, and a
// host behind the gateway.
func newUplink(t testing.TB) *netopstest.NS {
	t.Helper()
	box := netopstest.New(t)
	run(t, "ip", "link", "add", "eth0", "address", "02:00:0a:f0:00:04", "mtu", "1400", "type", "veth", "peer", "name", "eth0", "netns", box.Path())
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", "eth0").Run()
		_ = exec.Command("ip", "link", "del", "azure0").Run()
	})
	for _, c := range []string{
		"link set eth0 mtu 1400 up", "address add 10.240.0.1/16 dev eth0", "address add fd00:240::1/64 dev eth0 nodad", "address add fe80::1/64 dev eth0 nodad",
		"link set lo up", "address add 192.0.2.2/32 dev lo", "address add 2001:db8::2/128 dev lo nodad",
	} {
		inside(t, box, strings.Fields("ip "+c)...)
	}
	// The link must accept advertisements, whatever an earlier test did to
	// forwarding.
	run(t, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0", "net.ipv6.conf.eth0.accept_ra=2")
	for _, c := range []string{
		"link set eth0 up",
		"address add 10.240.0.4/16 brd 10.240.255.255 dev eth0 valid_lft 5000 preferred_lft 4000",
		"address add 10.240.0.5/16 dev eth0 label eth0:five", "address add 10.240.0.6/16 dev eth0",
		"address add 172.31.0.9/24 dev eth0 metric 77", "address add 10.99.0.1/32 peer 10.99.0.2/32 dev eth0",
		"address add fd00:240::4/64 dev eth0 nodad valid_lft 3000 preferred_lft 2000", "address add fd00:241::4/64 dev eth0 nodad noprefixroute",
		"route add default via 10.240.0.1 dev eth0 proto dhcp src 10.240.0.4 metric 100",
		"route add 168.63.129.16 via 10.240.0.1 dev eth0 proto dhcp src 10.240.0.4 metric 100",
		"route add 198.51.100.0/24 dev eth0 scope link mtu 1300 table 100",
		"route add default via 10.240.0.1 dev eth0 table 100 onlink",
		"route add local 203.0.113.0/24 dev eth0",
		"-6 route add fd00:241::/64 dev eth0 proto kernel metric 100",
		"-6 route add default via fe80::1 dev eth0 proto ra metric 1024 expires 1800 mtu 1350",
		"-6 route add 2001:db8:77::/48 via fd00:240::1 dev eth0 src fd00:240::4",
		"neigh add 10.240.0.77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
	} {
		run(t, strings.Fields("ip "+c)...)
	}
	// The kernel adds the local routes of these addresses asynchronously.
	for _, a := range []string{"fd00:240::4", "fd00:241::4"} {
		await.Until(t, func() bool {
			out, err := exec.Command("ip", "-6", "route", "show", "table", "local", a).Output()
			return err == nil && len(out) > 0
		}, func() string { return "the kernel has no local route to " + a })
	}
	return box
}

func azure0() *netops.Takeover { return &netops.Takeover{Bridge: "azure0", Uplink: "eth0"} }

func taken() netops.Spec { return netops.Spec{Objects: []netops.Object{azure0()}} }

// placedText returns all addresses and routes of a link as iproute2 prints them,
// without the link's name and remaining lifetimes.
func placedText(t testing.TB, link string) string {
	t.Helper()
	var b strings.Builder
	for _, c := range []string{"-4 -o address show dev %s", "-6 -o address show dev %s scope global", "-4 -d route show table all dev %s", "-6 -d route show table all dev %s"} {
		lines := strings.Split(run(t, strings.Fields("ip "+fmt.Sprintf(c, link))...), "\n")
		if strings.Contains(c, "route") {
			slices.Sort(lines)
		}
		for _, line := range lines {
			if strings.Contains(line, "fe80::/64") || strings.Contains(line, "multicast") || strings.Contains(line, "anycast") || strings.Contains(line, "local fe80") {
				continue
			}
			line = regexp.MustCompile(`^\d+: `).ReplaceAllString(line, "")
			line = regexp.MustCompile(`\\? +valid_lft.*|expires \d+sec`).ReplaceAllString(line, "")
			// The takeover gives these routes a lower priority than
			// the kernel's own.
			line = regexp.MustCompile(`(proto ra .*metric) 102[45]`).ReplaceAllString(line, "$1")
			if strings.Contains(c, "-4 -o") { // becomes permanent
				line = strings.ReplaceAll(line, " dynamic", "")
			}
			line = strings.Join(strings.Fields(strings.ReplaceAll(line, link, "LINK")), " ")
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// TestTakeover makes and reverts a takeover with live connections, for each mode
// of the kernel's source check.
func TestTakeover(t *testing.T) {
	for _, rp := range []struct{ all, own string }{{"0", "0"}, {"0", "1"}, {"1", "1"}, {"1", "2"}, {"2", "0"}} {
		t.Run("rp_filter "+rp.all+" "+rp.own, func(t *testing.T) {
			ctx := context.Background()
			box := newUplink(t)
			run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter="+rp.all, "net.ipv4.conf.eth0.rp_filter="+rp.own, "net.ipv4.conf.eth0.arp_ignore=1")
			t.Cleanup(func() { run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0") })
			before := placedText(t, "eth0")
			near, far := newLive(t, box, "10.240.0.5", "10.240.0.1"), newLive(t, box, "", "192.0.2.2")
			far6 := newLive(t, box, "fd00:240::4", "2001:db8::2")
			all := []*live{near, far, far6}
			more(t, all)
			n := newNet(t, nil)
			t.Logf("stalls before: %v, %v, %v", near.stall(), far.stall(), far6.stall())
			again := sentAgain(t)
			begun := time.Now()
			if err := n.Ensure(ctx, taken(), nil); err != nil {
				t.Fatal(err)
			}
			took := time.Since(begun)
			more(t, all)
			t.Logf("taken in %v; stalls: same subnet %v, by the gateway %v, IPv6 %v; sent again %d", took, near.stall(), far.stall(), far6.stall(), sentAgain(t)-again)
			if d := cmp.Diff(before, placedText(t, "azure0")); d != "" {
				t.Errorf("azure0 (-eth0 before +azure0):\n%s", d)
			}
			if have := strings.TrimSpace(placedText(t, "eth0")); have != "" {
				t.Errorf("left on eth0:\n%s", have)
			}
			checkTaken(t, n, rp.own)
			if err := n.RestoreUplink(ctx, *azure0(), false); err != nil {
				t.Fatal(err)
			}
			more(t, all)
			if d := cmp.Diff(before, placedText(t, "eth0")); d != "" {
				t.Errorf("eth0 (-before +restored):\n%s", d)
			}
			if _, err := n.Link(ctx, nil, "azure0"); !errors.Is(err, netops.ErrNotExist) {
				t.Errorf("azure0 after RestoreUplink: %v", err)
			}
			for _, v := range all {
				t.Logf("given back; stall %v", v.end(t))
			}
			t.Logf("in all sent again %d", sentAgain(t)-again)
		})
	}
}

// checkTaken checks the bridge after a takeover.
func checkTaken(t testing.TB, n *netops.Net, rpFilter string) {
	t.Helper()
	ctx := context.Background()
	for key, want := range map[string]string{"rp_filter": rpFilter, "arp_ignore": "1"} {
		if have, err := n.Sysctl(ctx, nil, "net/ipv4/conf/azure0/"+key); have != want || err != nil {
			t.Errorf("%s of azure0: %s, %v, want %s", key, have, err, want)
		}
	}
	br, err := n.Link(ctx, nil, "azure0")
	if err != nil || br.MAC != "02:00:0a:f0:00:04" || br.MTU != 1400 || !br.OperUp {
		t.Errorf("azure0: %+v, %v", br, err)
	}
	up, err := n.Link(ctx, nil, "eth0")
	if err != nil || up.Master != "azure0" || !up.Hairpin {
		t.Errorf("eth0: %+v, %v", up, err)
	}
	if d, err := n.Verify(ctx, taken(), nil); err != nil || len(d) != 0 {
		t.Errorf("Verify: %v, %v", d, err)
	}
	if c, err := n.Plan(ctx, taken(), nil); err != nil || len(c.Changes) != 0 {
		t.Errorf("Plan again: %s, %v", lines(c.Changes), err)
	}
	neigh := run(t, "ip", "neigh", "show", "dev", "azure0")
	if !strings.Contains(neigh, "10.240.0.77 lladdr 02:00:00:00:00:77 PERMANENT") {
		t.Errorf("neighbours of azure0:\n%s", neigh)
	}
	if all, err := n.Takeovers(ctx); err != nil || len(all) != 1 || all[0] != (netops.Takeover{Bridge: "azure0", Uplink: "eth0"}) {
		t.Errorf("Takeovers: %+v, %v", all, err)
	}
}

// TestTakeoverFaults fails each write in turn and checks that the uplink is
// restored.
func TestTakeoverFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	ctx := context.Background()
	box := newUplink(t)
	run(t, "sysctl", "-qw", "net.ipv4.conf.eth0.rp_filter=1")
	before := placedText(t, "eth0")
	v := newLive(t, box, "", "192.0.2.2")
	for at := 1; ; at++ {
		n := newNet(t, &netopstest.FailNth{N: at})
		err := n.Ensure(ctx, taken(), nil)
		if err == nil {
			if err := newNet(t, nil).RestoreUplink(ctx, *azure0(), false); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d writes, longest stall %v", at-1, v.end(t))
			return
		}
		if !errors.Is(err, netopstest.ErrProbe) {
			t.Fatalf("write %d: %v", at, err)
		}
		v.more(t)
		if d := cmp.Diff(before, placedText(t, "eth0")); d != "" {
			t.Fatalf("write %d failed: eth0 (-before +after):\n%s", at, d)
		}
		if _, err := n.Link(ctx, nil, "azure0"); !errors.Is(err, netops.ErrNotExist) {
			t.Fatalf("write %d failed: azure0: %v", at, err)
		}
	}
}

const takeoverKillEnv = "CNIBOX_TEST_TAKEOVER_KILL"

// TestTakeoverVictim runs in the process that TestTakeoverKillSweep kills.
func TestTakeoverVictim(t *testing.T) {
	f := strings.Fields(os.Getenv(takeoverKillEnv)) // verb, step, "before" or "after"
	if len(f) != 3 {
		t.Skip("started by TestTakeoverKillSweep only")
	}
	at, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	n := newNet(t, &netopstest.KillNth{N: at, Late: f[2] == "after"})
	if f[0] == "take" {
		err = n.Ensure(context.Background(), taken(), nil)
	} else {
		err = n.RestoreUplink(context.Background(), *azure0(), false)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTakeoverKillSweep kills a process before and after each write of a
// takeover and of its restoration. The next process completes or reverts it from
// the kernel's state alone. A connection survives all of it.
func TestTakeoverKillSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	ctx := context.Background()
	box := newUplink(t)
	run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.eth0.rp_filter=1")
	t.Cleanup(func() { run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0") })
	want := placedText(t, "eth0")
	v := newLive(t, box, "", "192.0.2.2")
	n := newNet(t, nil)
	for _, verb := range []string{"take", "restore"} {
		at := 1
		for killed := true; killed; at++ {
			killed = false
			for _, when := range []string{"before", "after"} {
				if verb == "restore" {
					if err := n.Ensure(ctx, taken(), nil); err != nil {
						t.Fatal(err)
					}
				}
				if victim(t, fmt.Sprintf("%s %d %s", verb, at, when)) {
					killed = true
				}
				v.more(t)
				if (at+len(when))%2 == 0 { // complete and then restore, or restore at once
					if err := n.Ensure(ctx, taken(), nil); err != nil {
						t.Fatalf("%s killed %s write %d: %v", verb, when, at, err)
					}
					v.more(t)
					if d := cmp.Diff(want, placedText(t, "azure0")); d != "" {
						t.Fatalf("%s killed %s write %d: azure0 (-eth0 +azure0):\n%s", verb, when, at, d)
					}
					if d, err := n.Verify(ctx, taken(), nil); err != nil || len(d) != 0 {
						t.Fatalf("%s killed %s write %d: Verify: %v, %v", verb, when, at, d, err)
					}
				}
				if err := n.RestoreUplink(ctx, *azure0(), false); err != nil {
					t.Fatalf("%s killed %s write %d: %v", verb, when, at, err)
				}
				v.more(t)
				if d := cmp.Diff(want, placedText(t, "eth0")); d != "" {
					t.Fatalf("%s killed %s write %d: eth0 (-before +restored):\n%s", verb, when, at, d)
				}
			}
		}
		t.Logf("%s: killed around %d writes, longest stall %v", verb, at-2, v.stall())
	}
	v.end(t)
}

// victim runs a takeover or restoration in a process that is killed. It returns
// false if the process was not killed.
func victim(t *testing.T, how string) (killed bool) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestTakeoverVictim$", "-test.count=1")
	cmd.Env = append(os.Environ(), takeoverKillEnv+"="+how)
	out, err := cmd.CombinedOutput()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if killed = status.Signal() == unix.SIGKILL; !killed && err != nil {
		t.Fatalf("%s: %v: %s", how, err, out)
	}
	return killed
}
