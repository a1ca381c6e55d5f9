package overlay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// A failed peer is tried again after minRetry. Each failure doubles the delay, up
// to maxRetry.
const (
	minRetry = time.Second
	maxRetry = time.Minute
)

// peerEntry is a peer, its kernel objects, and the result of the last try.
type peerEntry struct {
	Peer
	// list is the number of the last list of peers that has the peer.
	list uint64
	// tunnel and hop describe the peer's kernel objects, with MAC if there is a tunnel. They are valid
	// if invalid is nil.
	tunnel bool
	// done reports whether all of the peer's objects are in the kernel, as far as
	// known.
	done bool
	hop  hop
	// key is the peer's public key with WireGuard, and endpoint the address that the kernel was given
	// last for the peer.
	key      Key
	endpoint netip.AddrPort
	// invalid is the fault that prevents any try.
	invalid error
	// refused is the kernel's error in the last try.
	refused error

	state    State
	since    time.Time
	failures int
	retryAt  time.Time
}

// peerIndex finds peers by their unique properties.
type peerIndex struct {
	// firsts has the peers by the first address of their subnet, which is the
	// tunnel's gateway.
	firsts map[netip.Addr]*peerEntry
	macs   map[MAC]*peerEntry
	keys   map[Key]*peerEntry
	names  map[string]*peerEntry
}

// subnet returns the peer with a subnet.
func (x *peerIndex) subnet(p netip.Prefix) (one *peerEntry, has bool) {
	one, has = x.firsts[p.Addr()]
	return one, has && one.Subnet == p
}

// containing returns the peer whose subnet contains a network, or nil.
func (x *peerIndex) containing(p netip.Prefix) *peerEntry {
	for bits := p.Bits(); bits > 0; bits-- {
		up, _ := p.Addr().Prefix(bits)
		if one, has := x.subnet(up); has {
			return one
		}
	}
	return nil
}

// gateway returns the peer whose tunnel has a gateway address.
func (x *peerIndex) gateway(a netip.Addr) (one *peerEntry, has bool) {
	one, has = x.firsts[a]
	return one, has && one.tunnel
}

func newPeerIndex(n int) *peerIndex {
	return &peerIndex{
		firsts: make(map[netip.Addr]*peerEntry, n), macs: make(map[MAC]*peerEntry, n), keys: map[Key]*peerEntry{}, names: make(map[string]*peerEntry, n),
	}
}

// add registers the peer's subnet, and its MAC or key. If another peer has registered one of
// them, add fails and that peer keeps it.
func (x *peerIndex) add(p *peerEntry) error {
	if other := x.firsts[p.Subnet.Addr()]; other != nil {
		return fmt.Errorf("subnet %s: %w: %q has %s", p.Subnet, nlconn.ErrConflict, other.Name, other.Subnet)
	}
	if p.tunnel {
		if other := x.macs[p.MAC]; other != nil {
			return fmt.Errorf("MAC %s: %w: it is %q's too", p.MAC, nlconn.ErrConflict, other.Name)
		}
		x.macs[p.MAC] = p
	}
	if p.key != (Key{}) {
		if other := x.keys[p.key]; other != nil {
			return fmt.Errorf("public key %s: %w: it is %q's too", p.key, nlconn.ErrConflict, other.Name)
		}
		x.keys[p.key] = p
	}
	x.firsts[p.Subnet.Addr()] = p
	return nil
}

