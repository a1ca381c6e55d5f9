//go:build kube

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/clustertest"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// populate makes Nodes of 4.6 KB with flannel's annotations, several at a time.
func (l *lab) populate(tb testing.TB, count int) {
	tb.Helper()
	var images []map[string]any
	for i := range 20 {
		images = append(images, map[string]any{
			"names":     []string{fmt.Sprintf("registry.example.com/library/image-%d@sha256:%064d", i, i), fmt.Sprintf("registry.example.com/library/image-%d:v1", i)},
			"sizeBytes": 1000000 + i,
		})
	}
	numbers := make(chan int)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range numbers {
				cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0}), 24)
				_, err := l.s.Do(http.MethodPost, "/api/v1/nodes", "", map[string]any{
					"metadata": map[string]any{"name": fmt.Sprintf("node-%d", i), "annotations": map[string]string{
						DefaultPrefix + "/kube-subnet-manager": "true", DefaultPrefix + "/backend-type": "vxlan",
						DefaultPrefix + "/public-ip":    netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}).String(),
						DefaultPrefix + "/backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, i>>8, i&255),
					}},
					"spec":   map[string]any{"podCIDR": cidr, "podCIDRs": []any{cidr}},
					"status": map[string]any{"images": images},
				})
				if err != nil {
					tb.Error(err)
				}
			}
		})
	}
	for i := range count {
		numbers <- i
	}
	close(numbers)
	all.Wait()
}

// BenchmarkNodes10000 measures the time until a node has the records of ten thousand others from a
// real server, of one change, and of a thousand changes at once.
func BenchmarkNodes10000(b *testing.B) {
	const count, burst = 10000, 1000
	config, _, err := cluster.ParseConfig([]byte(`{"Network":"10.128.0.0/9"}`))
	if err != nil {
		b.Fatal(err)
	}
	l := &lab{s: server, wire: server.NewWire(b), config: config}
	l.s.Must(b, http.MethodDelete, "/api/v1/nodes", "", nil)
	l.allow(b)
	l.populate(b, count)
	defer l.s.Must(b, http.MethodDelete, "/api/v1/nodes", "", nil)
	r := l.open(b, "node-1")
	var start, one, many time.Duration
	round := 0
	for b.Loop() {
		round++
		ctx, stop := context.WithCancel(b.Context())
		updates := make(chan cluster.Update)
		done := make(chan struct{})
		begin := time.Now()
		go func() {
			defer close(done)
			_ = clustertest.Watch(ctx, r.Watch, func(u cluster.Update) {
				select {
				case updates <- u:
				case <-ctx.Done():
				}
			})
		}()
		hear := func(ok func(*cluster.Snapshot) bool) {
			for u := range updates {
				if u.Snapshot != nil && ok(u.Snapshot) {
					return
				}
			}
		}
		hear(func(s *cluster.Snapshot) bool { return len(s.Nodes) == count })
		start += time.Since(begin)
		data := fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:01:00:%02x"}`, round)
		changed := func(s *cluster.Snapshot) (n int) {
			for i := range s.Nodes {
				if string(s.Nodes[i].BackendData) == data {
					n++
				}
			}
			return n
		}
		begin = time.Now()
		l.annotate(b, "node-7", map[string]any{DefaultPrefix + "/backend-data": data})
		hear(func(s *cluster.Snapshot) bool { return changed(s) == 1 })
		one += time.Since(begin)
		var all sync.WaitGroup
		for part := range 8 {
			all.Go(func() {
				for i := part; i < burst; i += 8 {
					patch := rest.Annotations("", "", map[string]*string{DefaultPrefix + "/backend-data": &data})
					if _, err := l.s.Do(http.MethodPatch, fmt.Sprintf("/api/v1/nodes/node-%d", i), rest.MergePatch, patch); err != nil {
						b.Error(err)
					}
				}
			})
		}
		written := make(chan time.Time, 1)
		go func() { all.Wait(); written <- time.Now() }()
		hear(func(s *cluster.Snapshot) bool { return changed(s) == burst })
		many += time.Since(<-written)
		stop()
		<-done
	}
	for name, d := range map[string]time.Duration{"ms/start": start, "ms/change": one, "ms-after-last-of-1000": many} {
		b.ReportMetric(float64(d.Milliseconds())/float64(round), name)
	}
}
