package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/store"
)

// Inherit removes what the reference plugin made for the container's addresses:
// its rules tell nothing else, so addresses that an attachment has are left out.
func (r *role) Inherit(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	if in.Prev == nil {
		return nil
	}
	var mine []netip.Addr
	for _, ip := range in.Prev.IPs {
		if p, ok := attach.Prefix(ip.Address); ok {
			mine = append(mine, p.Addr())
		}
	}
	mine, err := withoutHeld(ctx, h, in.Key, mine)
	if err != nil || len(mine) == 0 {
		return err
	}
	var errs []error
	if r.conf.accepts(iptables) {
		errs = append(errs, h.Net.RemoveForeignForward(ctx, mine))
	}
	for _, a := range mine {
		if !r.conf.accepts(firewalld) {
			break
		}
		policy, err := h.Net.ForwardPolicy(ctx, a.Is6())
		if err == nil && policy.Firewalld {
			err = h.Net.RemoveZoneSource(ctx, netops.ZoneSource{Zone: r.conf.FirewalldZone, Address: a})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withoutHeld leaves out the addresses of other attachments.
func withoutHeld(ctx context.Context, h *roles.Host, own store.Key, addrs []netip.Addr) ([]netip.Addr, error) {
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for _, a := range atts {
			if a.Key == own {
				continue
			}
			for _, p := range a.Addresses {
				addrs = slices.DeleteFunc(addrs, func(x netip.Addr) bool { return x == p.Addr() })
			}
		}
		return err
	})
	return addrs, err
}
