package attachment

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops/sockets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// PublishedPorts are ports that an attachment publishes, or wants to publish.
type PublishedPorts struct {
	Owner store.Key
	store.Ports
}

// PortListener is a socket of the node at a port that an attachment publishes. A socket with which the runtime keeps the port
// for the container is none, and neither is one of a client (see sockets.Listeners).
type PortListener struct {
	sockets.Listener
	Published PublishedPorts
	// Process has the socket open. Its PID is 0 if it is unknown.
	Process sockets.Process
}

// KeepsConnections reports whether connections to the socket must not reach the container, which has not asked for the socket's
// address: it is a loopback address, such as a stub resolver's 127.0.0.53, or if listeners are refused any single address.
func (l *PortListener) KeepsConnections(refuses bool) bool {
	return !l.Published.Address.IsValid() && (l.Addr.IsLoopback() || refuses && !l.Addr.IsUnspecified())
}

// At returns the socket's address and port.
func (l *PortListener) At() netip.AddrPort { return netip.AddrPortFrom(l.Addr, l.Port) }

// Who names the process: "process 812 (kubelet)".
func (l *PortListener) Who() string {
	if l.Process.PID == 0 {
		return "a process"
	}
	return fmt.Sprintf("process %d (%s)", l.Process.PID, l.Process.Name)
}

// PortListeners lists the sockets at published ports.
func PortListeners(ctx context.Context, published []PublishedPorts) ([]PortListener, error) {
	ranges := make([]sockets.PortRange, len(published))
	for i, p := range published {
		ranges[i] = sockets.PortRange{Proto: p.Protocol, First: p.First, Last: p.Last}
	}
	if len(ranges) == 0 {
		return nil, nil
	}
	found, err := sockets.Listeners(ctx, ranges)
	if err != nil {
		return nil, err
	}
	var all []PortListener
	var open []sockets.Listener
	for _, l := range found {
		for _, p := range published {
			if p.meets(l) {
				all, open = append(all, PortListener{Listener: l, Published: p}), append(open, l)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	holders := sockets.Processes(open)
	var real []PortListener
	for i, l := range all {
		if isPlaceholder(l.Published.Owner.ContainerID, holders[i]) {
			continue
		}
		if len(holders[i]) > 0 {
			l.Process = holders[i][0]
		}
		real = append(real, l)
	}
	return real, nil
}

// meets reports whether a connection can match both the ports and the socket.
func (p *PublishedPorts) meets(l sockets.Listener) bool {
	is4 := p.Family == "IPv4"
	addr := l.Addr
	if l.Dual && is4 {
		addr = netip.IPv4Unspecified()
	}
	return p.Protocol == l.Proto && p.First <= l.Port && l.Port <= p.Last && addr.Is4() == is4 && !addr.IsMulticast() && // which is not the node's
		(!p.Address.IsValid() || addr.IsUnspecified() || p.Address == addr)
}

// isPlaceholder reports whether one of the processes that have a socket open only keeps the port for the container, so that no
// other process binds to it. It accepts no connection. podman's is conmon, whose arguments have the container's ID.
func isPlaceholder(containerID string, holders []sockets.Process) bool {
	return slices.ContainsFunc(holders, func(p sockets.Process) bool {
		return slices.Contains(p.Args, containerID) || slices.Equal(p.Args, []string{"sleep", "infinity"}) && p.PID == nerdctlReserver(containerID)
	})
}

// nerdctlDir has nerdctl's file NAMESPACE/ID/port-reserver.pid for each container with published ports, since nerdctl 2.1.6. nerdctl
// calls CNI with the container ID NAMESPACE-ID.
const nerdctlDir = "/run/nerdctl"

// nerdctlReserver returns the number of the process with which nerdctl keeps a container's ports, or 0. The file can be older than
// the process of that number, so the caller compares its command.
func nerdctlReserver(containerID string) int {
	i := strings.LastIndexByte(containerID, '-')
	if i < 0 || !roles.IsName(containerID[:i]) || !roles.IsName(containerID[i+1:]) {
		return 0
	}
	dir, err := os.OpenRoot(nerdctlDir)
	if err != nil {
		return 0 // the node does not use nerdctl
	}
	defer dir.Close()
	const longestNumber = 20
	raw, err := smallfile.ReadTrusted(dir, filepath.Join(containerID[:i], containerID[i+1:], "port-reserver.pid"), longestNumber)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(raw))) // 0 if it is no number
	return pid
}
