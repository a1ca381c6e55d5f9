package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// socket is the address of a socket of the node.
type socket struct {
	Protocol string
	At       netip.AddrPort
}

// checkListeners decides what happens to the sockets of the node at the ports. It returns those that keep their connections. For
// another one it returns an error if the role refuses listeners: the process would silently get no more connections, and a
// tenant's container could take the place of the kubelet. Otherwise the container gets the connections, as with the reference
// plugin. A process that starts to listen after the check is not noticed.
func (r *role) checkListeners(ctx context.Context, h *roles.Host, in *attach.Input, ports []port) (kept []socket, err error) {
	kept, others, err := r.listeners(ctx, h, in, ports)
	for _, l := range others {
		if r.conf.refusesListeners(in.Pod) {
			return nil, fmt.Errorf("port %d/%s: %w by %s of the node, which listens on %s: stop that process, use another hostPort, set hostIP to an address on which it does not listen, or set portmap's key refuseListeners to false",
				l.Port, l.Proto, store.ErrTaken, l.Who(), l.At())
		}
		h.Log.Warn("the container gets the connections to a port on which a process of the node listens",
			"network", in.Key.Network, "container", in.Key.ContainerID, "port", fmt.Sprintf("%d/%s", l.Port, l.Proto), "listener", l.Who(), "address", l.At())
	}
	return kept, err
}

// listeners lists the sockets of the node at the ports: those that keep their connections, and others. It logs which addresses the
// container does not get.
func (r *role) listeners(ctx context.Context, h *roles.Host, in *attach.Input, ports []port) (kept []socket, others []attachment.PortListener, err error) {
	var published []attachment.PublishedPorts
	for _, p := range joined(ports, func(port) bool { return true }) {
		published = append(published, attachment.PublishedPorts{Owner: in.Key, Ports: p.claim()})
	}
	all, err := attachment.PortListeners(ctx, published)
	for _, l := range all {
		s := socket{l.Proto, l.At()}
		switch {
		case !l.KeepsConnections(r.conf.refusesListeners(in.Pod)):
			others = append(others, l)
		case !slices.Contains(kept, s): // several sockets can share an address
			kept = append(kept, s)
			if !l.Addr.IsLoopback() {
				h.Log.Warn("a process of the node keeps the connections to its address, and the container gets those to the other addresses",
					"network", in.Key.Network, "container", in.Key.ContainerID, "port", fmt.Sprintf("%d/%s", l.Port, l.Proto), "listener", l.Who(), "address", l.At())
			}
		}
	}
	return kept, others, err
}

// keptPorts are ports of one address that are forwarded to that address itself: their sockets keep the connections that a mapping
// of all addresses would take. In a map, an entry of one address comes before that of all addresses.
func keptPorts(kept []socket, p port) (all []port) {
	for _, s := range kept {
		n := int(s.At.Port())
		if !p.ip.IsValid() && s.Protocol == p.protocol && s.At.Addr().Is4() == p.to.Is4() && p.port <= n && n <= p.last {
			all = append(all, port{protocol: s.Protocol, port: n, last: n, ip: s.At.Addr(), to: s.At.Addr(), toPort: n})
		}
	}
	return all
}
