package firewall

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/leftovers"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
)

// CheckReference requires the reference plugin's two rules for each address, or
// the sources of the zone with firewalld.
func (r *role) CheckReference(ctx context.Context, h *roles.Host, in *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool {
		_, is := o.(*netops.ZoneSource)
		return !is
	})
	if len(spec.Objects) > 0 || !r.conf.usesBackend(iptables) {
		return nil, nil
	}
	f, err := attachment.ByReference(ctx, h, in.Key, in.Prev)
	if err != nil {
		return nil, err
	}
	missing, err := leftovers.Of(h.Net).MissingForward(ctx, f.Addresses)
	var diffs []netops.Difference
	for _, a := range missing {
		diffs = append(diffs, leftovers.AddressDifference(in.Key.IfName, a, "accepted in CNI-FORWARD"))
	}
	return diffs, err
}

// CollectReference removes the reference plugin's rules of containers that no
// longer exist. The rules contain only addresses, so it uses the addresses that
// host-local's files list for the network.
func (r *role) CollectReference(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if !r.conf.usesBackend(iptables) && !r.conf.usesBackend(firewalld) {
		return nil
	}
	departed, err := h.Reference.Departed(ctx, h, req.Network, req.Valid)
	if err != nil {
		return err
	}
	var addresses []netip.Addr
	for _, f := range departed {
		addresses = append(addresses, f.Addresses...)
	}
	return r.removeReference(ctx, h, addresses)
}
