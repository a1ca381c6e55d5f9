package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	roleshost "github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cluster/agent"
	"github.com/cnibox/cnibox/roles/iface/bridge"
	"github.com/cnibox/cnibox/roles/iface/macvlan"
	"github.com/cnibox/cnibox/roles/ipam/clusterrange"
	"github.com/cnibox/cnibox/roles/ipam/hostlocal"
	"github.com/cnibox/cnibox/roles/meta/overlay"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/command"
)

func table() roles.Table {
	return tabletest.Of(bridge.Role(), clusterrange.Role(), hostlocal.Role(), macvlan.Role(), overlay.Role(), agent.Role(clusterrange.Demands))
}

func TestMain(m *testing.M) { command.Main(m, all.Table()) }

// world is a set of nodes on one network with a directory as the registry.
type world struct {
	t     *testing.T
	dir   string
	nodes []*node
	// registry are the flags of a registry other than the directory.
	registry []string
}

// node is a node of a world: a network namespace with its own state.
type node struct {
	*rolestest.Env
	w    *world
	name string
	ns   *netopstest.NS
	// addr4 and addr6 are the node's addresses on the network.
	addr4, addr6 netip.Addr
	cmd          *exec.Cmd
	log          *logBuffer
	// flags are the flags of every agent of the node.
	flags []string
	pods  int
	// args are the CNI_ARGS of the next pod.
	args string
	// exit is the error of the last verb that had a result too.
	exit error
}

// logBuffer collects a process's log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newWorld makes n nodes, k8s-dev-0 at 172.17.8.101 and so on, as in the article. It does not start
// agents.
func newWorld(t *testing.T, n int, conf string) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "cluster")}
	must(t, os.MkdirAll(w.dir, 0o755))
	w.configure(conf)
	ip(t, "link add fabric type bridge")
	t.Cleanup(func() { ip(t, "link del fabric") })
	ip(t, "link set fabric up")
	for range n {
		w.addNode()
	}
	return w
}

func (w *world) configure(conf string) {
	w.t.Helper()
	path := filepath.Join(w.dir, "config.json")
	must(w.t, os.WriteFile(path+".new", []byte(conf), 0o600))
	must(w.t, os.Rename(path+".new", path))
}

// addNode adds a node.
func (w *world) addNode() *node {
	t := w.t
	t.Helper()
	i := len(w.nodes)
	n := &node{
		Env: rolestest.NewEnv(t, table()), w: w, name: fmt.Sprintf("k8s-dev-%d", i), ns: netopstest.New(t),
		addr4: netip.AddrFrom4([4]byte{172, 17, 8, byte(101 + i)}), addr6: netip.MustParseAddr(fmt.Sprintf("2001:db8:8::%d", 101+i)),
	}
	port := fmt.Sprintf("port%d", i)
	ip(t, "link add "+port+" master fabric type veth peer name eth1 netns "+n.ns.Path())
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", port).Run() })
	ip(t, "link set "+port+" up")
	n.ip("link set lo up")
	n.connect()
	w.nodes = append(w.nodes, n)
	return n
}

// connect sets the addresses of the node's interface.
func (n *node) connect() {
	n.w.t.Helper()
	n.ip("addr replace " + n.addr4.String() + "/24 dev eth1")
	n.ip("link set eth1 up")
	n.ip("addr replace " + n.addr6.String() + "/64 dev eth1 nodad")
}

// ip runs iproute2 on the node.
func (n *node) ip(args string) string {
	n.w.t.Helper()
	return n.exec("ip", strings.Fields(args)...)
}

func (n *node) exec(name string, args ...string) string {
	n.w.t.Helper()
	out, err := n.try(name, args...)
	if err != nil {
		n.w.t.Fatalf("%s: %s %q: %v: %s", n.name, name, args, err, out)
	}
	return out
}

func (n *node) try(name string, args ...string) (string, error) {
	var out []byte
	var err error
	n.ns.Do(n.w.t, func() error {
		out, err = exec.Command(name, args...).CombinedOutput()
		return nil
	})
	return string(out), err
}

