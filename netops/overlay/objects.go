package overlay

import (
	"context"
	"iter"
	"net/netip"

	"github.com/cnibox/cnibox/netops/internal/keyed"
)

// objects are the peers' objects of one kind: what have finds in the kernel by a key, what the peers want, and what makes or deletes one.
type objects[K, V comparable] struct {
	have, want func(K) (V, bool)
	op         func(K, V) kernelOp
}

// ensure queues what makes an object of a peer, unless the kernel has it.
func (s *objects[K, V]) ensure(ctx context.Context, w *opWriter, p *peerEntry, key K) {
	if c, differs := keyed.At(key, s.have, s.want, keyed.Same); differs && c.Kind != keyed.Remove {
		op := s.op(key, c.Want)
		op.peer, op.hop = p, p.hop
		w.add(ctx, op)
	}
}

// prune queues the deletions of those that no peer wants.
func (s *objects[K, V]) prune(ctx context.Context, w *opWriter, keys iter.Seq[K]) {
	for c := range keyed.Diff(keys, s.have, s.want, keyed.Always) {
		if c.Kind == keyed.Remove {
			op := s.op(c.Key, c.Have)
			op.del = true
			w.add(ctx, op)
		}
	}
}

// ofPeer returns what the peer with a key wants.
func ofPeer[K, V comparable](find func(K) (*peerEntry, bool), value func(*peerEntry) V) func(K) (V, bool) {
	return func(key K) (v V, wants bool) {
		p, wants := find(key)
		if wants {
			v = value(p)
		}
		return v, wants
	}
}

func (o *Kernel) neighs() *objects[netip.Addr, MAC] {
	return &objects[netip.Addr, MAC]{
		have: keyed.Of(o.have.neighs), want: ofPeer(o.peers.gateway, func(p *peerEntry) MAC { return p.MAC }),
		op: func(ip netip.Addr, mac MAC) kernelOp {
			return kernelOp{kind: opNeigh, link: o.device.Index, ip: ip, mac: mac}
		},
	}
}

// fdb has no MACs of several destinations, which are surplus.
func (o *Kernel) fdb() *objects[MAC, netip.Addr] {
	return &objects[MAC, netip.Addr]{
		have: func(mac MAC) (netip.Addr, bool) { return o.have.fdb[mac], o.have.fdb[mac].IsValid() },
		want: ofPeer(keyed.Of(o.peers.macs), func(p *peerEntry) netip.Addr { return p.Gateway }),
		op: func(mac MAC, ip netip.Addr) kernelOp {
			return kernelOp{kind: opFDB, link: o.device.Index, ip: ip, mac: mac}
		},
	}
}

func (o *Kernel) routes() *objects[netip.Prefix, routeTo] {
	s := &objects[netip.Prefix, routeTo]{
		have: keyed.Of(o.have.routes), want: ofPeer(o.peers.subnet, o.routeOf),
		op: func(dst netip.Prefix, r routeTo) kernelOp {
			return kernelOp{kind: opRoute, dst: dst, id: r.id, protocol: r.protocol, priority: r.priority}
		},
	}
	if o.isWireGuard() { // all peers have one route
		s.want = func(dst netip.Prefix) (routeTo, bool) { return routeTo{}, dst == o.network }
	}
	return s
}

// routeOf returns the route to a peer. Its nexthop object exists if the kernel has such.
func (o *Kernel) routeOf(p *peerEntry) routeTo {
	op := kernelOp{hop: p.hop, protocol: Protocol, priority: o.priority()}
	if !o.noHops {
		op.id = o.have.ids[p.hop]
	}
	return op.route()
}
