package clusterrange

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cluster/ranges"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/etcd"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/await"
)

// TestMain also runs the test binary as a node's keeper, and as a plugin on a node whose agent has leased blocks.
func TestMain(m *testing.M) {
	if os.Getenv(keeperEnv) != "" {
		playKeeper()
	}
	if verb := os.Getenv("CNI_COMMAND"); verb == "ADD" || verb == "STATUS" {
		lend()
	}
	rolestest.Main(m, tabletest.Of(Role()))
}

// lend stores blocks of the suite's ranges in the state of the plugin's node.
func lend() {
	h, done, err := node.Open(context.Background(), node.Options{
		RunDir: os.Getenv("CNIBOX_RUN_DIR"), StateDir: os.Getenv("CNIBOX_STATE_DIR"), CacheDirs: []string{os.Getenv("CNIBOX_TEST_CACHE_DIRS")}, Role: "test",
	})
	if err != nil {
		panic(err)
	}
	defer done()
	_ = h.Store.Update(context.Background(), func(tx *store.Tx) error {
		b := store.RangeBlock{
			First: netip.MustParseAddr("10.1.2.0"), Last: netip.MustParseAddr("10.1.2.255"),
			Until: time.Now().Add(time.Hour), UntilBoot: store.SinceBoot() + time.Hour,
		}
		v6 := b
		v6.First, v6.Last = netip.MustParseAddr("2001:db8::"), netip.MustParseAddr("2001:db8::ff")
		return tx.PutRangeBlocks([]store.RangeBlock{b, v6})
	}) // the suite makes the state unusable on purpose
}

// hostAt returns the Host of a node with directories of its own.
func hostAt(tb testing.TB, root string) *roles.Host {
	tb.Helper()
	for _, d := range []string{"run", "state"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	return newHost(root, io.Discard)
}

func newHost(root string, log io.Writer) *roles.Host {
	return &roles.Host{
		Role: "range", Log: slog.New(slog.NewTextHandler(log, nil)), Now: func() time.Time { return time.Now().Add(clockError(root)) }, SinceBoot: store.SinceBoot,
		Store: store.New(store.Options{
			RunDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state"), BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute, Role: "range",
		}),
	}
}

// clockFile is in a node's directory. It has the difference of the node's clock to this machine's.
const clockFile = "clock"

func clockError(root string) time.Duration {
	text, _ := os.ReadFile(filepath.Join(root, clockFile))
	d, _ := time.ParseDuration(string(text))
	return d
}

// Variables of a keeper's process.
const (
	keeperEnv   = "CNIBOX_TEST_KEEPER" // the node's directory
	registryEnv = "CNIBOX_TEST_REGISTRY"
	nameEnv     = "CNIBOX_TEST_NODE"
)

// openRegistry opens a directory, etcd at a URL, or Kubernetes with a kubeconfig file.
func openRegistry(where, name string) (cluster.Ranges, error) {
	if strings.HasSuffix(where, "kubeconfig") {
		c, err := rest.Open(rest.Kubeconfig(where))
		if err != nil {
			return nil, err
		}
		return kube.Open(kube.Options{Client: c, Node: name, Config: &cluster.Config{}})
	}
	if strings.HasPrefix(where, "http") {
		return etcd.Open(etcd.Options{Endpoints: []string{where}, Node: name})
	}
	return dir.Open(dir.Options{Dir: where, Name: name})
}

// playKeeper runs a node's keeper until the process is killed. The node's directory identifies the machine.
func playKeeper() {
	root, name := os.Getenv(keeperEnv), os.Getenv(nameEnv)
	r, err := openRegistry(os.Getenv(registryEnv), name)
	if err == nil {
		claims, _ := r.(cluster.IPAMClaims)
		deletions, _ := r.(cluster.PageDeletions)
		h := newHost(root, os.Stderr)
		s, _, err := service.Start(context.Background(), h.Store.AgentSocket(), h.Log)
		if err != nil {
			panic(err)
		}
		ranges.NewKeeper(ranges.Options{
			Host: h, Server: s, Registry: r, Claims: claims, Deletions: deletions, Node: name, Machine: filepath.Base(root), Idle: 50 * time.Millisecond, Grace: 100 * time.Millisecond,
		}).Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// clusterDir makes a directory registry.
func clusterDir(tb testing.TB) string {
	tb.Helper()
	root := filepath.Join(tb.TempDir(), "cluster")
	err := os.Mkdir(root, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "config.json"), []byte("{}"), 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return root
}

// keep runs a keeper in this process until the test ends.
func keep(tb testing.TB, h *roles.Host, registry, name string) (stop func()) {
	tb.Helper()
	r, err := openRegistry(registry, name)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, closeSocket, err := service.Start(ctx, h.Store.AgentSocket(), h.Log)
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer closeSocket()
		claims, _ := r.(cluster.IPAMClaims)
		ranges.NewKeeper(ranges.Options{Host: h, Server: s, Registry: r, Claims: claims, Node: name, Machine: name}).Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	tb.Cleanup(stop)
	listens(tb, h)
	return stop
}

// listens waits until a node's keeper listens.
func listens(tb testing.TB, h *roles.Host) {
	tb.Helper()
	await.Until(tb, func() bool {
		return service.Ask(context.Background(), h.Store.AgentSocket(), service.RangeNotify, nil, nil) == nil
	}, func() string { return "the keeper does not listen" })
}

// handlerFor makes a handler of a network from the members of "ipam". Every container is alive.
func handlerFor(tb testing.TB, network, ipam string) *handler {
	tb.Helper()
	a, err := newHandler(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": %q, "type": "macvlan", "ipam": {"type": "range", %s}}`, network, ipam))
	if err != nil {
		tb.Fatal(err)
	}
	a.Life = leasing.NodeLiveness()
	a.Life.Reap = func(context.Context, *roles.Host, string) (int, error) { return 0, nil }
	a.Life.AnyDead = func(context.Context, *roles.Host, string) (bool, error) { return false, nil }
	return a
}

func request(network, id string) *roles.Request {
	return &roles.Request{ContainerID: id, IfName: "net1", Network: network, Netns: "/no/such/netns", CNIVersion: "1.1.0"}
}

// addressOf returns the address of a result with one.
func addressOf(tb testing.TB, r *roles.Result) netip.Addr {
	tb.Helper()
	a, ok := netip.AddrFromSlice(r.IPs[0].Address.IP)
	if !ok || len(r.IPs) != 1 {
		tb.Fatalf("%+v", r)
	}
	return a.Unmap()
}