func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return string(out)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// overlayFile, subnetFile and socket are the paths of the node's files.
func (n *node) overlayFile() string { return filepath.Join(n.RunDir(), "overlay.json") }
func (n *node) subnetFile() string  { return filepath.Join(n.Dir(), "flannel", "subnet.env") }
func (n *node) socket() string      { return filepath.Join(n.RunDir(), "agent.sock") }

// launch starts the node's agent with the node's flags.
func (n *node) launch(flags ...string) {
	n.w.t.Helper()
	n.run(n.agent(append(n.flags, flags...)...))
}

// run starts a daemon on the node.
func (n *node) run(daemon *exec.Cmd) {
	t := n.w.t
	t.Helper()
	n.log, n.cmd = &logBuffer{}, daemon
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.ns.Do(t, n.cmd.Start)
	cmd, log := n.cmd, n.log
	t.Cleanup(func() {
		if n.cmd == cmd {
			n.stop()
		}
		if t.Failed() {
			t.Logf("daemon of %s:\n%s", n.name, log)
		}
	})
}

// agent returns the command of the node's agent.
func (n *node) agent(flags ...string) *exec.Cmd {
	cmd := n.Cmd(rolestest.Call{Type: "agent"})
	cmd.Args = append(cmd.Args, "-node-name="+n.name, "-iface=eth1", "-subnet-file="+n.subnetFile())
	if len(n.w.registry) == 0 {
		cmd.Args = append(cmd.Args, "-cluster-dir="+n.w.dir)
	}
	cmd.Args = append(cmd.Args, n.w.registry...)
	cmd.Args = append(cmd.Args, flags...)
	cmd.Env = append(cmd.Env, "CNIBOX_LOG=info")
	return cmd
}

// start launches the agent and waits until it is ready.
func (n *node) start(flags ...string) {
	n.w.t.Helper()
	n.runReady(n.agent(append(n.flags, flags...)...))
}

// saved returns the state of the cluster that the node's agent saved.
func (n *node) saved() string {
	n.w.t.Helper()
	var raw json.RawMessage
	must(n.w.t, n.host().Store.KeepView(n.w.t.Context(), func(tx *store.KeepTx) (err error) {
		raw, _, err = tx.Marked("agent", "cluster")
		return err
	}))
	return string(raw)
}

// runReady starts the node's daemon and waits until it reports that it is ready.
func (n *node) runReady(daemon *exec.Cmd) {
	t := n.w.t
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer c.Close()
	daemon.Env = append(daemon.Env, "NOTIFY_SOCKET="+path)
	n.run(daemon)
	must(t, c.SetReadDeadline(await.Deadline()))
	b := make([]byte, 100)
	k, err := c.Read(b)
	if err != nil || string(b[:k]) != "READY=1" {
		t.Fatalf("%s is not ready: %q, %v; %s", n.name, b[:k], err, n.log)
	}
}

// stop ends the agent like a service manager does.
func (n *node) stop() { n.end(syscall.SIGTERM) }

// kill ends the agent at once.
func (n *node) kill() { n.end(syscall.SIGKILL) }

