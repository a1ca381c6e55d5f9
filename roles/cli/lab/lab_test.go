package lab_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/cli/lab"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// built is the path of the binary that the lab runs. Its file system ends with the
// tests' namespaces.
var built = sync.OnceValues(func() (string, error) {
	const path = "/run/cnibox-under-test"
	out, err := exec.Command("go", "build", "-tags", "urfave_cli_no_docs", "-o", path, "github.com/cnibox/cnibox").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

func build(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func newLab(t *testing.T, binary string) *lab.Lab {
	t.Helper()
	n := netops.New(netops.Options{})
	t.Cleanup(func() { _ = n.Close() })
	return &lab.Lab{Dir: filepath.Join(t.TempDir(), "lab"), Self: dispatch.Self{Executable: binary}, Net: n}
}

// leftovers lists everything that a lab could leave on the machine.
func leftovers(t *testing.T, l *lab.Lab) string {
	t.Helper()
	var all []string
	for _, dir := range []string{netops.NamespaceDir, l.Dir} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.HasPrefix(string(b), "cnibox\x00") && bytes.Contains(b, []byte(l.Dir)) {
			all = append(all, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return strings.Join(all, "\n")
}

func nothingLeft(t *testing.T, l *lab.Lab) {
	t.Helper()
	// A process that is killed while it syncs a file ends only after that.
	await.Until(t, func() bool { return leftovers(t, l) == "" }, func() string { return "left:\n" + leftovers(t, l) })
}

func quiet(string) {}

// Every pod reaches every other pod, and the nodes have the addresses of flannel's
// documentation. Afterwards nothing is left, and the machine's network is unchanged.
func TestUpAndDown(t *testing.T) {
	l := newLab(t, build(t))
	before := netopstest.Snapshot(t)
	if _, err := l.Report(t.Context(), nil); !errors.Is(err, lab.ErrDown) {
		t.Fatalf("before: %v", err)
	}
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 3, Pods: 2, Registry: "dir"}, quiet); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 1, Registry: "dir"}, quiet); !errors.Is(err, lab.ErrUp) {
		t.Errorf("up twice: %v", err)
	}
	finished := 0
	r, err := l.Report(t.Context(), func(done, all int) {
		if finished++; done != finished || all != 6*5 {
			t.Errorf("%d of %d pings, want %d", done, all, finished)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"node1 172.17.8.101/24 10.244.0.0/24 10.244.0.3, 1 agent, 2/2",
		"node2 172.17.8.102/24 10.244.1.0/24 10.244.1.3, 1 agent, 2/2",
		"node3 172.17.8.103/24 10.244.2.0/24 10.244.2.3, 1 agent, 2/2",
	} {
		n := r.Nodes[i]
		got := fmt.Sprintf("%s %s %s %s, %d agent, %d/%d", n.Name, n.Address, n.PodNetwork, n.Pods[1].Address, len(n.Agents), n.Peers.Programmed, n.Peers.Wanted)
		if got != want || !n.Ready {
			t.Errorf("%s, ready %t, not %s", got, n.Ready, want)
		}
	}
	if len(r.Pings) != 6*5 {
		t.Errorf("%d pings", len(r.Pings))
	}
	for _, p := range r.Pings {
		if p.Error != "" {
			t.Errorf("%s to %s: %s", p.From, p.To, p.Error)
		}
	}
	out, err := exec.CommandContext(t.Context(), build(t), "lab", "run", "--dir", l.Dir, "node1", "topo", "--format", "json").Output()
	var drawn struct {
		Node        string
		Attachments []struct {
			Container string
			Problems  []string
		}
	}
	if err != nil || json.Unmarshal(out, &drawn) != nil || drawn.Node != "node1" || len(drawn.Attachments) != 2 || len(drawn.Attachments[0].Problems) > 0 {
		t.Errorf("topo on node1: %v, %s", err, out)
	}
	if err := l.Become("node9", nil, nil); !errors.Is(err, lab.ErrInvalid) {
		t.Errorf("no such node: %v", err)
	}
	if err := unix.Kill(r.Nodes[1].Agents[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.Until(t, func() bool {
		r, err := l.Report(t.Context(), nil)
		return err == nil && r.Nodes[0].Ready && !r.Nodes[1].Ready && len(r.Nodes[1].Agents) == 0 && strings.HasPrefix(r.Nodes[1].Reason, "its agent does not run")
	}, func() string { return "a node without an agent is not reported" })
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l)
	if after := netopstest.Snapshot(t); after != before {
		t.Errorf("the machine's network was\n%s, is\n%s", before, after)
	}
	if err := l.Down(t.Context()); !errors.Is(err, lab.ErrDown) {
		t.Errorf("down twice: %v", err)
	}
}

// A lab with etcd, which listens outside the nodes.
func TestEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	l := newLab(t, build(t))
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 2, Pods: 1, Registry: "etcd", Endpoint: server.URL}, quiet); err != nil {
		t.Fatal(err)
	}
	r, err := l.Report(t.Context(), func(int, int) {})
	if err != nil || len(r.Pings) != 2 || r.Pings[0].Error != "" || r.Pings[1].Error != "" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l)
	// An etcd that ended is reported, and the lab can still be removed.
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 1, Registry: "etcd", Endpoint: server.URL}, quiet); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := l.Down(t.Context()); err == nil {
		t.Error("down without etcd returns no error")
	}
	nothingLeft(t, l)
}

