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

// setPeers takes over a list of peers. If the list differs little from the last one,
// it processes only the differences. The cost then does not depend on the number
// of other peers.
func (o *Kernel) setPeers(ctx context.Context, list []Peer) error {
	if o.moved {
		clear(o.direct)
	} else if !o.conflicting {
		if done, err := o.updatePeers(ctx, list); done || err != nil {
			return err
		}
	}
	return o.rebuild(ctx, list)
}

// rebuild takes over a whole list of peers. Peers that did not change keep their
// state.
func (o *Kernel) rebuild(ctx context.Context, list []Peer) error {
	now, moved := o.now(), o.moved
	index := newPeerIndex(len(list))
	order := make([]*peerEntry, 0, len(list))
	o.conflicting = false
	for i := range list {
		p := o.peers.names[list[i].Name]
		fresh := p == nil || index.names[list[i].Name] != nil
		if fresh {
			p = newPeerEntry(list[i].Name, now)
		}
		if fresh || moved || p.Peer != list[i] || p.invalid != nil {
			if err := o.updatePeer(ctx, p, list[i]); err != nil {
				o.moved = true // look up all gateways again
				return err
			}
		}
		if index.names[p.Name] == nil {
			index.names[p.Name] = p
		}
		order = append(order, p)
	}
	// Of peers with one MAC or key the one that is in the kernel stays, so that a new record
	// does not cut off a working node.
	for _, inKernel := range []bool{true, false} {
		for _, p := range order {
			if p.invalid == nil && o.hasTunnel(p) == inKernel {
				p.invalid = index.add(p)
				o.conflicting = o.conflicting || p.invalid != nil
			}
		}
	}
	o.peers, o.order, o.released, o.sweep, o.moved = index, order, nil, true, false
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

func newPeerEntry(name string, now time.Time) *peerEntry {
	return &peerEntry{Peer: Peer{Name: name}, state: Pending, since: now}
}

// updatePeers takes over a list that differs from the last one in a few peers: changed,
// new or removed ones. done is false if there are many differences, or if a peer
// claims what another peer has.
func (o *Kernel) updatePeers(ctx context.Context, list []Peer) (done bool, err error) {
	order, edits, gone, ok := o.compare(list)
	if !ok {
		return false, nil
	}
	for _, p := range gone {
		o.release(p)
		delete(o.peers.names, p.Name)
	}
	for _, i := range edits {
		o.release(order[i])
	}
	for _, i := range edits {
		p := order[i]
		if err := o.updatePeer(ctx, p, list[i]); err != nil {
			o.moved = true
			return false, err
		}
		if other := o.peers.names[p.Name]; other != nil && other != p {
			return false, nil
		}
		o.peers.names[p.Name] = p
		if p.invalid != nil {
			continue
		}
		p.invalid = o.peers.add(p)
		if p.invalid != nil {
			return false, nil
		}
	}
	o.order = order
	return true, nil
}

// compare walks along the old and the new list. It returns the peers in their new
// order, the indexes of new or changed peers, and the removed peers. ok is false
// if the lists differ too much.
func (o *Kernel) compare(list []Peer) (order []*peerEntry, edits []int, gone []*peerEntry, ok bool) {
	old := o.order
	most := 100 + len(old)/10
	order = make([]*peerEntry, len(list))
	for i := range list {
		switch {
		case len(old) > 1 && old[0].Name != list[i].Name && old[1].Name == list[i].Name:
			gone, old = append(gone, old[0]), old[1:]
		case len(old) > 0 && old[0].Name == list[i].Name:
		case len(old) == 0, i+1 < len(list) && old[0].Name == list[i+1].Name:
			order[i] = newPeerEntry(list[i].Name, o.now())
			edits = append(edits, i)
			continue
		default:
			return nil, nil, nil, false
		}
		order[i], old = old[0], old[1:]
		if order[i].Peer != list[i] || order[i].invalid != nil {
			edits = append(edits, i)
		}
		if len(edits) > most {
			return nil, nil, nil, false
		}
	}
	return order, edits, append(gone, old...), len(gone)+len(old)+len(edits) <= most
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
