package lab

import (
	"context"
	"fmt"
	"net/netip"

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

// Report reads the state of the lab. With pings, each pod sends an echo request to each other pod.
func (l *Lab) Report(ctx context.Context, pings bool) (*Report, error) {
	s, err := l.Load()
	if err != nil {
		return nil, err
	}
	r := &Report{Registry: s.Registry, Switch: s.Switch, Dir: l.Dir}
	for i := range s.Nodes {
		n := NodeReport{Node: s.Nodes[i], Agents: []int{}}
		running, err := l.agents(&n.Node)
		if err != nil {
			n.Reason = err.Error()
		}
		n.Agents = append(n.Agents, running...)
		if o, err := store.ReadOverlay(n.overlayFile()); err != nil {
			n.Reason = err.Error()
		} else {
			n.Ready, n.Reason, n.Peers = o.Ready, o.Reason, o.Peers
		}
		if err == nil && len(running) == 0 {
			n.Ready, n.Reason = false, "no agent runs"
		}
		r.Nodes = append(r.Nodes, n)
	}
	if pings {
		r.Pings, err = l.pings(ctx, s)
	}
	return r, err
}

// pings sends an echo request from each pod to each other pod.
func (l *Lab) pings(ctx context.Context, s *State) ([]Ping, error) {
	var pods []Pod
	for _, n := range s.Nodes {
		pods = append(pods, n.Pods...)
	}
	var out []Ping
	for _, from := range pods {
		ns, err := l.open(from.Netns)
		if err != nil {
			return nil, fmt.Errorf("ping from %s: %w", from.Name, err)
		}
		for _, to := range pods {
			if to.Name == from.Name || !to.Address.IsValid() {
				continue
			}
			p := Ping{From: from.Name, To: to.Name, Address: to.Address}
			took, err := ping(ctx, ns, to.Address)
			if err != nil {
				p.Error = err.Error()
			} else {
				p.Milliseconds = float64(took.Microseconds()) / 1000
			}
			out = append(out, p)
		}
		if err := ns.Close(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
