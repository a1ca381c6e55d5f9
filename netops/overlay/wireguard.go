package overlay

import (
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// WireGuard has the settings of a WireGuard device for all peers.
type WireGuard struct {
	PrivateKey Secret
	// PresharedKey is zero for none.
	PresharedKey Secret
	// Keepalive is the interval of keepalive packets in seconds, 0 for none.
	Keepalive uint16
}

// PublicKey returns the public key of a private key.
func (s Secret) PublicKey() (Key, error) {
	private, err := ecdh.X25519().NewPrivateKey(s[:])
	if err != nil {
		return Key{}, err
	}
	return Key(private.PublicKey().Bytes()), nil
}

// The pod network has two routes while there is a WireGuard device: one over the device,
// and a guard, which refuses packets. The kernel uses the guard only if the device's
// route is absent, because guardPriority is the largest metric. So no packet to a pod
// leaves unencrypted over the default route when the device is deleted or set down, or is
// not made yet.
const guardPriority = math.MaxInt32

// wgConn is a generic netlink socket for WireGuard.
type wgConn struct {
	*nlconn.Conn
	// family is the number that the kernel gave to WireGuard's messages.
	family uint16
}

// openWG opens a socket. The device must exist, because its creation loads the module
// that registers the family. The library wgctrl is not used: it adds 0.6 MB, because it
// brings another netlink library.
func openWG(ctx context.Context) (*wgConn, error) {
	c, err := nlconn.Open(unix.NETLINK_GENERIC, "generic netlink")
	if err != nil {
		return nil, err
	}
	family, err := c.Family(ctx, wgFamilyName)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &wgConn{c, family}, nil
}

// isWireGuard reports whether the tunnel device is a WireGuard device.
func (o *Kernel) isWireGuard() bool { return o.wanted != nil && o.wanted.isWireGuard() }

// readWG reads the configuration and the peers of a WireGuard device.
func (o *Kernel) readWG(ctx context.Context, link int) (*wgDevice, error) {
	d := &wgDevice{}
	m := nlconn.NewGeneric(o.wg.family, unix.WG_CMD_GET_DEVICE, wgVersion)
	m.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(link))
	reset := func() { d.peers, d.networks = map[Key]wgPeer{}, map[Key][2]int{} }
	err := o.wg.Dump(ctx, m, reset, func(_ uint16, data []byte) error { return d.parse(data) })
	return d, nlconn.Explain(err, "read the WireGuard device")
}

// setKeys gives the device its private key and port. Only a difference is written: the
// kernel ends all sessions when the key changes.
func (o *Kernel) setKeys(ctx context.Context, v *VTEP, link int) (err error) {
	o.ownKey, err = v.WireGuard.PrivateKey.PublicKey()
	if err != nil {
		return fmt.Errorf("link %q: private key: %w", v.Name, err)
	}
	if o.wg == nil {
		o.wg, err = openWG(ctx)
		if err != nil {
			return err
		}
		o.wg.GrowReceive(receiveBuffer)
	}
	have, err := o.readWG(ctx, link)
	if err != nil {
		return err
	}
	if have.privateKey == v.WireGuard.PrivateKey && have.port == v.Port {
		return nil
	}
	m := nlconn.NewGeneric(o.wg.family, unix.WG_CMD_SET_DEVICE, wgVersion)
	m.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(link))
	if have.privateKey != v.WireGuard.PrivateKey {
		m.Bytes(unix.WGDEVICE_A_PRIVATE_KEY, v.WireGuard.PrivateKey[:])
	}
	if have.port != v.Port {
		m.Uint16(unix.WGDEVICE_A_LISTEN_PORT, v.Port)
	}
	return v.explain(o.request(ctx, o.wg.Conn, fmt.Sprintf("set link %q key and port %d", v.Name, v.Port), m))
}

// request sends one request for the device in one write.
func (o *Kernel) request(ctx context.Context, conn *nlconn.Conn, what string, m nlconn.Message) error {
	text := func() string { return what }
	err := o.net.Probed(text, func() error { return nlconn.Explain(conn.One(ctx, m), what) })
	if err == nil {
		o.countDevice(text)
	}
	return err
}

// closeWG closes the socket for WireGuard, if it is open.
func (o *Kernel) closeWG() {
	if o.wg != nil {
		_ = o.wg.Close()
		o.wg = nil
	}
}

// ensureGuard makes the guard of a pod network.
func (o *Kernel) ensureGuard(ctx context.Context, network netip.Prefix) error {
	op := kernelOp{kind: opRoute, guard: true, dst: network, protocol: Protocol, priority: guardPriority}
	kind, flags := op.request()
	err := o.request(ctx, o.conn.Conn, op.String(), nlconn.Message{Kind: kind, Flags: flags, Body: op.body(nil)})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// GuardFlannel makes the guards of the networks to which flanneld's WireGuard devices have routes, and returns
// the networks. flanneld deletes its devices when it ends.
func (o *Kernel) GuardFlannel(ctx context.Context) (networks []netip.Prefix, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	devices, err := o.vteps(ctx)
	if err != nil {
		return nil, err
	}
	all, err := o.mainRoutes(ctx, func(r *routeState) bool {
		return r.kind == unix.RTN_UNICAST && r.protocol == unix.RTPROT_BOOT && r.dst.Bits() > 0 && !r.dst.IsSingleIP() &&
			slices.ContainsFunc(devices, func(v *rtnl.Link) bool {
				return v.Kind == rtnl.KindWireGuard && strings.HasPrefix(v.Name, "flannel-wg") && v.Index == int(r.linked)
			})
	})
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if err := o.ensureGuard(ctx, r.dst); err != nil {
			return nil, err
		}
		networks = append(networks, r.dst)
	}
	return networks, nil
}

