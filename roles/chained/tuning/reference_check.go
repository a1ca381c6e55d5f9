package tuning

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// CheckReference leaves out the host's end of a veth pair: the reference plugin
// changes only the container's end.
func (r *role) CheckReference(_ context.Context, _ *roles.Host, _ *attach.Input, spec *netops.Spec) ([]netops.Difference, error) {
	spec.Objects = slices.DeleteFunc(spec.Objects, func(o netops.Object) bool { return o.Where() == netops.Host })
	return nil, nil
}

// CollectReference removes the reference plugin's files of containers that no
// longer exist. The file names do not contain the network, so it uses the
// containers that host-local's files list for the network.
func (r *role) CollectReference(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if files, err := os.ReadDir(r.conf.DataDir); err != nil || len(files) == 0 {
		return nil
	}
	gone, err := h.Reference.Departed(ctx, h, req.Network, req.Valid)
	errs := []error{err}
	for _, f := range gone {
		if f.IfName != "" {
			errs = append(errs, removeBackup(r.conf.backupFile(f.ContainerID, f.IfName)))
		}
	}
	return errors.Join(errs...)
}
