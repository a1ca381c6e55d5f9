package attachment

import (
	"context"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// restoredLock is the name of the lock of the objects that are restored from records. A process
// that restores them holds it exclusively from before it reads the records until it has made the
// objects. A process that removes them holds it shared until it has deleted their record. It is
// the innermost lock: its holder takes none but those of the state files.
const restoredLock = "restored"

// Alone calls restore while no process removes objects that are restored from records.
func Alone(ctx context.Context, h *roles.Host, restore func() error) error {
	return locked(ctx, h, true, restore)
}

// unrestored calls remove, which undoes changes and deletes their record, while no process
// restores objects. Otherwise one that had read the record could make them again afterwards.
func unrestored(ctx context.Context, h *roles.Host, changes []netops.Change, remove func() error) error {
	some, alone := netops.AreRestored(changes)
	if !some {
		return remove()
	}
	return locked(ctx, h, alone, remove)
}

func locked(ctx context.Context, h *roles.Host, exclusive bool, f func() error) error {
	lock, err := h.Store.LockShared(ctx, restoredLock, exclusive)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	return f()
}
