package firewall

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/migrate"
)

// CleanLegacy removes what the reference plugin made for the container's addresses:
// its rules tell nothing else, so addresses that an attachment has are left out.
func (r *role) CleanLegacy(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	there, err := h.Net.HasForeignForward(ctx)
	if err != nil || !there {
		return err
	}
	mine, err := migrate.ReferenceAddresses(ctx, h, in.Key, in.Prev)
	if err != nil || len(mine) == 0 {
		return err
	}
	if !in.Recorded {
		return r.removeForeign(ctx, h, mine)
	}
	// Most likely our ADD wanted nothing, and firewalld was never told: one that does
	// not answer is not to keep the container.
	asked, cancel := context.WithTimeout(ctx, guessPatience)
	defer cancel()
	if err := r.removeSources(asked, h, mine); err != nil {
		h.Log.Warn("cannot see whether firewalld has the container's addresses as sources: if so, its next reload removes them", "error", err)
	}
	return r.removeForeignRules(ctx, h, mine)
}

// guessPatience bounds what firewalld is asked for on a guess.
const guessPatience = 10 * time.Second

// removeForeign removes what the reference plugin made for addresses.
func (r *role) removeForeign(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	return errors.Join(r.removeForeignRules(ctx, h, addresses), r.removeSources(ctx, h, addresses))
}

// removeForeignRules removes its rules of iptables.
func (r *role) removeForeignRules(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	if !r.conf.accepts(iptables) {
		return nil
	}
	return h.Net.RemoveForeignForward(ctx, addresses)
}

// removeSources removes its sources of firewalld.
func (r *role) removeSources(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	if !r.conf.accepts(firewalld) {
		return nil
	}
	var errs []error
	for _, a := range addresses {
		policy, err := h.Net.ForwardPolicy(ctx, a.Is6())
		if err == nil && policy.Firewalld {
			err = h.Net.RemoveZoneSource(ctx, netops.ZoneSource{Zone: r.conf.FirewalldZone, Address: a})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
