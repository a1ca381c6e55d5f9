package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// RemoveNode removes the shared objects of all networks, the nftables tables, and the state of this boot, whose directory it
// returns. No container may be attached, and control.Stop must have ended the enforcement of network policies.
func RemoveNode(ctx context.Context, h *roles.Host) (dir string, err error) {
	networks, err := store.Read(ctx, h.Store, (*store.Tx).Networks)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, n := range networks {
		errs = append(errs, RemoveOrphans(ctx, h, n.Name, nil), attachment.RemoveShared(ctx, h, n.Name, nil))
	}
	// Rules for a bridge with another program's ports are kept until now. Those ports have their own.
	rules, err := h.Net.Labelled(ctx, attachment.LabelPrefix)
	errs = append(errs, err, h.Net.Undo(ctx, attachment.Inverses(rules), nil), h.Net.RemoveTables(ctx))
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	dir = filepath.Dir(h.Store.Path())
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("remove state: %w", err)
	}
	return dir, nil
}