// PodLink returns the name of a link that leads to pods of this node in a network with a guard, whatever program attached them,
// or "" if there is none. The link has a carrier, and a route without a gateway to a part of the network: a bridge loses its carrier
// with its last port, and the pods of other nodes have a gateway, or the route of the whole network.
func (o *Kernel) PodLink(ctx context.Context) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	guards, err := o.mainRoutes(ctx, (*routeState).refuses)
	if err != nil || len(guards) == 0 {
		return "", err
	}
	routes, err := o.mainRoutes(ctx, func(r *routeState) bool {
		return r.kind == unix.RTN_UNICAST && r.protocol != Protocol && r.linked != 0 && !r.hop.Via.IsValid() &&
			slices.ContainsFunc(guards, func(g routeState) bool { return g.dst.Contains(r.dst.Addr()) && g.dst.Bits() < r.dst.Bits() })
	})
	if err != nil {
		return "", err
	}
	for _, r := range routes {
		l, err := o.conn.LinkByIndex(ctx, int(r.linked))
		switch {
		case err == nil && l.Flags&unix.IFF_LOWER_UP != 0:
			return l.Name, nil
		case err != nil && !nlconn.IsAbsent(err):
			return "", err
		}
	}
	return "", nil
}

// programWGPeer makes a peer of the WireGuard device. The device's route is made after the peers.
func (o *Kernel) programWGPeer(ctx context.Context, w *opWriter, p *peerEntry) {
	settings := &o.wanted.WireGuard
	want := wgPeer{
		endpoint: netip.AddrPortFrom(p.Gateway, p.Port), psk: settings.PresharedKey, keepalive: settings.Keepalive, allowed: p.networks(),
	}
	have, known := o.have.wg[p.key]
	if known && (have.endpoint == want.endpoint || p.endpoint == want.endpoint && p.state != Failed) {
		// WireGuard follows a peer that sends from another address, for example behind a
		// router that translates addresses. Only a new record replaces that address.
		p.endpoint, want.endpoint = want.endpoint, netip.AddrPort{}
		if have.allowed == want.allowed && have.psk == want.psk && have.keepalive == want.keepalive {
			return
		}
	}
	op := kernelOp{kind: opPeer, peer: p, link: o.device.Index, key: p.key, wg: &want}
	if !known && want.keepalive == 0 && o.have.allowed[p.Subnet] != (Key{}) {
		// The peer has a new key. It cannot start a handshake until this node knows the key, and would
		// wait 5 seconds for the next try (REKEY_TIMEOUT), so this node starts it. The only
		// request that does so is the first interval of keepalive packets, which sends one.
		first := want
		first.keepalive = 1
		start := op
		start.wg = &first
		w.add(ctx, start)
	}
	p.endpoint = netip.AddrPortFrom(p.Gateway, p.Port)
	w.add(ctx, op)
}

// networks returns the networks that a WireGuard device sends to the peer.
func (p *Peer) networks() (all [2]netip.Prefix) {
	for _, n := range []netip.Prefix{p.Subnet, p.OtherSubnet} {
		if n.IsValid() {
			all[familyIndex(n)] = n
		}
	}
	return all
}

// routeToWG makes the route to the device. Then it deletes all routes to parts of the pod network that
// other backends made. Before its deletion such a route has precedence over the device's. After it the
// device encrypts the packets, or refuses them if it does not know the peer.
func (o *Kernel) routeToWG(ctx context.Context) error {
	w := o.writer()
	op := kernelOp{kind: opRoute, dst: o.network, protocol: Protocol, priority: o.priority(), hop: hop{Link: int32(o.device.Index)}}
	if o.have.routes[o.network] != op.route() {
		w.add(ctx, op)
		// No other route may be deleted if this one is refused.
		if err := w.flush(ctx); err != nil {
			return err
		}
		if o.have.routes[o.network] != op.route() {
			return fmt.Errorf("%s: %w", &op, nlconn.ErrConflict)
		}
	}
	// The routes of flannel first: they may replace a deleted route of the overlay.
	for r := range o.have.foreign {
		if r.protocol == unix.RTPROT_BOOT && r.via.IsValid() && o.nodes[r.dst] == r.via {
			o.have.surplus = append(o.have.surplus, kernelOp{kind: opRoute, del: true, dst: r.dst, protocol: r.protocol, priority: r.priority, hop: hop{Via: r.via}})
		}
	}
	o.deleteSurplus(ctx, w)
	o.routes().prune(ctx, w, maps.Keys(o.have.routes))
	return w.flush(ctx)
}

// pruneWG removes the peers that no record has.
func (o *Kernel) pruneWG(ctx context.Context) error {
	w := &opWriter{Kernel: o, conn: o.wg.Conn}
	for c := range keyed.Diff(maps.Keys(o.have.wg), keyed.Of(o.have.wg), keyed.Of(o.peers.keys), keyed.Always) {
		w.add(ctx, kernelOp{kind: opPeer, del: true, link: o.device.Index, key: c.Key})
	}
	return w.flush(ctx)
}
