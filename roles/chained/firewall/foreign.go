package firewall

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/migrate"
)

// CheckLegacy wants of what the reference plugin made its two rules for each
// address, or with firewalld the zones' sources.
func (r *role) CheckLegacy(ctx context.Context, h *roles.Host, in *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool {
		_, is := o.(*netops.ZoneSource)
		return !is
	})
	if len(spec.Objects) > 0 || !r.conf.accepts(iptables) {
		return nil, nil
	}
	f, err := migrate.ReferenceAttachment(ctx, h, in.Key, in.Prev)
	if err != nil {
		return nil, err
	}
	missing, err := h.Net.MissingForeignForward(ctx, f.Addresses)
	var diffs []netops.Difference
	for _, a := range missing {
		diffs = append(diffs, migrate.AddressDifference(in.Key.IfName, a, "accepted in CNI-FORWARD"))
	}
	return diffs, err
}

// CollectLegacy removes the reference's rules, which tell an address only, for
// those that host-local's files know to be of containers of the network that are gone.
func (r *role) CollectLegacy(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if !r.conf.accepts(iptables) && !r.conf.accepts(firewalld) {
		return nil
	}
	gone, err := migrate.Departed(ctx, h, req.Network, req.Valid)
	if err != nil {
		return err
	}
	var addresses []netip.Addr
	for _, f := range gone {
		addresses = append(addresses, f.Addresses...)
	}
	return r.removeForeign(ctx, h, addresses)
}