// A Ctrl-C at each step leaves nothing.
func TestInterrupted(t *testing.T) {
	binary := build(t)
	for step := 1; ; step++ {
		l := newLab(t, binary)
		ctx, cancel := context.WithCancel(t.Context())
		steps := 0
		_, err := l.Up(ctx, lab.Plan{Nodes: 2, Pods: 1, Registry: "dir"}, func(string) {
			if steps++; steps == step {
				cancel()
			}
		})
		cancel()
		if steps < step {
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Down(t.Context()); err != nil {
				t.Fatal(err)
			}
			if step < 5 {
				t.Fatalf("%d steps", step)
			}
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("step %d: %v", step, err)
		}
		nothingLeft(t, l)
	}
}

// `lab down` removes everything that a killed `lab up` left.
func TestKilled(t *testing.T) {
	l := newLab(t, build(t))
	binary := l.Self.(dispatch.Self).Executable
	for step := 1; step <= 5; step++ {
		up := exec.Command(binary, "lab", "up", "--dir", l.Dir, "--nodes", "2", "--pods", "1")
		said, err := up.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(said)
		for range step {
			lines.Scan()
		}
		_ = up.Process.Kill()
		_ = up.Wait()
		if out, err := exec.Command(binary, "lab", "down", "--dir", l.Dir).CombinedOutput(); err != nil {
			t.Fatalf("step %d: %v: %s", step, err, out)
		}
		nothingLeft(t, l)
	}
}

// If an agent ends, the error has its reason.
func TestAgentEnds(t *testing.T) {
	l := newLab(t, build(t))
	l.Self = failing{l.Self}
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 1, Registry: "dir"}, quiet); err == nil || !strings.Contains(err.Error(), "-nonsense") {
		t.Errorf("%v", err)
	}
	nothingLeft(t, l)
}

// failing starts agents with an unknown flag.
type failing struct{ lab.Self }

func (f failing) Start(ns *netops.Namespace, env, args []string, log *os.File) (int, error) {
	return f.Self.Start(ns, env, append(args, "-nonsense"), log)
}

func TestRefused(t *testing.T) {
	l := newLab(t, "/nonexistent")
	for want, p := range map[string]lab.Plan{
		"--nodes 0": {Registry: "dir"}, "--nodes 101": {Nodes: 101, Registry: "dir"}, "--pods 51": {Nodes: 1, Pods: 51, Registry: "dir"},
		`--registry "x"`: {Nodes: 1, Registry: "x"}, "--etcd-endpoint:": {Nodes: 1, Registry: "dir", Endpoint: "http://127.0.0.1:2379"},
		"--etcd-endpoint \"": {Nodes: 1, Registry: "etcd", Endpoint: "https://127.0.0.1:2379"},
	} {
		if _, err := l.Up(t.Context(), p, quiet); !errors.Is(err, lab.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	// A directory with other content is not changed.
	file := filepath.Join(l.Dir, "mine")
	if err := errors.Join(os.MkdirAll(l.Dir, 0o755), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 1, Registry: "dir"}, quiet); !errors.Is(err, lab.ErrInvalid) {
		t.Errorf("directory in use: %v", err)
	}
	// An existing namespace with a name of the lab is not changed either.
	other, err := l.Net.MakeNamespace("lab-node1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(other.Close(), l.Net.RemoveNamespace("lab-node1")) }()
	l.Dir = filepath.Join(t.TempDir(), "other")
	if _, err := l.Up(t.Context(), lab.Plan{Nodes: 1, Registry: "dir"}, quiet); !errors.Is(err, lab.ErrUp) {
		t.Errorf("name in use: %v", err)
	}
	if _, err := os.Stat(other.Path()); err != nil {
		t.Errorf("the other's namespace: %v", err)
	}
}

// A forged record can name only namespaces of a lab.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"switch":"lab-switch","nodes":[{"name":"node1","netns":"lab-node1","address":"172.17.8.101/24","podNetwork":"10.244.0.0/24","pods":[]}]}`))
	f.Add([]byte(`{"switch":"../../etc/passwd","nodes":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := &lab.Lab{Dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(l.Dir, "lab.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := l.Load()
		if err != nil {
			return
		}
		out, err := json.Marshal(s)
		if err != nil || !strings.HasPrefix(s.Switch, "lab-") || strings.Contains(s.Switch, "/") {
			t.Fatalf("%s, %v", out, err)
		}
	})
}
