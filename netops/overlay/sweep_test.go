package overlay

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// nthWrite makes the n-th write fail, or kills the process before or after it.
type nthWrite struct {
	n, seen int
	before  func() error
	after   func()
}

func (p *nthWrite) Before(netops.Step) error {
	if p.seen++; p.seen == p.n && p.before != nil {
		return p.before()
	}
	return nil
}

func (p *nthWrite) After(netops.Step) {
	if p.seen == p.n && p.after != nil {
		p.after()
	}
}

// probe makes the overlay call p for each write.
func probe(t *testing.T, o *Kernel, p netops.Probe) {
	t.Helper()
	if err := o.disconnect(); err != nil {
		t.Fatal(err)
	}
	o.net = netops.New(netops.Options{Probe: p})
	if err := o.connect(); err != nil {
		t.Fatal(err)
	}
}

func kill() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// ourState returns the overlay's state in the kernel, without the numbers that
// may differ.
func ourState(t *testing.T, n overlayNet) string {
	t.Helper()
	var lines []string
	for _, show := range []string{"-d link show type vxlan", "-4 route show proto 142", "-6 route show proto 142", "nexthop", "neigh show nud permanent dev " + n.device, "addr show dev " + n.device} {
		out, _ := exec.Command("ip", strings.Fields(show)...).Output() // the device may be absent
		lines = append(lines, strings.Split(string(out), "\n")...)
	}
	out, _ := exec.Command("bridge", "fdb", "show", "dev", n.device).Output()
	lines = append(lines, strings.Split(string(out), "\n")...)
	slices.Sort(lines)
	return regexp.MustCompile(`(^|\n)\d+: |nhid \d+|id \d{4,}`).ReplaceAllString(strings.Join(lines, "\n"), "")
}

// sweepSpec returns a spec that needs several writes for its peers.
func sweepSpec(n overlayNet) Spec {
	spec := n.spec()
	spec.Peers = manyPeers(60, n.is6)
	return spec
}

// formerSpec returns an earlier spec: a shorter list of peers, some with other
// MACs, and a device with another MTU and VNI.
func formerSpec(n overlayNet) Spec {
	spec := sweepSpec(n)
	spec.Device.MTU, spec.Device.VNI = 1280, 7
	for i := range spec.Peers {
		if i%3 == 0 {
			spec.Peers[i].MAC = MAC{2, 0x99, 0x99, 0x99, 0x99, byte(i + 16)}
		}
	}
	spec.Peers = spec.Peers[:40]
	return spec
}

// TestOverlayFaultSweep makes each write fail in turn during a change from one
// state to another. The next Apply must have the same result as without the
// failure. Remove must delete everything.
func TestOverlayFaultSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for _, n := range []overlayNet{net4(), net6()} {
		makeNodes(t, n)
		empty := ourState(t, n)
		o := openOverlay(t, n, Options{})
		apply(t, o, sweepSpec(n))
		want := ourState(t, n)
		for fail := 1; ; fail++ {
			apply(t, o, formerSpec(n))
			p := &nthWrite{n: fail, before: func() error { return errors.New("made to fail by a test") }}
			probe(t, o, p)
			r, err := o.Apply(context.Background(), sweepSpec(n))
			probe(t, o, nil)
			if p.seen < fail {
				t.Logf("%s: %d writes", n.device, p.seen)
				break
			}
			if err == nil && len(r.Warnings) == 0 {
				t.Errorf("write %d failed unseen", fail)
			}
			if err == nil { // the write of a sysctl failed: the device works, but has one more address
				nstest.IP(t, "link del "+n.device)
				awaitChange(t, o, "device deleted")
			}
			apply(t, o, sweepSpec(n))
			if have := ourState(t, n); have != want {
				t.Fatalf("after a failure of write %d:\n%s\nwanted:\n%s", fail, have, want)
			}
		}
		if err := o.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if have := ourState(t, n); have != empty {
			t.Errorf("left: %s", have)
		}
		nstest.IP(t, "link del under0")
	}
}

const (
	killEnv  = "CNIBOX_TEST_OVERLAY_KILL"
	afterEnv = "CNIBOX_TEST_OVERLAY_AFTER"
)

// TestOverlayVictim is the process that TestOverlayKillSweep kills.
func TestOverlayVictim(t *testing.T) {
	at, err := strconv.Atoi(os.Getenv(killEnv))
	if err != nil {
		t.Skip("started by TestOverlayKillSweep only")
	}
	p := &nthWrite{n: at, before: func() error { kill(); return nil }}
	if os.Getenv(afterEnv) != "" {
		p.before, p.after = nil, kill
	}
	o, err := Open(netops.New(netops.Options{Probe: p}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Apply(context.Background(), sweepSpec(net4())); err != nil {
		t.Fatal(err)
	}
}

// TestOverlayKillSweep kills a process before and after each of its writes. The
// next process must make the wanted state.
func TestOverlayKillSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	apply(t, o, sweepSpec(n))
	want := ourState(t, n)
	for at := 1; ; at++ {
		killed := false
		for _, after := range []string{"", "1"} {
			former := openOverlay(t, n, Options{})
			apply(t, former, formerSpec(n))
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestOverlayVictim$", "-test.count=1")
			cmd.Env = append(os.Environ(), killEnv+"="+strconv.Itoa(at), afterEnv+"="+after)
			out, err := cmd.CombinedOutput()
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if killed = status.Signal() == unix.SIGKILL; !killed && err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			next := openOverlay(t, n, Options{})
			apply(t, next, sweepSpec(n))
			if have := ourState(t, n); have != want {
				t.Fatalf("killed at write %d (after it: %q):\n%s\nwanted:\n%s", at, after, have, want)
			}
		}
		if !killed {
			t.Logf("%d writes", at-1)
			return
		}
	}
}
