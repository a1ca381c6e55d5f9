// Package dhcpd runs the daemon of the IPAM role dhcp: its flags and its socket.
package dhcpd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/roles/cluster/process"
)

// settings are the daemon's flags.
type settings struct {
	dhcp.Settings
	pidFile string
}

// parseFlags reads the reference's flags, with its defaults.
func parseFlags(args []string) (*settings, error) {
	s := &settings{}
	f := process.NewFlags("dhcp daemon")
	f.StringVar(&s.pidFile, "pidfile", "", "absolute `path` of a file to write the process ID to")
	f.StringVar(&s.HostPrefix, "hostprefix", "", "`path` of the host's root, put before the socket's and the namespaces' paths")
	f.StringVar(&s.Socket, "socketpath", protocol.DefaultSocket, "`path` of the socket to listen on")
	f.BoolVar(&s.Broadcast, "broadcast", false, "ask servers to answer by broadcast")
	f.DurationVar(&s.Timing.Request, "timeout", 10*time.Second, "time after which an exchange with a server begins anew")
	f.DurationVar(&s.Timing.ResendMax, "resendmax", 62*time.Second, "longest time between two messages")
	f.DurationVar(&s.Timing.Resend, "resendtimeout", 208*time.Second, "time after which ADD fails")
	errs, err := process.Parse(f, "keep the leases of containers", "", args)
	if err != nil {
		return nil, err
	}
	if s.Socket == "" {
		s.Socket = protocol.DefaultSocket
	}
	errs = append(errs, process.CheckPaths(map[string]string{"-pidfile": s.pidFile, "-hostprefix": s.HostPrefix, "-socketpath": s.Socket})...)
	for name, d := range map[string]time.Duration{"-timeout": s.Timing.Request, "-resendmax": s.Timing.ResendMax, "-resendtimeout": s.Timing.Resend} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s: %s is not positive", name, d))
		}
	}
	if len(errs) > 0 {
		return nil, roles.Usagef("%w", errors.Join(errs...))
	}
	return s, nil
}

// Run runs the daemon until ctx ends, see dhcp.Serve.
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
	return dhcp.Serve(ctx, h, l, s.Settings)
}

// listen returns the socket that a service manager passed, or makes one. The returned
// function releases the lock that excludes a second daemon.
func (s *settings) listen(passed []*os.File) (net.Listener, func(), error) {
	switch len(passed) {
	case 0:
		return service.Listen(s.HostPrefix + s.Socket)
	case 1:
		l, err := net.FileListener(passed[0])
		if err != nil {
			return nil, nil, fmt.Errorf("listen on the socket of LISTEN_FDS: %w", err)
		}
		if _, ok := l.(*net.UnixListener); !ok {
			return nil, nil, errors.Join(errors.New("the socket of LISTEN_FDS is not a unix socket"), l.Close())
		}
		s.Socket = strings.TrimPrefix(l.Addr().String(), s.HostPrefix)
		return l, func() {}, nil
	}
	return nil, nil, fmt.Errorf("LISTEN_FDS has %d sockets, want 1", len(passed))
}
