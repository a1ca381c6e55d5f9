package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store"
)

// acquire leases an address of each family, all at the same time. It retries until
// the resend timeout or the end of ctx. After an error the lease may hold the
// addresses of some families.
func (l *lease) acquire(ctx context.Context, want map[string]netip.Addr) error {
	families := l.profile.conf.IPAM.Families
	grants, errs := make([]store.DHCPGrant, len(families)), make([]error, len(families))
	var wg sync.WaitGroup
	for i, family := range families {
		wg.Go(func() {
			g, err := l.acquireOne(ctx, family, want[family])
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", family, err)
				return
			}
			grants[i] = *g
		})
	}
	wg.Wait()
	for i := range families {
		if errs[i] == nil {
			l.rec.Grants = append(l.rec.Grants, grants[i])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (l *lease) acquireOne(ctx context.Context, family string, want netip.Addr) (*store.DHCPGrant, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.d.timing.Resend, errNoAnswer)
	defer cancel()
	for {
		var g *store.DHCPGrant
		err := l.with(ctx, family, func(_ *visit, c client) (err error) {
			g, err = c.acquire(ctx, want, false)
			return err
		})
		switch {
		case err == nil:
			return g, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, errNoAnswer) && !errors.Is(err, errRefused):
			return nil, err
		}
		l.log.Info("no address yet", "family", family, "error", err)
		if errors.Is(err, errRefused) && !sleep(ctx, jittered(time.Second)) {
			return nil, context.Cause(ctx)
		}
	}
}
