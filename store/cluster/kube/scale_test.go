package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// listed is a server with count Nodes of a realistic size, of which nine tenths are the kubelet's data
// about images and itself.
func listed(tb testing.TB, count int) *httptest.Server {
	tb.Helper()
	var images strings.Builder
	for i := range 20 {
		fmt.Fprintf(&images, `{"names":["registry.example.com/library/image-%d@sha256:%064d","registry.example.com/library/image-%d:v1"],"sizeBytes":%d},`, i, i, i, 1000000+i)
	}
	node := func(i int) string {
		return fmt.Sprintf(`{"metadata":{"name":"node-%d","uid":"%032d","resourceVersion":"%d","creationTimestamp":"2026-01-01T00:00:00Z",`+
			`"labels":{"kubernetes.io/arch":"amd64","kubernetes.io/hostname":"node-%d","kubernetes.io/os":"linux"},`+
			`"annotations":{"flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:%02x:%02x\"}","flannel.alpha.coreos.com/backend-type":"vxlan",`+
			`"flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":"172.16.%d.%d","volumes.kubernetes.io/controller-managed-attach-detach":"true"}},`+
			`"spec":{"podCIDR":"10.%d.%d.0/24","podCIDRs":["10.%d.%d.0/24"]},"status":{"images":[%s]}}`,
			i, i, 1000+i, i, i>>8, i&255, i>>8, i&255, 128+i>>8, i&255, 128+i>>8, i&255, strings.TrimSuffix(images.String(), ","))
	}
	const size = 1000
	var pages []string
	for first := 0; first < count; first += size {
		var items []string
		for i := first; i < min(first+size, count); i++ {
			items = append(items, node(i))
		}
		next := ""
		if first+size < count {
			next = strconv.Itoa(first/size + 1)
		}
		pages = append(pages, fmt.Sprintf(`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"99999","continue":%q},"items":[%s]}`, next, strings.Join(items, ",")))
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			fmt.Fprint(w, `{"type":"ERROR","object":{"code":500}}`)
			return
		}
		n, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		_, _ = w.Write([]byte(pages[n]))
	}))
	tb.Cleanup(srv.Close)
	return srv
}

func followed(tb testing.TB, srv *httptest.Server) *follower {
	tb.Helper()
	c, err := rest.Open(rest.Server(srv.URL))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	config, _, err := cluster.ParseConfig([]byte(`{"Network":"10.128.0.0/9"}`))
	if err != nil {
		tb.Fatal(err)
	}
	r, err := Open(Options{Client: c, Node: "node-1", Config: config})
	if err != nil {
		tb.Fatal(err)
	}
	return &follower{registry: r, View: cluster.View{Relay: cluster.NewRelay()}}
}

// list reads all nodes into f.
func list(ctx context.Context, f *follower) error {
	names := map[string]bool{}
	_, err := rest.List(ctx, f.registry.client, nodes, func(o *rest.Node) { names[o.Metadata.Name] = true; f.Put(o, true) })
	f.Complete(names)
	return err
}

// Of 46 MB of Nodes only the needed fields stay in memory.
func TestKeepsLittle(t *testing.T) {
	const count = 10000
	f := followed(t, listed(t, count))
	before := heap()
	if err := list(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if kept := heap() - before; kept > count*1200 {
		t.Errorf("%d nodes keep %d bytes each", count, kept/count)
	} else {
		t.Logf("%d nodes keep %d bytes each", count, kept/count)
	}
	if s := f.Table.Snapshot(); len(s.Nodes) != count || len(s.Faults) != 0 {
		t.Errorf("%d nodes, faults %v", len(s.Nodes), s.Faults)
	}
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func BenchmarkList10000(b *testing.B) {
	srv := listed(b, 10000)
	f := followed(b, srv)
	debug.FreeOSMemory()
	before := resident(b)
	peak := before
	b.ResetTimer()
	for b.Loop() {
		f.Table = cluster.Table{}
		if err := list(context.Background(), f); err != nil {
			b.Fatal(err)
		}
		peak = max(peak, resident(b))
	}
	b.ReportMetric(float64(peak-before)/1e6, "MB-RSS")
}

// resident is the process's resident memory.
func resident(tb testing.TB) int {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		tb.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		tb.Fatal(err)
	}
	return pages * os.Getpagesize()
}
