// Package dhcp is the IPAM role dhcp: addresses from the DHCP servers of the network. It
// calls the daemon of the same name, which leases and renews them.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/cluster/dhcp"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
)

const (
	// checkTime bounds CHECK and STATUS. The daemon answers them without a request to a DHCP server.
	checkTime = 10 * time.Second
	// releaseTime bounds DEL and GC, so that a daemon that does not answer does not block them. It is
	// as long as the wait for locks.
	releaseTime = 30 * time.Second
)

// Role is the table entry of the IPAM role dhcp. run is the main function of its daemon.
func Role(run func(ctx context.Context, h *roles.Host, args []string) error) roles.Role {
	return roles.Role{
		Names:     []string{"dhcp"},
		Kind:      roles.IPAM,
		Summary:   "addresses from DHCP servers, with a daemon that keeps them",
		Reference: "v1.10.0",
		Args:      []string{"K8S_POD_NAMESPACE", "K8S_POD_NAME"},
		Conf:      func() any { return new(protocol.Conf) },
		New:       newHandler,
		Undo:      undoHandler,
		OverLink:  true,
		Run:       run,
		Verbs:     commands,
	}
}

// handler is the role for one network configuration.
type handler struct {
	socket string
	client protocol.Client
}

var (
	_ roles.Checker   = (*handler)(nil)
	_ roles.Collector = (*handler)(nil)
	_ roles.Statuser  = (*handler)(nil)
)

func newHandler(conf []byte) (roles.Handler, error) {
	c, err := protocol.Decode(conf)
	if err != nil {
		return nil, err
	}
	return handlerAt(c.IPAM.DaemonSocketPath), nil
}

// undoHandler needs only the daemon's socket, so it accepts an invalid configuration.
func undoHandler(conf []byte) (roles.Handler, error) {
	c, err := protocol.Decode(conf)
	if c == nil {
		return nil, err
	}
	return handlerAt(c.IPAM.DaemonSocketPath), nil
}

func handlerAt(socket string) *handler {
	return &handler{socket: socket, client: protocol.Client{Socket: socket}}
}

// Add leases an address of each family. A repeated call returns the same addresses.
func (a *handler) Add(ctx context.Context, _ *roles.Host, req *roles.Request) (*roles.Result, error) {
	return a.client.Allocate(ctx, req)
}

// Del releases the addresses. Without a daemon it sends the release itself, because the interface no
// longer exists when the next daemon starts.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	wait, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	err := a.client.Release(wait, req)
	if !errors.Is(err, protocol.ErrNoDaemon) {
		return err
	}
	h.Log.Info("released without the daemon", "error", err)
	return dhcp.Release(ctx, h, a.socket, req.Key())
}

// Check compares prevResult with the daemon's leases.
func (a *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if req.PrevResult == nil {
		return &roles.ConfError{Path: "prevResult", Reason: "is required for CHECK"}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	res, ok, err := a.client.Check(ctx, req)
	if err != nil {
		return err
	}
	if !ok {
		h.Log.Info("the DHCP daemon cannot list its leases, so CHECK does not compare them", "socket", a.socket)
		return nil
	}
	leased, err := attach.Addresses(res)
	if err != nil {
		return err
	}
	prev, err := attach.Addresses(req.PrevResult)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range leased {
		if !slices.ContainsFunc(prev, func(p attach.IPConfig) bool { return p.Address == l.Address }) {
			errs = append(errs, fmt.Errorf("%w: the lease is of %s, prevResult has %s", roles.ErrCheck, l.Address, prefixes(prev)))
		}
	}
	return errors.Join(errs...)
}

func prefixes(all []attach.IPConfig) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range all {
		out = append(out, f.Address)
	}
	return out
}

// GC releases the addresses of the network's attachments that are not valid.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	wait, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	ok, err := a.client.Collect(wait, req.Network, req.Valid)
	if errors.Is(err, protocol.ErrNoDaemon) {
		return dhcp.Collect(ctx, h, a.socket, req)
	}
	if err == nil && !ok {
		h.Log.Info("the DHCP daemon cannot release the leases of absent attachments, so GC keeps them", "socket", a.socket)
	}
	return err
}

// Status reports an error if the daemon does not answer.
func (a *handler) Status(ctx context.Context, _ *roles.Host, _ *roles.Request) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if err := a.client.Ping(ctx); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, err)
	}
	return nil
}