// end sends a signal and waits. If the process does not end, SIGQUIT prints its goroutines.
func (n *node) end(s syscall.Signal) {
	n.w.t.Helper()
	p := n.cmd.Process
	must(n.w.t, p.Signal(s))
	_ = p.Signal(syscall.SIGCONT) // a failed test may have suspended it
	late := time.AfterFunc(await.Patience, func() { _ = p.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	err := n.cmd.Wait()
	if s == syscall.SIGTERM && err != nil {
		n.w.t.Errorf("%s: the agent ends with %v: %s", n.name, err, n.log)
	}
	n.cmd = nil
}

// suspend stops all threads of the agent. It waits, because they still run for a moment after the
// signal.
func (n *node) suspend() {
	n.w.t.Helper()
	must(n.w.t, n.cmd.Process.Signal(syscall.SIGSTOP))
	must(n.w.t, unix.Waitid(unix.P_PID, n.cmd.Process.Pid, nil, unix.WSTOPPED, nil))
}

// resume lets the agent continue.
func (n *node) resume() {
	n.w.t.Helper()
	must(n.w.t, n.cmd.Process.Signal(syscall.SIGCONT))
}

// host returns the node's Host for a command of the command line.
func (n *node) host() *roles.Host {
	n.w.t.Helper()
	h, done, err := roleshost.Open(context.Background(), roleshost.Options{RunDir: n.RunDir(), StateDir: n.StateDir(), Role: "agent", Program: "test"})
	must(n.w.t, err)
	n.w.t.Cleanup(done)
	return h
}

// verb runs a command of the role on the node. The result has a table or a text.
func (n *node) verb(name string, flags map[string]string) (any, error) {
	n.w.t.Helper()
	for _, v := range agent.Role(clusterrange.Demands).Verbs() {
		if v.Name != name {
			continue
		}
		var out any
		var err error
		n.ns.Do(n.w.t, func() error {
			out, err = v.Run(context.Background(), n.host(), flags, nil)
			return nil
		})
		if out != nil {
			n.exit, err = err, nil
		}
		return out, err
	}
	n.w.t.Fatalf("no verb %q", name)
	return nil, nil
}

// checksums is a fault of the checksums of other nodes' packets.
type checksums struct{ Evidence, Fix string }

// answer is the output of `agent status --json`.
type answer struct {
	Ready         bool
	Reason        string
	RegistryError string
	RegistrySince time.Time `json:"registryErrorSince"`
	PodCIDRs      []netip.Prefix
	Port          int
	// TxChecksumOffload is "" if the agent leaves it.
	TxChecksumOffload string
	WrongChecksums    *checksums
	Unheard           []struct{ Peer string }
	Warnings          []string
	IPv4, IPv6        *struct {
		Device, MAC, Error     string
		MTU, LostNotifications int
	}
	Peers store.OverlayPeers
	Nodes []struct {
		Peer, Family, State, Error string
		Route, FDB, Neighbour      bool
		Direct                     bool
		PublicKey, Endpoint        string
		LossPercent                int
		Handshake                  time.Time
		Received, Sent             uint64
	}
}

// status returns the agent's status.
func (n *node) status() (a answer) {
	n.w.t.Helper()
	var out any
	var err error
	n.w.within(func() bool {
		out, err = n.verb("agent status", nil)
		return err == nil || !strings.Contains(err.Error(), "the agent opens its registry")
	}, func() string { return err.Error() })
	must(n.w.t, err)
	raw, err := json.Marshal(out)
	must(n.w.t, err)
	must(n.w.t, json.Unmarshal(raw, &a))
	return a
}

// until requests the status until the condition is true.
func (n *node) until(what string, is func(answer) bool) answer {
	n.w.t.Helper()
	var a answer
	n.w.within(func() bool { a = n.status(); return is(a) }, func() string {
		return fmt.Sprintf("%s: %s does not come about: %+v", n.name, what, a)
	})
	return a
}

// within waits until the condition is true.
func (w *world) within(is func() bool, what func() string) time.Duration {
	w.t.Helper()
	begin := time.Now()
	await.Until(w.t, is, what)
	return time.Since(begin)
}

// record reads a node's file in the registry.
func (w *world) record(name string) cluster.Node {
	w.t.Helper()
	raw, err := os.ReadFile(w.path(name))
	must(w.t, err)
	var n cluster.Node
	must(w.t, json.Unmarshal(raw, &n))
	return n
}

// sameRecord reports whether two records are equal except for their authors.
func sameRecord(a, b cluster.Node) bool {
	a.Author = b.Author
	return a.Same(&b)
}

func (w *world) path(name string) string { return filepath.Join(w.dir, "nodes", name+".json") }

// put writes a node's file atomically.
func (w *world) put(name string, content []byte) {
	w.t.Helper()
	must(w.t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	temp := filepath.Join(w.dir, "nodes", "."+name)
	must(w.t, os.WriteFile(temp, content, 0o600))
	must(w.t, os.Rename(temp, w.path(name)))
}

func (w *world) publish(n cluster.Node) {
	w.t.Helper()
	raw, err := json.Marshal(n)
	must(w.t, err)
	w.put(n.Name, raw)
}

// startAll starts every agent and attaches a pod on every node.
func (w *world) startAll(flags ...string) (pods []*pod) {
	w.t.Helper()
	for _, n := range w.nodes {
		n.start(flags...)
		pods = append(pods, n.attach())
	}
	return pods
}
