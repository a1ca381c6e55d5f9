package agent

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
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

// unheard are the nodes that do not answer. It may be used concurrently.
type unheard struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note notes whether a node answered.
func (u *unheard) note(peer string, answered bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if answered {
		delete(u.since, peer)
	} else if u.since[peer].IsZero() {
		u.since[peer] = time.Now()
	}
}

// keep forgets the nodes that are not among all.
func (u *unheard) keep(all []overlay.PeerState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.since, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(all, func(p overlay.PeerState) bool { return p.Name == name })
	})
}

// has reports whether a node does not answer.
func (u *unheard) has(peer string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.since[peer].IsZero()
}

// list returns the nodes that do not answer for some time, by name.
func (u *unheard) list() (all []unheardPeer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, since := range u.since {
		if time.Since(since) < joining {
			continue
		}
		all = append(all, unheardPeer{name, since.UTC()})
	}
	sorting.Func(all, func(x, y unheardPeer) int { return cmp.Compare(x.Peer, y.Peer) })
	return all
}

// probePeers asks the nodes behind the VXLAN device of IPv4 in rotation, until the context ends.
func (a *agent) probePeers(ctx context.Context) {
	n := a.host.Net.Clone()
	defer n.Close()                     //nolint:errcheck // nothing is deleted
	var left, again []overlay.PeerState // again are those that did not answer just now
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeInterval*3/4 + rand.N(probeInterval/2)):
		}
		s := a.current.Load()
		o := s.overlays[0]
		if o == nil || s.Backend != backendVXLAN || s.IPv4 == nil {
			a.unheard.keep(nil)
			continue
		}
		if len(left) == 0 {
			left = slices.DeleteFunc(o.Peers(ctx), func(p overlay.PeerState) bool { return !p.Tunnelled || p.State != overlay.Programmed })
			a.unheard.keep(left)
		}
		next := min(probedPeers, len(left))
		some := left[:next:next]
		for _, p := range again[:min(probedPeers, len(again))] {
			if !slices.ContainsFunc(some, func(q overlay.PeerState) bool { return q.Name == p.Name }) && a.unheard.has(p.Name) {
				some = append(some, p)
			}
		}
		left, again = left[next:], nil
		ends := make([]tunnel.End, len(some))
		for i := range some {
			ends[i] = tunnel.End{MAC: some[i].MAC[:], Addr: some[i].Subnet.Masked().Addr()}
		}
		answered, asked, err := tunnel.Answering(ctx, n, s.IPv4.Device, ends)
		if err != nil && ctx.Err() == nil {
			a.log.Debug("cannot ask other nodes through the tunnel", "error", err)
		}
		for i := range some {
			if asked {
				a.unheard.note(some[i].Name, answered[ends[i].Addr])
			}
			if !answered[ends[i].Addr] {
				again = append(again, some[i])
			}
		}
	}
}
