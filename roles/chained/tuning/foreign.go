package tuning

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/migrate"
)

// CheckForeign leaves out the host's end of a pair: the reference plugin sets
// the container's only.
func (r *role) CheckForeign(_ context.Context, _ *roles.Host, _ *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool { return o.Where() == netops.Host })
	return nil, nil
}

// CollectForeign removes the reference's files, whose names do not tell the
// network, of containers that host-local's files know to be of it, and that are gone.
func (r *role) CollectForeign(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if files, err := os.ReadDir(r.conf.DataDir); err != nil || len(files) == 0 {
		return nil
	}
	gone, err := migrate.Departed(ctx, h, req.Network, req.Valid)
	errs := []error{err}
	for _, f := range gone {
		if f.IfName != "" {
			errs = append(errs, removeBackup(r.conf.backupFile(f.ContainerID, f.IfName)))
		}
	}
	return errors.Join(errs...)
}
