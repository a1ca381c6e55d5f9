package lab

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store"
)

// Report is the present state of a lab.
type Report struct {
	Registry string       `json:"registry"`
	Switch   string       `json:"switch"`
	Dir      string       `json:"dir"`
	Nodes    []NodeReport `json:"nodes"`
	// Pings are the pings between all pods, if requested.
	Pings []Ping `json:"pings,omitempty"`
}

// NodeReport is a node with its agent's status.
type NodeReport struct {
	Node
	// Agents are the process IDs. There should be one.
	Agents []int `json:"agents"`
	Ready  bool  `json:"ready"`
	// Reason is why the node is not ready.
	Reason string             `json:"reason,omitempty"`
	Peers  store.OverlayPeers `json:"peers"`
}

// Ping is one echo request from one pod to another.
type Ping struct {
	From    string     `json:"from"`
	To      string     `json:"to"`
	Address netip.Addr `json:"address"`
	// Milliseconds is the time until the answer. Error is why there is none.
	Milliseconds float64 `json:"ms,omitempty"`
	Error        string  `json:"error,omitempty"`
}

// Report reads the state of the lab. If pinged is not nil, each pod sends an echo request to each other
// pod, and pinged is called with the number of finished ones and of all.
func (l *Lab) Report(ctx context.Context, pinged func(done, all int)) (*Report, error) {
	s, err := l.Load()
	if err != nil {
		return nil, err
	}
	r := &Report{Registry: s.Registry, Switch: s.Switch, Dir: l.Dir}
	for i := range s.Nodes {
		n := NodeReport{Node: s.Nodes[i], Agents: []int{}}
		running, agentErr := l.agents(&n.Node)
		n.Agents = append(n.Agents, running...)
		o, err := store.ReadOverlay(n.overlayFile())
		if err == nil {
			n.Ready, n.Reason, n.Peers = o.Ready, o.Reason, o.Peers
		}
		// The file of an agent that was killed stays.
		if agentErr == nil && len(n.Agents) == 0 {
			agentErr = errNoAgent
		}
		if err := cmp.Or(agentErr, err); err != nil {
			n.Ready, n.Reason = false, err.Error()
		}
		r.Nodes = append(r.Nodes, n)
	}
	if pinged != nil {
		r.Pings = l.pings(ctx, s, pinged)
	}
	return r, ctx.Err()
}

// errNoAgent is the reason of a node whose agent does not run.
var errNoAgent = errors.New("its agent does not run, see agent.log in the node's directory")

// parallelPings is the number of pings that wait for answers at the same time. A ping uses a thread only
// while it opens its socket.
const parallelPings = 64

// pings sends an echo request from each pod to each other pod.
func (l *Lab) pings(ctx context.Context, s *State, pinged func(done, all int)) []Ping {
	var pods []Pod
	for _, n := range s.Nodes {
		pods = append(pods, n.Pods...)
	}
	var out []Ping
	for _, from := range pods {
		for _, to := range pods {
			if to.Name != from.Name && to.Address.IsValid() {
				out = append(out, Ping{From: from.Name, To: to.Name, Address: to.Address})
			}
		}
	}
	next, done := make(chan *Ping), make(chan struct{})
	for range min(parallelPings, len(out)) {
		go func() {
			for p := range next {
				took, err := l.pingFrom(ctx, p)
				if err != nil {
					p.Error = err.Error()
				} else {
					p.Milliseconds = float64(took.Microseconds()) / 1000
				}
				done <- struct{}{}
			}
		}()
	}
	go func() {
		defer close(next)
		for i := range out {
			next <- &out[i]
		}
	}()
	for i := range out {
		<-done
		pinged(i+1, len(out))
	}
	return out
}

// pingFrom sends one echo request. A pod has its namespace's name.
func (l *Lab) pingFrom(ctx context.Context, p *Ping) (time.Duration, error) {
	ns, err := l.open(p.From)
	if err != nil {
		return 0, err
	}
	defer ns.Close() //nolint:errcheck // it only was read
	return ping(ctx, ns, p.Address)
}
