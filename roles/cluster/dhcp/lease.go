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
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/protocol"
	"github.com/cnibox/cnibox/store"
)

// resumeSpread is the time over which a starting daemon distributes its first requests.
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

// lease is an attachment's addresses. One goroutine renews each address. It holds no
// thread, socket or namespace while it waits.
type lease struct {
	d       *daemon
	place   place
	profile *profile
	log     *slog.Logger

	cancel  context.CancelFunc
	keepers sync.WaitGroup

	// mu guards the fields below, and is held while they are saved.
	mu  sync.Mutex
	rec store.DHCPLease
	// replaces are the keys of the identity's records of an earlier boot, which are
	// deleted when this lease is recorded.
	replaces []store.Key
	// ended means that the record is deleted or will be.
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
		c, err = newClient6(ctx, v, l.profile, l.d.timing)
	} else {
		c, err = newClient4(v, l.profile, l.d.timing, l.d.broadcast)
	}
	if err != nil {
		return err
	}
	defer c.close()
	return f(v, c)
}

// start renews the addresses from now on. With resumed an earlier process of the daemon
// leased them.
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

// stop ends the renewal; the lease stays.
func (l *lease) stop() {
	if l.cancel != nil {
		l.cancel()
	}
	l.keepers.Wait()
}

// grant returns a copy of a grant.
func (l *lease) grant(i int) store.DHCPGrant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rec.Grants[i]
}

// keep renews an address before it expires, until ctx ends or the interface no longer exists (RFC
// 2131, section 4.4.5; RFC 8415, section 18.2).
func (l *lease) keep(ctx context.Context, i int) {
	for ctx.Err() == nil {
		g := l.grant(i)
		now := time.Now()
		var err error
		var until time.Time
		switch {
		case g.Withdrawn:
			until = now.Add(2 * l.d.timing.ResendMax)
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
			l.log.Warn("the lease ended, removing the address", "address", g.Address, "expired", g.Expire)
			err = l.withdraw(ctx, i)
			until = now.Add(2 * l.d.timing.ResendMax)
		}
		if !l.handleAttempt(ctx, i, err, until) {
			return
		}
	}
}

// handleAttempt handles the outcome of an attempt and waits for the next one. It reports
// whether the renewal goes on.
func (l *lease) handleAttempt(ctx context.Context, i int, err error, until time.Time) bool {
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
		l.log.Warn("the server ended the lease, removing the address", "address", g.Address, "error", err)
		if err = l.withdraw(ctx, i); err == nil {
			return true
		}
		l.log.Warn("the address could not be removed", "address", g.Address, "error", err)
	case g.Withdrawn:
		l.log.Warn("the address could not be leased again", "address", g.Address, "error", err)
	default:
		l.log.Warn("the lease could not be extended", "address", g.Address, "expires", g.Expire, "error", err)
	}
	return sleep(ctx, pause(time.Until(until)))
}

// pause returns the time until the next attempt: half of the remaining time, but at
// least a minute (RFC 2131, section 4.4.5), and at most the remaining time.
func pause(left time.Duration) time.Duration {
	return max(min(left, max(left/2, time.Minute)), 0)
}

// extend requests an extension and records the answer.
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
	extended.Address, extended.Result = g.Address, g.Result // the runtime has only these
	l.log.Debug("lease extended", "address", g.Address, "expires", extended.Expire)
	return l.setGrant(context.WithoutCancel(ctx), i, *extended)
}

// resume queries the server whether an address is still leased to the container (INIT-REBOOT),
// because no daemon renewed it for a time. Without an answer the lease is unchanged (RFC 2131,
// section 3.2).
func (l *lease) resume(ctx context.Context, i int) {
	g := l.grant(i)
	if g.Withdrawn || !sleep(ctx, rand.N(resumeSpread)) {
		return
	}
	if !g.Expire.IsZero() && time.Now().After(g.Expire) {
		return
	}
	err := l.extend(ctx, i, time.Now().Add(l.d.timing.Request), client.confirm)
	if err != nil && !errors.Is(err, errNoAnswer) {
		l.handleAttempt(ctx, i, err, time.Now())
	}
}

// withdraw removes the address from the interface.
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
	return l.setGrant(ctx, i, g)
}

// regain leases the same address again and restores address and routes. Another address would be
// unknown to the runtime.
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
				r.Shared = true // ensured: another grant may have restored it
			}
			objects = append(objects, o)
		}
		if err := v.ensure(ctx, objects...); err != nil {
			return err
		}
		l.log.Warn("the address is leased again", "address", again.Address)
		return l.setGrant(ctx, i, *again)
	})
}

// setGrant replaces a grant and saves the record.
func (l *lease) setGrant(ctx context.Context, i int, g store.DHCPGrant) error {
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

// releaseAll releases the addresses. A failure is only logged, because the leases
// expire in any case.
func (l *lease) releaseAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, g := range l.rec.Grants {
		if g.Withdrawn || (!g.Expire.IsZero() && time.Now().After(g.Expire)) {
			continue
		}
		wg.Go(func() {
			err := l.with(ctx, g.Family, func(_ *visit, c client) error { return c.release(ctx, &g) })
			if errors.Is(err, errGone) && g.Family == protocol.IPv4 {
				err = l.profile.releaseFromHost(ctx, &g)
			}
			if err != nil {
				l.log.Warn("the address could not be released", "address", g.Address, "error", err)
				return
			}
			l.log.Info("released", "address", g.Address)
		})
	}
	wg.Wait()
}

// result returns the CNI result of all families.
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

// withdrawn returns the first address that the lease has lost, if any.
func (l *lease) withdrawn() (netip.Prefix, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.rec.Grants {
		if g.Withdrawn {
			return g.Address, true
		}
	}
	return netip.Prefix{}, false
}

// sleep waits for a duration, and reports false if ctx ends first.
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
