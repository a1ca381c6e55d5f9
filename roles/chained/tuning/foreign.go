package tuning

import (
	"context"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
)

// CheckForeign leaves out the host's end of a pair: the reference plugin sets
// the container's only.
func (r *role) CheckForeign(_ context.Context, _ *roles.Host, _ *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool { return o.Where() == netops.Host })
	return nil, nil
}

// CollectForeign does nothing: the names of the reference's files do not tell the network.
func (r *role) CollectForeign(context.Context, *roles.Host, *roles.Request) error { return nil }
