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
	if in.Recorded {
		// Most likely our ADD wanted nothing. What is left of the reference's would be
		// a source of firewalld, which may not answer: GC sees to that.
		return r.removeForeignRules(ctx, h, mine)
	}
	return r.removeForeign(ctx, h, mine)
}

// removeForeignRules removes iptables' rules that the reference plugin made for
// addresses.
func (r *role) removeForeignRules(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	if !r.conf.accepts(iptables) {
		return nil
	}
	return h.Net.RemoveForeignForward(ctx, addresses)
}

// removeForeign removes what the reference plugin made for addresses.
func (r *role) removeForeign(ctx context.Context, h *roles.Host, addresses []netip.Addr) error {
	errs := []error{r.removeForeignRules(ctx, h, addresses)}
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
