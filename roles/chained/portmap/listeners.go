package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops/sockets"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/store"
)

// checkListeners returns an error if a process of the host receives at one of the
// ports: it would silently get no more connections, and a container could take the
// place of the kubelet. A process that starts to listen after the check is not
// noticed.
func checkListeners(ctx context.Context, in *attach.Input, ports []port) error {
	ports = joined(ports, func(port) bool { return true })
	ranges := make([]sockets.PortRange, len(ports))
	for i, p := range ports {
		ranges[i] = sockets.PortRange{Proto: p.protocol, First: uint16(p.port), Last: uint16(p.last)}
	}
	if len(ranges) == 0 {
		return nil
	}
	all, err := sockets.Listeners(ctx, ranges)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(l sockets.Listener) bool {
		takes := func(p port) bool {
			addr := l.Addr
			if l.Dual && p.to.Is4() {
				addr = netip.IPv4Unspecified()
			}
			return p.protocol == l.Proto && p.port <= int(l.Port) && int(l.Port) <= p.last && p.to.Is4() == addr.Is4() && overlap(p.ip, addr)
		}
		return !slices.ContainsFunc(ports, takes)
	})
	if len(all) == 0 {
		return nil
	}
	for i, holders := range sockets.Processes(all) {
		l, who := all[i], "a process"
		// podman's conmon binds the ports of its container, so that no other process
		// does, and accepts no connection. Its arguments have the container's ID.
		if slices.ContainsFunc(holders, func(p sockets.Process) bool { return slices.Contains(p.Args, in.Key.ContainerID) }) {
			continue
		}
		if len(holders) > 0 {
			who = fmt.Sprintf("process %d (%s)", holders[0].PID, holders[0].Name)
		}
		return fmt.Errorf("port %d/%s: %w by %s of the node, which listens on %s: stop that process, use another hostPort, or set hostIP to an address on which it does not listen",
			l.Port, l.Proto, store.ErrTaken, who, netip.AddrPortFrom(l.Addr, l.Port))
	}
	return nil
}
