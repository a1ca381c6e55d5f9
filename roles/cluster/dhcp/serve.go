package dhcp

import (
	"context"
	"net"
	"os"

	"github.com/cnibox/cnibox/roles"
)

// Settings are those of a daemon.
type Settings struct {
	// HostPrefix is the path of the host's root, which precedes the paths of namespaces. Socket is the socket's path on the host.
	HostPrefix, Socket string
	// Broadcast asks servers to answer by broadcast.
	Broadcast bool
	Timing    Timing
}

// Serve resumes the recorded leases of a socket, answers its clients, and maintains leases until ctx ends. The leases stay, and the next
// daemon resumes them.
func Serve(ctx context.Context, h *roles.Host, l net.Listener, s Settings) (err error) {
	d := newDaemon(ctx, h, s.Socket, s.Timing)
	d.prefix, d.broadcast = s.HostPrefix, s.Broadcast
	d.node, err = nodeID(ctx, h.Store)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := d.load(ctx); err != nil {
		return err
	}
	h.Log.Info("listening", "socket", l.Addr().String())
	return d.server(uint32(os.Geteuid())).Serve(ctx, l)
}
