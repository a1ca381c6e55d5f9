package overlay

import (
	"context"
	"net/netip"
	"time"
)

// peerObjects describes a peer's kernel objects.
type peerObjects struct {
	subnet netip.Prefix
	mac    MAC
	hop    hop
	tunnel bool
}

func (p *peerEntry) objects() peerObjects { return peerObjects{p.Subnet, p.MAC, p.hop, p.tunnel} }

// setPeers takes over a list of peers. Only peers that are new, changed or removed cost more than a comparison.
func (o *Kernel) setPeers(ctx context.Context, list []Peer) error {
	if o.moved {
		clear(o.direct)
		o.sweep = true
	}
	if len(o.peers.names) == 0 {
		o.peers = newPeerIndex(len(list))
	}
	o.lists++
	order, changed := make([]*peerEntry, len(list)), []*peerEntry(nil)
	for i := range list {
		p := o.peers.names[list[i].Name]
		isNew := p == nil || p.list == o.lists // a second peer with this name
		if isNew {
			p = &peerEntry{Peer: Peer{Name: list[i].Name}, state: Pending, since: o.now()}
		}
		order[i], p.list = p, o.lists
		if !isNew && !o.moved && p.Peer == list[i] && p.invalid == nil {
			continue
		}
		o.release(p)
		if err := o.updatePeer(ctx, p, list[i]); err != nil {
			o.moved = true // look up all gateways again
			return err
		}
		if o.peers.names[p.Name] == nil {
			o.peers.names[p.Name] = p
		}
		changed = append(changed, p)
	}
	for _, p := range o.order {
		if p.list == o.lists {
			continue
		}
		o.release(p)
		if o.peers.names[p.Name] == p {
			delete(o.peers.names, p.Name)
		}
	}
	// Of peers with one MAC or key the one that is in the kernel stays, so that a new record
	// does not cut off a working node.
	for _, inKernel := range []bool{true, false} {
		for _, p := range changed {
			if p.invalid == nil && o.hasTunnel(p) == inKernel {
				p.invalid = o.peers.add(p)
			}
		}
	}
	o.order, o.moved = order, false
	return nil
}

// hasTunnel reports whether the kernel has the peer's MAC or key with the peer's address or network.
func (o *Kernel) hasTunnel(p *peerEntry) bool {
	if o.isWireGuard() {
		return o.have.wg[p.key].allowed == p.networks()
	}
	return p.tunnel && o.have.fdb[p.MAC] == p.Gateway
}

// updatePeer sets a peer's new values and computes its kernel objects.
func (o *Kernel) updatePeer(ctx context.Context, p *peerEntry, to Peer) error {
	if p.Peer != to || o.moved {
		p.Peer, p.failures, p.retryAt = to, 0, time.Time{}
	}
	p.done = false
	return o.resolve(ctx, p)
}

// release removes a peer's claims from the index and adds them to o.released.
func (o *Kernel) release(p *peerEntry) {
	if o.peers.firsts[p.Subnet.Addr()] != p {
		return
	}
	delete(o.peers.firsts, p.Subnet.Addr())
	if o.peers.macs[p.MAC] == p {
		delete(o.peers.macs, p.MAC)
	}
	if o.peers.keys[p.key] == p {
		delete(o.peers.keys, p.key)
	}
	o.released = append(o.released, p.objects())
}
