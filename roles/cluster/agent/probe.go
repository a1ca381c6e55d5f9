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

// unheard are the nodes that do not answer, in each address family. It may be used concurrently.
type unheard struct {
	mu    sync.Mutex
	since [2]map[string]time.Time
}

// note notes whether a node answered.
func (u *unheard) note(family int, peer string, answered bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch since := u.since[family]; {
	case answered:
		delete(since, peer)
	case since == nil:
		u.since[family] = map[string]time.Time{peer: time.Now()}
	case since[peer].IsZero():
		since[peer] = time.Now()
	}
}

// keep forgets the nodes that are not among all.
func (u *unheard) keep(family int, all []overlay.PeerState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.since[family], func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(all, func(p overlay.PeerState) bool { return p.Name == name })
	})
}

// has reports whether a node does not answer.
func (u *unheard) has(family int, peer string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.since[family][peer].IsZero()
}

// list returns the nodes that do not answer for some time in a family, by name.
func (u *unheard) list() (all []unheardPeer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, family := range u.since {
		for name, since := range family {
			i := slices.IndexFunc(all, func(p unheardPeer) bool { return p.Peer == name })
			switch {
			case time.Since(since) < joining:
			case i < 0:
				all = append(all, unheardPeer{name, since.UTC()})
			case since.Before(all[i].Since):
				all[i].Since = since.UTC()
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
		s := a.current.Load()
		for i, f := range []*familySummary{s.IPv4, s.IPv6} {
			if s.Backend != backendVXLAN || f == nil || s.overlays[i] == nil {
				a.unheard.keep(i, nil)
				continue
			}
			if err := rounds[i].next(ctx, n, &a.unheard, s.overlays[i], f.Device); err != nil && ctx.Err() == nil {
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
func (r *round) next(ctx context.Context, n *netops.Net, u *unheard, o *overlay.Kernel, device string) error {
	if len(r.left) == 0 {
		r.left = slices.DeleteFunc(o.Peers(ctx), func(p overlay.PeerState) bool { return !p.Tunnelled || p.State != overlay.Programmed })
		u.keep(r.family, r.left)
	}
	next := min(probedPeers, len(r.left))
	some := r.left[:next:next]
	for _, p := range r.again[:min(probedPeers, len(r.again))] {
		if !slices.ContainsFunc(some, func(q overlay.PeerState) bool { return q.Name == p.Name }) && u.has(r.family, p.Name) {
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
			u.note(r.family, some[i].Name, answered[ends[i].Addr])
		}
		if !answered[ends[i].Addr] {
			r.again = append(r.again, some[i])
		}
	}
	return err
}
