package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
)

// The test binary plays other processes: "ask <dir> <boot> <url>".
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "ask" {
		if err := play(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	netopstest.Main(m)
}

func play(dir, boot, url string) error {
	h, done, err := open(dir, boot)
	if err != nil {
		return err
	}
	defer done()
	s, err := Current(context.Background(), h, Options{Provider: "azure", URL: url})
	if err == nil {
		fmt.Println("revision", s.Revision)
	}
	return err
}

// process starts another process that calls Current.
func process(ctx context.Context, dir, boot, url string) *exec.Cmd {
	return exec.CommandContext(ctx, os.Args[0], "ask", dir, boot, url)
}

func open(dir, boot string) (*roles.Host, func(), error) {
	return node.Open(context.Background(), node.Options{
		RunDir: filepath.Join(dir, boot), StateDir: filepath.Join(dir, "state"), Role: "cloud-ipam", Log: slog.New(slog.DiscardHandler),
	})
}

// world is a cloud, and a node of it with a simulated clock.
type world struct {
	*roles.Host
	dir string
	url string
	o   Options

	mu    sync.Mutex
	clock time.Time
	serve http.HandlerFunc
	asked atomic.Int32
}

func newWorld(t *testing.T) *world {
	t.Helper()
	clustertest.Loopback(t)
	w := &world{dir: t.TempDir(), clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.asked.Add(1)
		w.mu.Lock()
		serve := w.serve
		w.mu.Unlock()
		serve(rw, r)
	}))
	t.Cleanup(srv.Close)
	w.url = srv.URL
	w.o = Options{Provider: "azure", URL: srv.URL}
	w.answers("10.240.0.36", "10.240.0.37")
	w.boot(t, "one")
	return w
}

// boot starts the node with a new run directory.
func (w *world) boot(t *testing.T, boot string) {
	t.Helper()
	h, done, err := open(w.dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	h.Now = func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.clock
	}
	w.Host = h
}

func (w *world) sleep(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = w.clock.Add(d)
}

func (w *world) handle(h http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serve = h
}

// hold delays the answer to the next request: arrived is closed when the request has
// come, and the request is answered when answer is closed.
func (w *world) hold(document string) (arrived, answer chan struct{}) {
	arrived, answer = make(chan struct{}), make(chan struct{})
	w.handle(func(rw http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-answer
		fmt.Fprint(rw, document)
	})
	return arrived, answer
}

// document returns a reply with these addresses for pods.
func document(addresses ...string) string {
	var b strings.Builder
	b.WriteString(`<Interfaces><Interface MacAddress="000D3A51C490" IsPrimary="true"><IPSubnet Prefix="10.240.0.0/16"><IPAddress Address="10.240.0.35" IsPrimary="true"/>`)
	for _, a := range addresses {
		fmt.Fprintf(&b, `<IPAddress Address="%s" IsPrimary="false"/>`, a)
	}
	b.WriteString(`</IPSubnet></Interface></Interfaces>`)
	return b.String()
}

func (w *world) answers(addresses ...string) {
	w.handle(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, document(addresses...)) })
}

func (w *world) fails(status int, header ...string) {
	w.handle(func(rw http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			rw.Header().Set(header[i], header[i+1])
		}
		rw.WriteHeader(status)
	})
}

// want calls Current and compares the addresses and the total number of requests.
func (w *world) want(t *testing.T, asked int32, addresses ...string) *store.CloudSource {
	t.Helper()
	s, err := Current(t.Context(), w.Host, w.o)
	if err != nil {
		t.Fatal(err)
	}
	w.compare(t, s, addresses...)
	if n := w.asked.Load(); n != asked {
		t.Fatalf("%d requests, want %d", n, asked)
	}
	return s
}

func (w *world) compare(t *testing.T, s *store.CloudSource, addresses ...string) {
	t.Helper()
	var have []string
	for _, n := range s.NICs {
		for _, subnet := range n.Subnets {
			for _, a := range subnet.Addresses {
				have = append(have, a.String())
			}
		}
	}
	if strings.Join(have, " ") != strings.Join(addresses, " ") {
		t.Fatalf("addresses %v, want %v", have, addresses)
	}
}

// wantError calls Current and requires an error that is each of the given errors.
func (w *world) wantError(t *testing.T, asked int32, is ...error) error {
	t.Helper()
	s, err := Current(t.Context(), w.Host, w.o)
	for _, target := range is {
		if !errors.Is(err, target) {
			t.Fatalf("%v, %v: not %v", s, err, target)
		}
	}
	if n := w.asked.Load(); n != asked {
		t.Fatalf("%d requests, want %d", n, asked)
	}
	return err
}

// lease leases an address of the source to a container.
func (w *world) lease(t *testing.T, addr string) store.Key {
	t.Helper()
	k := store.Key{Network: "net", ContainerID: "c-" + addr, IfName: "eth0"}
	err := w.Store.Update(t.Context(), func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{Network: "net"})
		if err != nil {
			return err
		}
		return p.Reserve(store.Lease{Address: netip.MustParseAddr(addr), Owner: k, Source: w.o.Source(), NIC: "00:0d:3a:51:c4:90", Time: w.Now()})
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}
