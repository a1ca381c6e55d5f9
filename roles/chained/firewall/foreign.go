package firewall

import (
	"context"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/node"
)

// CheckForeign wants of what the reference plugin made its two rules for each
// address, or with firewalld the zones' sources.
func (r *role) CheckForeign(ctx context.Context, h *roles.Host, in *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool {
		_, is := o.(*netops.ZoneSource)
		return !is
	})
	if len(spec.Objects) > 0 || !r.conf.accepts(iptables) {
		return nil, nil
	}
	f, err := node.Foreign(ctx, h, in.Key, in.Prev)
	if err != nil {
		return nil, err
	}
	missing, err := h.Net.MissingForeignForward(ctx, f.Addresses)
	var diffs []netops.Difference
	for _, a := range missing {
		diffs = append(diffs, attach.UnlikeAddress(in, a, "accepted in CNI-FORWARD"))
	}
	return diffs, err
}

// CollectForeign does nothing: the reference's rules tell an address only.
func (r *role) CollectForeign(context.Context, *roles.Host, *roles.Request) error { return nil }
