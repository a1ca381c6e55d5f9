package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// TestMemory: little of what the server sends of a pod stays in memory. Ten pods each are of one workload.
func TestMemory(t *testing.T) {
	const pods, most = 20_000, 600
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		send := func(kind string, o object) { _ = json.NewEncoder(out).Encode(object{"type": kind, "object": o}) }
		for i := range pods {
			if r.URL.Path != simPods {
				break
			}
			send("ADDED", object{
				"metadata": object{
					"namespace": fmt.Sprint("team-", i/1000), "name": fmt.Sprintf("service-%d-6d4cf56db6-%05d", i/10, i), "uid": fmt.Sprintf("9dd3f0a4-8a1a-4a5e-9a0b-%012x", i),
					"labels": object{"app": fmt.Sprint("service-", i/10), "pod-template-hash": "6d4cf56db6", "tier": "backend"},
				},
				"spec":   object{"nodeName": fmt.Sprintf("node-%d.example.com", i%100), "containers": []object{{"ports": []object{{"name": "web", "containerPort": 80, "protocol": "TCP"}}}}},
				"status": object{"phase": "Running", "podIPs": []object{{"ip": fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}}},
			})
		}
		send("BOOKMARK", object{"metadata": object{"resourceVersion": "1", "annotations": object{"k8s.io/initial-events-end": "true"}}})
		out.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	client, err := rest.Open(rest.Server(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	before := liveHeap()
	ctx, stop := context.WithCancel(t.Context())
	table, source, known := netpolicy.NewTable(), NewKube(client, "node-1.example.com", slog.New(slog.DiscardHandler)), make(chan struct{})
	table.OnNode = source.OnNode
	var changing sync.Mutex
	var running sync.WaitGroup
	running.Go(func() {
		source.Run(ctx, func(change func(*netpolicy.Table)) {
			changing.Lock()
			defer changing.Unlock()
			if change == nil {
				close(known)
				return
			}
			change(table)
		})
	})
	<-known
	each := (liveHeap() - before) / pods
	stop()
	running.Wait()
	if n := len(table.Pods()); n != pods || each > most {
		t.Errorf("%d pods, each needs %d bytes: want %d of at most %d", n, each, pods, most)
	}
}

// liveHeap returns the bytes of the heap that are in use.
func liveHeap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
