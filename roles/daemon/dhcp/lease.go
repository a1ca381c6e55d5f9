package dhcp

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/daemon/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// resumeSpread keeps the leases that a daemon takes up from asking all at once.
const resumeSpread = time.Second

// client speaks the protocol of one address family on an open interface.
type client interface {
	acquire(ctx context.Context, want netip.Addr, only bool) (*store.DHCPGrant, error)
	renew(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error)
	rebind(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error)
	confirm(ctx context.Context, g *store.DHCPGrant) (*store.DHCPGrant, error)
	release(ctx context.Context, g *store.DHCPGrant) error
	close()
}

// lease is an attachment's addresses. One goroutine keeps each; none of them
// holds a thread, a socket or the namespace while it waits.
type lease struct {
	d     *daemon
	place place
	who   *who
	log   *slog.Logger

	cancel  context.CancelFunc
	keepers sync.WaitGroup

	// mu guards what follows; saving is done under it.
	mu  sync.Mutex
	rec store.DHCPLease
	// replaces are the records of the identity's leases of an earlier boot, which
	// go when this one is on record.
	replaces []store.Key
	// ended: the record is deleted, or about to be.
	ended bool
}

// with opens the interface for one family and closes it afterwards.
func (l *lease) with(ctx context.Context, family string, f func(*visit, client) error) error {
	v, err := l.place.open(ctx)
	if err != nil {
		return err
	}
	defer v.close()
	var c client
	if family == protocol.IPv6 {
		c, err = newClient6(ctx, v, l.who, l.d.timing)
	} else {
		c, err = newClient4(v, l.who, l.d.timing, l.d.broadcast)
	}
	if err != nil {
		return err
	}
	defer c.close()
	return f(v, c)
}

// start keeps the addresses from now on. With resumed they are from another
// life of the daemon.
func (l *lease) start(ctx context.Context, resumed bool) {
	ctx, l.cancel = context.WithCancel(ctx)
	for i := range l.rec.Grants {
		l.keepers.Go(func() {
			if resumed {
				l.resume(ctx, i)
			}
			l.keep(ctx, i)
		})
	}
}

// stop ends the keeping; the lease stays.
func (l *lease) stop() {
	if l.cancel != nil {
		l.cancel()
	}
	l.keepers.Wait()
}

// grant is a copy.
func (l *lease) grant(i int) store.DHCPGrant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rec.Grants[i]
}

// keep renews an address before it expires, for as long as ctx lasts or the
// interface is there (RFC 2131, section 4.4.5; RFC 8415, section 18.2).
func (l *lease) keep(ctx context.Context, i int) {
	for ctx.Err() == nil {
		g := l.grant(i)
		now := time.Now()
		var err error
		var until time.Time
		switch {
		case g.Withdrawn:
			until = now.Add(2 * l.d.timing.resendMax)
			err = l.regain(ctx, i, g)
		case g.Expire.IsZero():
			<-ctx.Done()
			return
		case now.Before(g.Renew):
			sleep(ctx, g.Renew.Sub(now))
			continue
		case now.Before(g.Rebind):
			until = g.Rebind
			err = l.extend(ctx, i, until, client.renew)
		case now.Before(g.Expire):
			until = g.Expire
			err = l.extend(ctx, i, until, client.rebind)
		default:
			l.log.Warn("the lease ended, taking the address off", "address", g.Address, "expired", g.Expire)
			err = l.withdraw(ctx, i)
			until = now.Add(2 * l.d.timing.resendMax)
		}
		if !l.goOn(ctx, i, err, until) {
			return
		}
	}
}

// goOn judges how a try ended and waits for the next; false ends the keeping.
func (l *lease) goOn(ctx context.Context, i int, err error, until time.Time) bool {
	g := l.grant(i)
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		return true
	case errors.Is(err, errGone):
		l.log.Info("the container is gone", "address", g.Address, "error", err)
		l.d.abandon(l)
		return false
	case errors.Is(err, errRefused) && !g.Withdrawn:
		l.log.Warn("the lease was ended by the server, taking the address off", "address", g.Address, "error", err)
		if err = l.withdraw(ctx, i); err == nil {
			return true
		}
		l.log.Warn("the address is still on", "address", g.Address, "error", err)
	case g.Withdrawn:
		l.log.Warn("the address could not be leased again", "address", g.Address, "error", err)
	default:
		l.log.Warn("the lease could not be extended", "address", g.Address, "expires", g.Expire, "error", err)
	}
	return sleep(ctx, pause(time.Until(until)))
}

// pause is the time to the next try: half of what is left, at least a minute
// (RFC 2131, section 4.4.5), and not more than is left.
func pause(left time.Duration) time.Duration {
	return max(min(left, max(left/2, time.Minute)), 0)
}

// extend asks for more time and notes the answer.
func (l *lease) extend(ctx context.Context, i int, until time.Time, ask func(client, context.Context, *store.DHCPGrant) (*store.DHCPGrant, error)) error {
	ctx, cancel := context.WithDeadlineCause(ctx, until, errNoAnswer)
	defer cancel()
	g := l.grant(i)
	var extended *store.DHCPGrant
	err := l.with(ctx, g.Family, func(_ *visit, c client) (err error) {
		extended, err = ask(c, ctx, &g)
		return err
	})
	if err != nil {
		return ended(ctx, err)
	}
	extended.Address, extended.Result = g.Address, g.Result // the runtime is told of no others
	l.log.Debug("lease extended", "address", g.Address, "expires", extended.Expire)
	return l.note(context.WithoutCancel(ctx), i, *extended)
}

