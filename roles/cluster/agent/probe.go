package agent

import (
	"cmp"
	"context"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/netops/tunnel"
)

// The agent asks the next probedPeers nodes every probeInterval, so that its cost does not grow with the number of nodes.
// The time varies by half an interval, because many agents start together.
const (
	probeInterval = 5 * time.Second
	probedPeers   = 16
)

// joining is how long a node may be silent that does not answer yet. A new node makes its device after it is known.
const joining = 10 * time.Second

// unheardPeer is a node that does not answer through the tunnel.
type unheardPeer struct {
	Peer  string    `json:"peer"`
	Since time.Time `json:"since"`
}

// lossWindow is the number of a node's last requests that its loss is of.
const lossWindow = 64

// answers has what the nodes did not answer, in each address family: a node that answered its last lossWindow requests is absent, so that
// most nodes take no memory. It may be used concurrently.
type answers struct {
	mu    sync.Mutex
	nodes [2]map[string]unanswered
}

// unanswered are a node's requests without an answer.
type unanswered struct {
	// since is when the node did not answer for the first time since its last answer, or zero.
	since time.Time
	// lost has a bit for each of the last lossWindow requests, the newest in the lowest.
	lost uint64
}

// lose notes requests without an answer.
func (n *unanswered) lose(requests int) {
	for range requests {
		n.lost = n.lost<<1 | 1
	}
}

// note notes after how many requests a node answered, 0 if it did not.
func (a *answers) note(family int, peer string, requests int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.nodes[family][peer]
	if requests > 0 {
		n.since = time.Time{}
		n.lose(requests - 1)
		n.lost <<= 1
	} else {
		if n.since.IsZero() {
			n.since = time.Now()
		}
		n.lose(tunnel.AskTimes)
	}
	switch {
	case n == unanswered{}:
		delete(a.nodes[family], peer)
	case a.nodes[family] == nil:
		a.nodes[family] = map[string]unanswered{peer: n}
	default:
		a.nodes[family][peer] = n
	}
}

// keep forgets the nodes that are not among all.
func (a *answers) keep(family int, all []overlay.PeerState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.nodes[family], func(name string, _ unanswered) bool {
		return !slices.ContainsFunc(all, func(p overlay.PeerState) bool { return p.Name == name })
	})
}

// isSilent reports whether a node did not answer when it was asked last.
func (a *answers) isSilent(family int, peer string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.nodes[family][peer].since.IsZero()
}

// loss returns how many percent of the last requests to each node were not answered. A node that answered all is absent.
func (a *answers) loss(family int) map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	percent := make(map[string]int, len(a.nodes[family]))
	for peer, n := range a.nodes[family] {
		percent[peer] = (bits.OnesCount64(n.lost)*100 + lossWindow - 1) / lossWindow
	}
	return percent
}

// silent returns the nodes that do not answer for some time in a family, by name.
func (a *answers) silent() (all []unheardPeer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, family := range a.nodes {
		for name, n := range family {
			i := slices.IndexFunc(all, func(p unheardPeer) bool { return p.Peer == name })
			switch {
			case n.since.IsZero() || time.Since(n.since) < joining:
			case i < 0:
				all = append(all, unheardPeer{name, n.since.UTC()})
			case n.since.Before(all[i].Since):
				all[i].Since = n.since.UTC()
			}
		}
	}
	sorting.Func(all, func(x, y unheardPeer) int { return cmp.Compare(x.Peer, y.Peer) })
	return all
}

// probePeers asks the nodes behind the VXLAN devices in rotation, until the context ends.
func (a *agent) probePeers(ctx context.Context) {
	n := a.host.Net.Clone()
	defer n.Close() //nolint:errcheck // nothing is deleted
	rounds := [2]round{{family: 0}, {family: 1}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeInterval*3/4 + rand.N(probeInterval/2)):
		}
		s := a.reporter.current.Load()
		for i, f := range []*familySummary{s.IPv4, s.IPv6} {
			if s.Backend != backendVXLAN || f == nil || s.overlays[i] == nil {
				a.answers.keep(i, nil)
				continue
			}
			if err := rounds[i].next(ctx, n, &a.answers, s.overlays[i], f.Device); err != nil && ctx.Err() == nil {
				a.log.Debug("cannot ask other nodes through the tunnel", "error", err)
			}
		}
	}
}

// round is a round of requests to all nodes in one family: left are those that were not asked yet, and again those that did not answer just now.
type round struct {
	family      int
	left, again []overlay.PeerState
}

// next asks the next nodes through a device.
func (r *round) next(ctx context.Context, n *netops.Net, a *answers, o *overlay.Kernel, device string) error {
	if len(r.left) == 0 {
		r.left = slices.DeleteFunc(o.Peers(ctx), func(p overlay.PeerState) bool { return !p.Tunnelled || p.State != overlay.Programmed })
		a.keep(r.family, r.left)
	}
	next := min(probedPeers, len(r.left))
	some := r.left[:next:next]
	for _, p := range r.again[:min(probedPeers, len(r.again))] {
		if !slices.ContainsFunc(some, func(q overlay.PeerState) bool { return q.Name == p.Name }) && a.isSilent(r.family, p.Name) {
			some = append(some, p)
		}
	}
	r.left, r.again = r.left[next:], nil
	ends := make([]tunnel.End, len(some))
	for i := range some {
		ends[i] = tunnel.End{MAC: some[i].MAC[:], Addr: some[i].Subnet.Masked().Addr()}
	}
	answered, asked, err := tunnel.Answering(ctx, n, device, ends)
	for i := range some {
		if asked {
			a.note(r.family, some[i].Name, answered[ends[i].Addr])
		}
		if answered[ends[i].Addr] == 0 {
			r.again = append(r.again, some[i])
		}
	}
	return err
}
