package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/daemon/dhcp/protocol"
	"github.com/cnibox/cnibox/roles/daemon/process"
)

// settings are the daemon's flags.
type settings struct {
	pidFile, hostPrefix, socket string
	broadcast                   bool
	timing                      timing
}

// parseFlags reads the reference's flags, with its defaults.
func parseFlags(args []string) (*settings, error) {
	s := &settings{}
	f := process.NewFlags("dhcp daemon")
	f.StringVar(&s.pidFile, "pidfile", "", "absolute `path` of a file to write the process ID to")
	f.StringVar(&s.hostPrefix, "hostprefix", "", "`path` of the host's root, put before the socket's and the namespaces' paths")
	f.StringVar(&s.socket, "socketpath", protocol.DefaultSocket, "`path` of the socket to listen on")
	f.BoolVar(&s.broadcast, "broadcast", false, "ask servers to answer by broadcast")
	f.DurationVar(&s.timing.request, "timeout", 10*time.Second, "time after which an exchange with a server begins anew")
	f.DurationVar(&s.timing.resendMax, "resendmax", 62*time.Second, "longest time between two messages")
	f.DurationVar(&s.timing.resend, "resendtimeout", 208*time.Second, "time after which ADD fails")
	errs, err := process.Parse(f, "keep the leases of containers", "", args)
	if err != nil {
		return nil, err
	}
	if s.socket == "" {
		s.socket = protocol.DefaultSocket
	}
	errs = append(errs, process.CheckPaths(map[string]string{"-pidfile": s.pidFile, "-hostprefix": s.hostPrefix, "-socketpath": s.socket})...)
	for name, d := range map[string]time.Duration{"-timeout": s.timing.request, "-resendmax": s.timing.resendMax, "-resendtimeout": s.timing.resend} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s: %s is not positive", name, d))
		}
	}
	if len(errs) > 0 {
		return nil, roles.Usagef("%w", errors.Join(errs...))
	}
	return s, nil
}

// Run runs the daemon: it resumes the recorded leases, listens, and maintains leases until ctx ends.
// The leases stay, and the next daemon resumes them.
func Run(ctx context.Context, h *roles.Host, args []string) error {
	s, err := parseFlags(args)
	if err != nil {
		return err
	}
	l, done, err := s.listen(h.Sockets)
	if err != nil {
		return err
	}
	defer done()
	if s.pidFile != "" {
		if err := os.WriteFile(s.pidFile, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil { //nolint:gosec // it is not secret
			return fmt.Errorf("write -pidfile: %w", err)
		}
		defer os.Remove(s.pidFile) //nolint:errcheck // a stale file does no harm
	}
	d := newDaemon(ctx, h, s.socket, s.timing)
	d.prefix, d.broadcast = s.hostPrefix, s.broadcast
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

// listen returns the socket that a service manager passed, or makes one. The returned
// function releases the lock that excludes a second daemon.
func (s *settings) listen(passed []*os.File) (net.Listener, func(), error) {
	switch len(passed) {
	case 0:
		return process.Listen(s.hostPrefix + s.socket)
	case 1:
		l, err := net.FileListener(passed[0])
		if err != nil {
			return nil, nil, fmt.Errorf("listen on the socket of LISTEN_FDS: %w", err)
		}
		if _, ok := l.(*net.UnixListener); !ok {
			return nil, nil, errors.Join(errors.New("the socket of LISTEN_FDS is not a unix socket"), l.Close())
		}
		s.socket = strings.TrimPrefix(l.Addr().String(), s.hostPrefix)
		return l, func() {}, nil
	}
	return nil, nil, fmt.Errorf("LISTEN_FDS has %d sockets, want 1", len(passed))
}
