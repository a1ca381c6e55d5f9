package firewall

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/leftovers"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// CleanReference removes the reference plugin's objects for the container's addresses. Its
// rules contain only addresses, so addresses that another attachment has are left out.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	present, err := leftovers.Of(h.Net).HasForward(ctx)
	if err != nil || !present {
		return err
	}
	addresses, err := attachment.ReferenceAddresses(ctx, h, in.Key, in.Prev)
	if err != nil || len(addresses) == 0 {
		return err
	}
	if !in.Recorded {
		return r.removeReference(ctx, h, addresses)
	}
	// The ADD that recorded the attachment most likely needed no rules, so
	// firewalld has nothing to remove. A firewalld that does not answer must
	// not block the DEL.
	bounded, cancel := context.WithTimeout(ctx, firewalldTimeout)
	defer cancel()
	if err := r.removeSources(bounded, h, addresses); err != nil {
		h.Log.Warn("cannot check whether firewalld has the container's addresses as sources: firewalld's next reload removes them", "error", err)
	}
	return r.removeReferenceRules(ctx, h, addresses)
}

// firewalldTimeout limits the request to firewalld for an attachment that
// probably has no sources there.
const firewalldTimeout = 10 * time.Second

// removeReference removes the reference plugin's objects for addresses.
func (r *role) removeReference(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	return errors.Join(r.removeReferenceRules(ctx, h, addresses), r.removeSources(ctx, h, addresses))
}

// removeReferenceRules removes the reference plugin's iptables rules.
func (r *role) removeReferenceRules(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	if !r.conf.usesBackend(iptables) {
		return nil
	}
	return leftovers.Of(h.Net).RemoveForward(ctx, addresses)
}

// removeSources removes the reference plugin's firewalld sources.
func (r *role) removeSources(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	if !r.conf.usesBackend(firewalld) {
		return nil
	}
	var errs []error
	for _, a := range addresses {
		policy, err := h.Net.FilterTables().Policy(ctx, a.Is6())
		if err == nil && policy.Firewalld {
			err = h.Net.RemoveZoneSource(ctx, netops.ZoneSource{Zone: r.conf.FirewalldZone, Address: a})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
