package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/test/kubetest"
)

// followers is the number of agents that follow the registry at once. They are registries of the agent in
// this process, without a kernel.
const followers = 50

// fleet has the measurements of many agents on one kube-apiserver.
type fleet struct {
	// requests is the number of requests of one agent from its start until it is ready.
	requests int
	// first is what one agent receives until it has all nodes, and status what it receives for one
	// change of a Node's status, in bytes.
	first, status int64
	// alone and serving are the resident memory of the server in KiB, with no agent and with all.
	alone, serving int
	// all is the time until the last agent has all nodes.
	all seconds
	// joins are the times from the request that creates a Node until an agent has it, in order.
	joins []seconds
}

// follower is one agent's registry.
type follower struct {
	mu     sync.Mutex
	nodes  map[string]bool
	change chan struct{}
}

// measureFleet measures followers on a server that has the nodes.
func (k *kubeServer) measureFleet(ctx context.Context, config *cluster.Config, kubeconfig func(address string) (string, error), nodes int) (f fleet, err error) {
	r, err := startRelay(ctx, k.Address)
	if err != nil {
		return f, err
	}
	defer r.Close()
	f.alone = memory(k.ProcessID(), "VmRSS")
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var all []*follower
	begin := time.Now()
	for i := range followers {
		address := k.Address
		if i == 0 {
			address = r.Addr().String()
		}
		path, err := kubeconfig(address)
		if err != nil {
			return f, err
		}
		client, err := rest.Open(rest.Kubeconfig(path))
		if err != nil {
			return f, err
		}
		registry, err := kube.Open(kube.Options{Client: client, Node: "self", Config: config})
		if err != nil {
			return f, err
		}
		w := &follower{change: make(chan struct{}, 1)}
		all = append(all, w)
		relay := cluster.NewRelay()
		running.Go(func() { _ = registry.Watch(ctx, relay) })
		running.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-relay.Changes():
					w.update(relay.Take())
				}
			}
		})
		if i == 0 {
			if err := w.until(ctx, func() bool { return len(w.nodes) >= nodes }); err != nil {
				return f, err
			}
			f.first, begin = r.received.Load(), time.Now()
		}
	}
	for _, w := range all {
		if err := w.until(ctx, func() bool { return len(w.nodes) >= nodes }); err != nil {
			return f, err
		}
	}
	f.all, f.serving = time.Since(begin), memory(k.ProcessID(), "VmRSS")
	const joining = 20
	for i := range joining {
		took, err := k.join(ctx, all, nodes+i)
		if err != nil {
			return f, err
		}
		f.joins = append(f.joins, took...)
	}
	slices.Sort(f.joins)
	before := r.received.Load()
	if err := k.heartbeats(ctx, joining); err != nil {
		return f, err
	}
	// The server sends the new Node after the changes of the status.
	if _, err := k.join(ctx, all[:1], nodes+joining); err != nil {
		return f, err
	}
	f.status = (r.received.Load() - before) / (joining + 1)
	return f, nil
}

// join creates a Node and returns the time until each agent has it.
func (k *kubeServer) join(ctx context.Context, all []*follower, i int) ([]seconds, error) {
	took, failed := make([]seconds, len(all)), make([]error, len(all))
	var wait sync.WaitGroup
	begin := time.Now()
	for at, w := range all {
		wait.Go(func() {
			failed[at] = w.until(ctx, func() bool { return w.nodes[peer(i).Name] })
			took[at] = time.Since(begin)
		})
	}
	err := k.create(ctx, k.node(i))
	wait.Wait()
	for _, f := range failed {
		if err == nil {
			err = f
		}
	}
	return took, err
}

// heartbeats changes the status of n nodes, as kubelet does.
func (k *kubeServer) heartbeats(ctx context.Context, n int) error {
	return k.each(n, func(i int) error {
		return k.request(ctx, http.MethodPatch, "/api/v1/nodes/"+peer(i).Name+"/status", "application/strategic-merge-patch+json",
			`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"`+time.Now().UTC().Format(time.RFC3339)+`"}]}}`)
	})
}

