package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/netrpc"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// server returns the server of the daemon's methods. self is the daemon's user.
func (d *daemon) server(self uint32) *netrpc.Server {
	args := func() any { return new(protocol.Args) }
	return &netrpc.Server{
		Log: d.host.Log, Code: codeOf,
		Admit: func(c *net.UnixConn) error { return admit(c, self) },
		Methods: map[string]netrpc.Method{
			protocol.MethodAllocate: {Args: args, Call: func(ctx context.Context, a any) (any, func(), error) {
				return d.serveAllocate(ctx, a.(*protocol.Args))
			}},
			protocol.MethodRelease: {Args: args, Call: func(ctx context.Context, a any) (any, func(), error) {
				return protocol.None{}, nil, d.serveRelease(ctx, a.(*protocol.Args))
			}},
			protocol.MethodCheck: {Args: args, Call: func(_ context.Context, a any) (any, func(), error) {
				res, err := d.serveCheck(a.(*protocol.Args))
				return res, nil, err
			}},
			protocol.MethodCollect: {Args: func() any { return new(protocol.Collection) }, Call: func(ctx context.Context, a any) (any, func(), error) {
				c := a.(*protocol.Collection)
				return protocol.None{}, nil, d.collect(ctx, c.Network, c.Valid)
			}},
		},
	}
}

// codeOf returns an error's code on the wire.
func codeOf(err error) uint64 {
	if code := protocol.Code(err); code != 0 {
		return code
	}
	if errors.Is(err, errNoAnswer) || errors.Is(err, errRefused) || errors.Is(err, store.ErrBusy) {
		return protocol.CodeTryAgain
	}
	return 0
}

// admit accepts root and the daemon's own user. It does not depend on the socket's mode, which an
// operator may change, because a client can request addresses for any container's interface.
func admit(c *net.UnixConn, self uint32) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		return err
	}
	if cred.Uid != 0 && cred.Uid != self {
		return fmt.Errorf("user %d (process %d) is not root", cred.Uid, cred.Pid)
	}
	return nil
}

// keyOf returns the attachment of a call. It reads only the name of the configuration,
// because the rest may have changed since ADD.
func keyOf(in *protocol.Args) (store.Key, error) {
	var c roles.NetConf
	if err := roles.Decode(in.StdinData, &c); err != nil {
		return store.Key{}, err
	}
	return store.Key{Network: c.Name, ContainerID: in.ContainerID, IfName: in.IfName}, nil
}

// serveAllocate leases addresses, or returns those that the attachment has, as the
// reference's CHECK expects. undo releases only addresses that this call leased.
func (d *daemon) serveAllocate(ctx context.Context, in *protocol.Args) (_ *roles.Result, undo func(), err error) {
	if _, err := protocol.Decode(in.StdinData); err != nil {
		return nil, nil, err
	}
	key, err := keyOf(in)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := d.lock(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	at, v, err := openPlace(ctx, d.prefix+in.Netns, in.IfName)
	if err != nil {
		return nil, nil, err
	}
	defer v.close()
	if l := d.find(key); l != nil {
		_, over := l.withdrawn()
		if l.place.netns.Dev == at.netns.Dev && l.place.netns.Inode == at.netns.Inode && !over {
			res, err := l.result()
			return res, nil, err
		}
		if err := d.end(ctx, l); err != nil { // of an earlier namespace of the container
			return nil, nil, err
		}
	}
	if err := v.up(ctx); err != nil {
		return nil, nil, err
	}
	res, err := d.allocate(ctx, store.DHCPLease{Owner: key, Netns: at.netns, Link: at.index, Args: in.Args, Conf: in.StdinData})
	return res, func() { d.releaseUndelivered(key) }, err
}

// allocate leases addresses for a new attachment.
func (d *daemon) allocate(ctx context.Context, rec store.DHCPLease) (*roles.Result, error) {
	rec.BootID, rec.Socket = d.host.Store.BootID(), d.socket
	rec.Created = d.host.Now()
	l, err := d.newLease(rec)
	if err != nil {
		return nil, err
	}
	var want map[string]netip.Addr
	want, l.replaces = d.formerAddresses(l.rec.Identity)
	d.addIdentity(l)
	if err := l.acquire(ctx, want); err != nil {
		if d.removeIdentity(l) {
			l.releaseAll(context.WithoutCancel(ctx))
		}
		l.log.Info("gave up", "error", err)
		return nil, fmt.Errorf("lease an address for %q: %w", rec.Owner.IfName, err)
	}
	res, err := l.result()
	if err == nil {
		err = l.save(context.WithoutCancel(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, d.end(context.WithoutCancel(ctx), l))
	}
	for _, g := range l.rec.Grants {
		l.log.Info("leased", "address", g.Address, "server", g.Server, "expires", g.Expire)
	}
	d.keep(l, false)
	return res, nil
}

// releaseUndelivered ends a lease whose client left before the answer.
func (d *daemon) releaseUndelivered(key store.Key) {
	if err := d.release(d.ctx, key); err != nil {
		d.host.Log.Warn("a lease stays, although its client left before the answer", "network", key.Network, "container", key.ContainerID, "error", err)
	}
}

func (d *daemon) serveRelease(ctx context.Context, in *protocol.Args) error {
	key, err := keyOf(in)
	if err != nil {
		return err
	}
	return d.release(ctx, key)
}

// serveCheck returns the addresses of an attachment.
func (d *daemon) serveCheck(in *protocol.Args) (*roles.Result, error) {
	key, err := keyOf(in)
	if err != nil {
		return nil, err
	}
	l := d.find(key)
	if l == nil {
		return nil, fmt.Errorf("%w: interface %q of container %q on network %q has no DHCP lease", roles.ErrCheck, key.IfName, key.ContainerID, key.Network)
	}
	if addr, over := l.withdrawn(); over {
		return nil, fmt.Errorf("%w: the DHCP lease of %s has ended", roles.ErrCheck, addr)
	}
	return l.result()
}