// resume makes sure of an address that nobody looked after for a time: the
// server is asked whether it is still ours (INIT-REBOOT). Without an answer the
// lease goes on as it was (RFC 2131, section 3.2).
func (l *lease) resume(ctx context.Context, i int) {
	g := l.grant(i)
	if g.Withdrawn || !sleep(ctx, rand.N(resumeSpread)) {
		return
	}
	if !g.Expire.IsZero() && time.Now().After(g.Expire) {
		return
	}
	err := l.extend(ctx, i, time.Now().Add(l.d.timing.request), client.confirm)
	if err != nil && !errors.Is(err, errNoAnswer) {
		l.goOn(ctx, i, err, time.Now())
	}
}

// withdraw takes the address off the interface.
func (l *lease) withdraw(ctx context.Context, i int) error {
	g := l.grant(i)
	v, err := l.place.open(ctx)
	if err != nil {
		return err
	}
	defer v.close()
	addr := &netops.Addr{In: netops.Container, Link: v.link.Name, Address: g.Address}
	del := netops.Change{Do: netops.Step{Verb: netops.VerbAdd, Object: addr}, Undo: &netops.Step{Verb: netops.VerbDel, Object: addr}}
	if err := v.net.Undo(ctx, []netops.Change{del}, v.ns); err != nil {
		return err
	}
	g.Withdrawn = true
	return l.note(ctx, i, g)
}

// regain tries to get the very address again: the container's runtime was told
// of no other. Then address and routes are put back.
func (l *lease) regain(ctx context.Context, i int, g store.DHCPGrant) error {
	return l.with(ctx, g.Family, func(v *visit, c client) error {
		again, err := c.acquire(ctx, g.Address.Addr(), true)
		if err != nil {
			return err
		}
		again.Address, again.Result = g.Address, g.Result
		res, err := decodeResult(again)
		if err != nil {
			return err
		}
		objects := []netops.Object{&netops.Addr{In: netops.Container, Shared: true, Link: v.link.Name, Address: again.Address}}
		routes, err := attach.Routes(res, v.link.Name)
		if err != nil {
			return err
		}
		for _, o := range routes {
			if r, ok := o.(*netops.Route); ok {
				r.Shared = true // ensured: another may have put it back
			}
			objects = append(objects, o)
		}
		if err := v.ensure(ctx, objects...); err != nil {
			return err
		}
		l.log.Warn("the address is leased again", "address", again.Address)
		return l.note(ctx, i, *again)
	})
}

// note stores a grant in place of the old one.
func (l *lease) note(ctx context.Context, i int, g store.DHCPGrant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rec.Grants[i] = g
	return l.saveLocked(ctx)
}

func (l *lease) save(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saveLocked(ctx)
}

func (l *lease) saveLocked(ctx context.Context) error {
	if l.ended {
		return nil
	}
	l.rec.Updated = l.d.host.Now()
	err := l.d.host.Store.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		for _, key := range l.replaces {
			if err := tx.DeleteDHCPLease(key); err != nil {
				return err
			}
		}
		return tx.PutDHCPLease(&l.rec)
	})
	if err == nil {
		l.replaces = nil
	}
	return err
}

// giveBack tells the servers that the addresses are not needed any more. They
// would find out when the leases end: a failure is only logged.
func (l *lease) giveBack(ctx context.Context) {
	var wg sync.WaitGroup
	for _, g := range l.rec.Grants {
		if g.Withdrawn || (!g.Expire.IsZero() && time.Now().After(g.Expire)) {
			continue
		}
		wg.Go(func() {
			err := l.with(ctx, g.Family, func(_ *visit, c client) error { return c.release(ctx, &g) })
			if errors.Is(err, errGone) && g.Family == protocol.IPv4 {
				err = l.who.releaseFromHost(ctx, &g)
			}
			if err != nil {
				l.log.Warn("the address could not be given back", "address", g.Address, "error", err)
				return
			}
			l.log.Info("released", "address", g.Address)
		})
	}
	wg.Wait()
}

// result is the CNI result of all families.
func (l *lease) result() (*roles.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	res := &roles.Result{CNIVersion: roles.ResultVersion}
	for i := range l.rec.Grants {
		r, err := decodeResult(&l.rec.Grants[i])
		if err != nil {
			return nil, err
		}
		res.IPs = append(res.IPs, r.IPs...)
		res.Routes = append(res.Routes, r.Routes...)
		res.DNS.Nameservers = append(res.DNS.Nameservers, r.DNS.Nameservers...)
		res.DNS.Search = append(res.DNS.Search, r.DNS.Search...)
		if res.DNS.Domain == "" {
			res.DNS.Domain = r.DNS.Domain
		}
	}
	return res, nil
}

// over is the first address that the lease does not hold any more.
func (l *lease) over() (netip.Prefix, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.rec.Grants {
		if g.Withdrawn {
			return g.Address, true
		}
	}
	return netip.Prefix{}, false
}

// sleep waits; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