// resolve computes the peer's kernel objects.
func (o *Kernel) resolve(ctx context.Context, p *peerEntry) error {
	p.tunnel, p.hop, p.key = false, hop{}, Key{}
	is6 := o.family != rtnl.Family(netip.IPv4Unspecified())
	switch {
	case !p.Subnet.IsValid() || p.Subnet != p.Subnet.Masked() || p.Subnet.Addr().Is6() != is6 || p.Subnet.Bits() == 0:
		p.invalid = fmt.Errorf("subnet %q: %w: it is not a network of the address family", p.Subnet, nlconn.ErrInvalid)
		return nil
	case p.OtherSubnet.IsValid() && (p.OtherSubnet != p.OtherSubnet.Masked() || p.OtherSubnet.Addr().Is6() == is6 || p.OtherSubnet.Bits() == 0):
		p.invalid = fmt.Errorf("subnet %q: %w: it is not a network of the other address family", p.OtherSubnet, nlconn.ErrInvalid)
		return nil
	case !p.Gateway.IsValid() || p.Gateway.Is6() != is6 && !p.OtherSubnet.IsValid() || p.Gateway.IsUnspecified() || p.Gateway.IsMulticast() || p.Gateway.Zone() != "":
		p.invalid = fmt.Errorf("address %q: %w: it is not a node address of the address family", p.Gateway, nlconn.ErrInvalid)
		return nil
	}
	p.invalid = nil
	if o.isWireGuard() {
		p.key, p.invalid = ParseKey(p.Key)
		switch {
		case p.invalid != nil:
		case p.key == o.ownKey:
			p.invalid = fmt.Errorf("public key %s: %w: it is this node's", p.key, nlconn.ErrConflict)
		case p.Port == 0:
			p.invalid = fmt.Errorf("port 0: %w: it is not a UDP port", nlconn.ErrInvalid)
		}
		return o.findLink(ctx, p.Gateway)
	}
	if p.Direct || o.device.Index == 0 {
		h, ok, err := o.directHop(ctx, p.Gateway)
		if err != nil {
			return err
		}
		switch {
		case ok:
			p.hop = h
			return nil
		case o.device.Index == 0:
			p.invalid = fmt.Errorf("address %s: %w: it is on none of this host's links; without tunnels every node must be", p.Gateway, nlconn.ErrNotExist)
			return nil
		}
	}
	if !p.MAC.isUnicast() {
		p.invalid = fmt.Errorf("MAC %q: %w: it is not a unicast MAC address", p.MAC, nlconn.ErrInvalid)
		return nil
	}
	p.tunnel, p.hop = true, hop{Via: p.Subnet.Addr(), Link: int32(o.device.Index), OnLink: true}
	return nil
}

// directHop returns the result of lookUpGateway. It caches the result until routes,
// links or addresses change.
func (o *Kernel) directHop(ctx context.Context, gateway netip.Addr) (hop, bool, error) {
	if h, known := o.direct[gateway]; known {
		return h, h.Link != 0, nil
	}
	h, ok, err := o.lookUpGateway(ctx, gateway)
	if err != nil {
		return hop{}, false, err
	}
	if !ok {
		h = hop{}
	}
	o.direct[gateway] = h
	return h, ok, nil
}

// lookUpGateway asks the kernel for the route to a gateway. ok is false if the gateway
// is not on one of the host's links.
func (o *Kernel) lookUpGateway(ctx context.Context, gateway netip.Addr) (h hop, ok bool, err error) {
	var r rtnl.Route
	err = o.conn.Ask(ctx, rtnl.RouteMessage(gateway, netip.Addr{}, 0, 0), func(_ uint16, data []byte) error {
		routes, err := rtnl.ParseRouteOf(data, unix.RTN_UNICAST)
		if len(routes) == 1 {
			r = routes[0]
		}
		return err
	})
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return hop{}, false, nil // no route, or one that refuses
	case err != nil:
		return hop{}, false, nlconn.Explain(err, fmt.Sprintf("route to %s", gateway))
	}
	return hop{Via: gateway, Link: int32(r.Link)}, r.Link != 0 && !r.Via.IsValid(), nil
}

// findLink looks up the link to the gateway of a WireGuard peer, which can be behind a router, for peerLinks. The
// result is cached until routes, links or addresses change.
func (o *Kernel) findLink(ctx context.Context, gateway netip.Addr) error {
	if _, known := o.direct[gateway]; known {
		return nil
	}
	h, _, err := o.lookUpGateway(ctx, gateway)
	if err == nil {
		o.direct[gateway] = h
	}
	return err
}

// peerLinks returns the indexes of the links to the peers of a WireGuard device.
func (o *Kernel) peerLinks() (links []int) {
	if !o.isWireGuard() {
		return nil
	}
	for _, p := range o.order {
		link := int(o.direct[p.Gateway].Link)
		if link != 0 && link != o.device.Index && !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return links
}

// due reports whether the peer must be tried now.
func (p *peerEntry) due(now time.Time) bool {
	return p.invalid == nil && (p.state != Failed || !now.Before(p.retryAt))
}

// recordResult sets the state after a try.
func (p *peerEntry) recordResult(now time.Time) {
	was := p.state
	switch {
	case p.invalid != nil:
		p.state, p.retryAt, p.failures = Failed, time.Time{}, 0
	case p.refused != nil:
		p.state = Failed
		wait := min(minRetry<<min(p.failures, 10), maxRetry)
		// Choose a random delay, so that peers that failed together are not tried
		// again together.
		p.retryAt = now.Add(wait + rand.N(wait/4))
		p.failures++
	default:
		p.state, p.retryAt, p.failures, p.done = Programmed, time.Time{}, 0, true
	}
	if p.state != was {
		p.since = now
	}
}

func (p *peerEntry) err() error {
	if p.invalid != nil {
		return p.invalid
	}
	return p.refused
}
