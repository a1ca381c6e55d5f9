package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	roleshost "github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cluster/agent"
	"github.com/cnibox/cnibox/roles/ipam/clusterrange"
	"github.com/cnibox/cnibox/store/cluster"
)

// TestThousandChanges: after a thousand changes an agent has no more goroutines and open files than
// after the first ones. The agent runs in the test's process, which counts them.
func TestThousandChanges(t *testing.T) {
	const (
		nodes, rounds = 20, 50
		passing       = 5 // goroutines and files that exist for a short time
	)
	w := newWorld(t, 0, vxlan)
	ip(t, "link add under0 type veth peer name under1")
	t.Cleanup(func() { ip(t, "link del under0") })
	for _, link := range []string{"under0", "under1"} {
		ip(t, "link set "+link+" up")
	}
	ip(t, "addr add 172.17.8.101/24 dev under0")
	dir := t.TempDir()
	h, done, err := roleshost.Open(t.Context(), roleshost.Options{RunDir: dir + "/run", StateDir: dir + "/state", Role: "agent", Program: "test"})
	must(t, err)
	defer done()
	h.Role = "agent"
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Role(clusterrange.Demands).Run(ctx, h, []string{"-node-name", "self", "-iface", "under0", "-cluster-dir", w.dir, "-subnet-file", ""})
	}()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
		for _, v := range agent.Role(clusterrange.Demands).Verbs() {
			if v.Name == "agent cleanup" {
				_, err := v.Run(context.Background(), h, map[string]string{"subnet-file": ""}, nil)
				must(t, err)
			}
		}
	})
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	mac := func(round, i int) string { return fmt.Sprintf("02:00:00:%02x:00:%02x", round, i) }
	neighbours := func() string {
		out, _ := exec.Command("ip", "neigh", "show", "dev", "flannel.1").CombinedOutput() // the entry does not exist yet
		return string(out)
	}
	var goroutines, open int
	for round := range rounds {
		for i := range nodes {
			w.publish(cluster.Node{
				Name: fmt.Sprintf("x-%02d", i), PublicIP: netip.AddrFrom4([4]byte{172, 17, 8, byte(150 + i)}), BackendType: "vxlan",
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", 100+i))}, BackendData: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":%q}`, mac(round, i)),
			})
		}
		if round != 0 && round != rounds-1 {
			continue
		}
		w.within(func() bool { return strings.Count(neighbours(), mac(round, 0)[:11]) == nodes }, func() string { return "not programmed: " + neighbours() })
		if round == 0 {
			goroutines, open = runtime.NumGoroutine(), files()
		}
	}
	w.within(func() bool { return runtime.NumGoroutine() <= goroutines+passing && files() <= open+passing }, func() string {
		stacks := make([]byte, 1<<20)
		return fmt.Sprintf("%d goroutines and %d files became %d and %d\n%s", goroutines, open, runtime.NumGoroutine(), files(), stacks[:runtime.Stack(stacks, true)])
	})
}

// TestReadOnlyState: an agent works without a writable state, and so does its successor. They find
// the MAC addresses in the device and in the registry's record.
func TestReadOnlyState(t *testing.T) {
	w := newWorld(t, 2, vxlan)
	n := w.nodes[0]
	must(t, os.MkdirAll(n.StateDir(), 0o700))
	must(t, unix.Mount("tmpfs", n.StateDir(), "tmpfs", unix.MS_RDONLY, "size=64k,mode=700"))
	t.Cleanup(func() { _ = unix.Unmount(n.StateDir(), unix.MNT_DETACH) })
	n.start()
	before := w.record(n.name)
	n.kill()
	n.start()
	if after := w.record(n.name); !after.Same(&before) {
		t.Errorf("%+v became %+v", before, after)
	}
	w.nodes[1].start()
	// The addresses of its pods are not sticky, and keep.db does not have them.
	w.reach(false, n.attach(), w.nodes[1].attach())
	if _, err := os.Stat(filepath.Join(n.StateDir(), "keep.db")); err == nil {
		t.Error("the state directory was written to")
	}
}

// TestReadOnlySysctls: the agent works with a read-only /proc/sys and logs once which settings are
// missing.
func TestReadOnlySysctls(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.exec("sysctl", "-qw", "net.ipv4.ip_forward=0")
	netopstest.ReadOnlySysctls(t)
	n.start()
	n.ip("link set flannel.1 down") // this leads to a reconciliation
	w.within(func() bool { return strings.Contains(n.ip("-o link show flannel.1"), ",UP") }, func() string { return n.log.String() })
	const what = "net/ipv4/ip_forward"
	w.within(func() bool { return strings.Contains(n.log.String(), what) }, func() string { return "nothing is told: " + n.log.String() })
	out, err := n.verb("agent status", nil)
	must(t, err)
	if text := fmt.Sprint(out); !strings.Contains(text, "\nwarning: IPv4: ") || !strings.Contains(text, what) {
		t.Errorf("status has no warning: %s", text)
	}
	n.stop()
	if got := strings.Count(n.log.String(), what); got != 1 {
		t.Errorf("told %d times: %s", got, n.log)
	}
}

// TestSysctlsMountedAgain: with a read-only /proc/sys the agent uses the second mount that
// examples/kubernetes/daemonset.yaml has.
func TestSysctlsMountedAgain(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.exec("sysctl", "-qw", "net.ipv4.ip_forward=0")
	const second = "/host/proc/sys/net"
	must(t, os.MkdirAll(second, 0o755))
	t.Cleanup(func() {
		_ = unix.Unmount(second, unix.MNT_DETACH)
		for dir := second; dir != "/"; dir = filepath.Dir(dir) {
			_ = os.Remove(dir) // the empty ones
		}
	})
	must(t, unix.Mount("/proc/sys/net", second, "", unix.MS_BIND, ""))
	netopstest.ReadOnlySysctls(t)
	n.start()
	if got := n.exec("sysctl", "-n", "net.ipv4.ip_forward", "net.ipv6.conf.flannel/1.addr_gen_mode"); got != "1\n1\n" {
		t.Errorf("the settings are %q", got)
	}
	if log := n.log.String(); strings.Contains(log, "incomplete") {
		t.Errorf("a warning: %s", log)
	}
}