// update stores the names of a snapshot's nodes.
func (w *follower) update(u cluster.Update) {
	if u.Snapshot == nil {
		return
	}
	names := make(map[string]bool, len(u.Snapshot.Nodes))
	for _, n := range u.Snapshot.Nodes {
		names[n.Name] = true
	}
	w.mu.Lock()
	w.nodes = names
	w.mu.Unlock()
	sendLatest(w.change)
}

func sendLatest(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is pending
	}
}

// until waits until a condition on the nodes is true.
func (w *follower) until(ctx context.Context, is func() bool) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		w.mu.Lock()
		ok := is()
		w.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("an agent does not have the nodes: %w", ctx.Err())
		case <-w.change:
		}
	}
}

// requests returns the number of requests for nodes that the server has answered.
func (k *kubeServer) requests(ctx context.Context) (n int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+k.Address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+kubetest.Admin)
	resp, err := k.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `resource="nodes"`) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		n += int(v)
	}
	return n, lines.Err()
}

// relay passes connections on to a server and counts what it sends.
type relay struct {
	net.Listener
	received atomic.Int64
}

func startRelay(ctx context.Context, to string) (*relay, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{Listener: l}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			go func() { _, _ = io.Copy(near, io.TeeReader(far, r)); _ = near.Close() }()
		}
	}()
	return r, nil
}

// Write counts.
func (r *relay) Write(b []byte) (int, error) { r.received.Add(int64(len(b))); return len(b), nil }

// markdown describes the measurements, and what they mean for as many real nodes.
func (f *fleet) markdown(nodes int) string {
	var b bytes.Buffer
	quantile := func(q float64) string { return ms(f.joins[int(q*float64(len(f.joins)-1))]) }
	mb := func(bytes float64) string { return fmt.Sprintf("%.1f MB", bytes/1e6) }
	fmt.Fprintf(&b, "\n### %d agents on one kube-apiserver\n\nThe agents are %d registries of the agent in one process, without a kernel. The server has %d Node objects of %.1f kB.\n\n"+
		"| what | measured |\n|---|---:|\n", followers, followers, nodes, float64(f.status)/1e3)
	for _, l := range [][2]string{
		{"requests of a node that joins, until it is ready", strconv.Itoa(f.requests)},
		{"received by a node that joins", mb(float64(f.first))},
		{fmt.Sprintf("%d agents at once, until the last has all nodes", followers-1), ms(f.all)},
		{"a node joins, until an agent knows it: median", quantile(0.5)},
		{"90 % of the agents and nodes", quantile(0.9)},
		{"99 %", quantile(0.99)},
		{"longest", quantile(1)},
		{"sent to each agent for one change of a Node's status", fmt.Sprintf("%.1f kB", float64(f.status)/1e3)},
		{"resident memory of the server without and with the agents", fmt.Sprintf("%.0f and %.0f MB", float64(f.alone)/1024, float64(f.serving)/1024)},
	} {
		fmt.Fprintf(&b, "| %s | %s |\n", l[0], l[1])
	}
	const reports = 300 // seconds, kubelet's nodeStatusReportFrequency
	rate := float64(nodes) / reports
	fmt.Fprintf(&b, "\nCalculated for %d real nodes: kubelet changes each Node's status every five minutes, so each agent receives %.0f changes and %s a second,\n"+
		"and the API servers send %.1f GB a second to all agents. Every program that watches Nodes costs that, kube-proxy and flanneld too.\n"+
		"This is the next limit, before the memory and the time of an agent. Leases, kubelet's other heartbeat, do not reach the agents.\n",
		nodes, rate, mb(rate*float64(f.status)), rate*float64(f.status)*float64(nodes)/1e9)
	return b.String()
}
