package firewall

import (
	"context"
	"errors"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/node"
)

// Inherit removes what the reference plugin made for the container's addresses:
// its rules tell nothing else, so addresses that an attachment has are left out.
func (r *role) Inherit(ctx context.Context, h *roles.Host, in *attach.Input, _ *netops.Namespace) error {
	there, err := h.Net.HasForeignForward(ctx)
	if err != nil || !there {
		return err
	}
	mine, err := node.ForeignAddresses(ctx, h, in.Key, in.Prev)
	if err != nil || len(mine) == 0 {
		return err
	}
	return r.removeForeign(ctx, h, mine)
}

// removeForeign removes what the reference plugin made for addresses.
func (r *role) removeForeign(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	var errs []error
	if r.conf.accepts(iptables) {
		errs = append(errs, h.Net.RemoveForeignForward(ctx, addresses))
	}
	if !r.conf.accepts(firewalld) {
		return errors.Join(errs...)
	}
	for _, a := range addresses {
		policy, err := h.Net.ForwardPolicy(ctx, a.Is6())
		if err == nil && policy.Firewalld {
			err = h.Net.RemoveZoneSource(ctx, netops.ZoneSource{Zone: r.conf.FirewalldZone, Address: a})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
