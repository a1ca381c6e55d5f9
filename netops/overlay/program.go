package overlay

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// program makes the missing objects of peers. It makes a peer's route last:
// without the route the kernel does not send requests for the gateway's MAC.
func (o *Kernel) program(ctx context.Context, w *opWriter, now time.Time) error {
	programPeer := o.peerProgrammer(ctx, w)
	if o.isWireGuard() {
		w = &opWriter{Kernel: o, conn: o.wg.Conn}
		programPeer = func(p *peerEntry) { o.programWGPeer(ctx, w, p) }
	} else {
		o.deleteSurplus(ctx, w)
	}
	var tried []*peerEntry
	for _, p := range o.order {
		if p.done || p.invalid == nil && !p.due(now) {
			continue
		}
		tried = append(tried, p)
		p.refused = nil
		if p.invalid == nil {
			programPeer(p)
		}
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	if o.isWireGuard() {
		if err := o.routeToWG(ctx); err != nil {
			return err
		}
	}
	for _, p := range tried {
		p.recordResult(now)
	}
	return nil
}

// deleteSurplus deletes additional objects.
func (o *Kernel) deleteSurplus(ctx context.Context, w *opWriter) {
	surplus := o.have.surplus
	o.have.surplus = nil
	for _, op := range surplus {
		w.add(ctx, op)
	}
}

// peerProgrammer returns a function that makes the missing objects of a peer without WireGuard.
func (o *Kernel) peerProgrammer(ctx context.Context, w *opWriter) func(*peerEntry) {
	neighs, fdb, routes := o.neighs(), o.fdb(), o.routes()
	return func(p *peerEntry) {
		if p.tunnel {
			neighs.ensure(ctx, w, p, p.Subnet.Addr())
			fdb.ensure(ctx, w, p, p.MAC)
		}
		if have, ok := o.have.routes[p.Subnet]; ok && p.tunnel && o.family == unix.AF_INET6 && o.linkOf(have) != p.hop.Link {
			// The tunnel's gateway is in the subnet. While a route to the subnet uses
			// another link, IPv6 refuses the gateway on this link (net/ipv6/route.c,
			// ip6_route_check_nh_onlink).
			w.add(ctx, kernelOp{kind: opRoute, del: true, dst: p.Subnet, protocol: have.protocol, priority: have.priority})
		}
		if _, ok := o.have.ids[p.hop]; !ok && !o.noHops {
			id := o.freeHop()
			// Later peers with the same hop share it.
			o.have.ids[p.hop], o.have.hops[id] = id, p.hop
			w.add(ctx, kernelOp{kind: opHop, peer: p, hop: p.hop, id: id})
		}
		if o.noHops || o.have.ids[p.hop] != 0 { // else the kernel has just refused the object
			routes.ensure(ctx, w, p, p.Subnet)
		}
	}
}

// linkOf returns the index of the link that a route uses.
func (o *Kernel) linkOf(r routeTo) int32 {
	if r.id != 0 {
		return o.have.hops[r.id].Link
	}
	return r.hop.Link
}

// freeHop returns the next free number for a nexthop object.
func (o *Kernel) freeHop() uint32 {
	for {
		o.nextHop = (o.nextHop + 1) % (1 << 23)
		id := o.firstHop + o.nextHop
		if _, taken := o.have.hops[id]; !taken && id != o.firstHop {
			return id
		}
	}
}

// prune removes the objects that no peer wants: first routes, then the objects
// that the routes use.
func (o *Kernel) prune(ctx context.Context, w *opWriter) error {
	released := o.released
	o.released = nil
	for _, c := range released {
		// Several peers may share a gateway on a link, so check all objects.
		o.sweep = o.sweep || !c.tunnel
	}
	if o.sweep && o.isWireGuard() {
		if err := o.pruneWG(ctx); err != nil {
			return err
		}
	}
	if o.sweep {
		o.sweep = false // refuse sets it again
		return o.pruneAll(ctx, w)
	}
	neighs, fdb, routes := o.neighs(), o.fdb(), o.routes()
	for _, c := range released {
		routes.prune(ctx, w, only(c.subnet))
	}
	for _, c := range released {
		first := c.subnet.Addr()
		_, wanted := o.peers.gateway(first)
		if id, ok := o.have.ids[c.hop]; ok && !wanted {
			w.add(ctx, kernelOp{kind: opHop, del: true, id: id})
		}
		fdb.prune(ctx, w, only(c.mac))
		neighs.prune(ctx, w, only(first))
	}
	return w.flush(ctx)
}

// only yields one key.
func only[K any](key K) iter.Seq[K] { return func(yield func(K) bool) { yield(key) } }

// pruneAll checks all objects of the overlay.
func (o *Kernel) pruneAll(ctx context.Context, w *opWriter) error {
	o.routes().prune(ctx, w, maps.Keys(o.have.routes))
	if err := w.flush(ctx); err != nil {
		return err
	}
	used := make(map[uint32]bool, len(o.order))
	for _, r := range o.have.routes {
		used[r.id] = true
	}
	for c := range keyed.Diff(maps.Keys(o.have.hops), keyed.Of(o.have.hops), keyed.Of(used), keyed.Always) {
		w.add(ctx, kernelOp{kind: opHop, del: true, id: c.Key})
	}
	o.fdb().prune(ctx, w, maps.Keys(o.have.fdb))
	o.neighs().prune(ctx, w, maps.Keys(o.have.neighs))
	return w.flush(ctx)
}

// pruneDevices deletes the labelled devices of the family except the wanted one, and the family's addresses of the other
// family's WireGuard device, which both used before.
func (o *Kernel) pruneDevices(ctx context.Context) error {
	if err := o.eachLabelled(ctx, func(v *rtnl.Link) error { return o.deleteLink(ctx, v) }); err != nil || !o.isWireGuard() {
		return err
	}
	all, err := o.vteps(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		if v.Kind != rtnl.KindWireGuard || v.Index == o.device.Index || !strings.HasPrefix(v.Alias, deviceAlias) {
			continue
		}
		if err := o.addressVTEP(ctx, &VTEP{Name: v.Name, Network: o.network}); err != nil {
			return err
		}
	}
	return nil
}

// eachLabelled calls do with the labelled devices of the family except the wanted one.
func (o *Kernel) eachLabelled(ctx context.Context, do func(*rtnl.Link) error) error {
	all, err := o.vteps(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		sameFamily := v.Kind == rtnl.KindWireGuard || v.VXLAN.Local.Is6() == (o.family == unix.AF_INET6)
		if v.Alias != o.aliasOf(v.Kind) || v.Index == o.device.Index || !sameFamily {
			continue
		}
		if err := do(v); err != nil {
			return err
		}
	}
	return nil
}

// removePeers deletes the overlay's objects of a device (0 for none), nexthop
// objects and routes. It reads them from the kernel. The remembered state stays
// unchanged.
func (o *Kernel) removePeers(ctx context.Context, link int) error {
	have, err := o.read(ctx, link)
	if err != nil {
		return err
	}
	before, device, peers := o.have, o.device, o.peers
	defer func() { o.have, o.device, o.peers = before, device, peers }()
	o.have, o.peers, o.device.Index = have, newPeerIndex(0), link
	w := o.writer()
	o.deleteSurplus(ctx, w)
	return o.pruneAll(ctx, w)
}

// Remove deletes all objects of the overlay: routes with the protocol, nexthop
// objects in the range, and labelled devices of the family.
func (o *Kernel) Remove(ctx context.Context) error { return o.remove(ctx, o.pruneDevices, false) }

// RemoveToGuard is Remove, but keeps the guard of a WireGuard device and returns its networks. Packets of pods that still
// run do not leave unencrypted.
func (o *Kernel) RemoveToGuard(ctx context.Context) (networks []netip.Prefix, err error) {
	err = o.remove(ctx, func(ctx context.Context) error {
		guards, err := o.mainRoutes(ctx, o.isGuard)
		for _, r := range guards {
			networks = append(networks, r.dst)
		}
		return errors.Join(err, o.pruneDevices(ctx))
	}, true)
	return networks, err
}

// Release is Remove for a node on which flanneld took over the devices. It keeps
// the devices with their neighbour and forwarding entries, and removes the label.
func (o *Kernel) Release(ctx context.Context) error {
	return o.remove(ctx, func(ctx context.Context) error {
		return o.eachLabelled(ctx, func(v *rtnl.Link) error {
			return o.ensure(ctx, &netops.Link{In: netops.Host, Shared: true, Name: v.Name, Unset: &netops.Unset{Alias: true}})
		})
	}, false)
}

// remove deletes routes and nexthop objects, and then calls devices.
func (o *Kernel) remove(ctx context.Context, devices func(context.Context) error, keepGuard bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keepGuard = keepGuard
	defer func() { o.keepGuard = false }()
	if o.conn == nil { // the last Apply could not open a new one
		if err := o.connect(); err != nil {
			return err
		}
	}
	o.wanted = nil // without a device the guard is surplus
	if err := o.removePeers(ctx, 0); err != nil {
		return err
	}
	o.have, o.known, o.device, o.order, o.peers = newKernelState(), false, rtnl.Link{}, nil, newPeerIndex(0)
	o.index.Store(0)
	return devices(ctx)
}

// Peers returns the state of each peer in the order of the last spec. It reads the handshakes of
// WireGuard from the kernel.
func (o *Kernel) Peers(ctx context.Context) []PeerState {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := &wgDevice{}
	if o.wg != nil && o.isWireGuard() {
		if read, err := o.readWG(ctx, o.device.Index); err == nil {
			d = read
		}
	}
	all := make([]PeerState, len(o.order))
	for i, p := range o.order {
		all[i] = PeerState{
			Peer: p.Peer, Tunnelled: p.tunnel,
			State: p.state, Since: p.since, Err: p.err(), RetryAt: p.retryAt,
		}
		if p.invalid != nil {
			continue
		}
		if o.isWireGuard() {
			have := d.peers[p.key]
			all[i].Tunnelled, all[i].Endpoint, all[i].Handshake = true, have.endpoint, have.handshake
			all[i].Received, all[i].Sent = have.received, have.sent
			_, all[i].Route = o.have.routes[o.network]
			continue
		}
		_, all[i].Route = o.have.routes[p.Subnet]
		if p.tunnel {
			all[i].FDB = o.have.fdb[p.MAC] == p.Gateway
			have, ok := o.have.neighs[p.Subnet.Addr()]
			all[i].Neighbour = ok && have == p.MAC
		}
	}
	return all
}
