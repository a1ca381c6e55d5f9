package leasefiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
)

// importBatch is the number of leases that an import stores in one transaction.
const importBatch = 4096

// ImportReport is the result of the import of a reference plugin's directory.
type ImportReport struct {
	Dir string `json:"dir"`
	// Already means that the directory was imported before, and nothing was done.
	Already bool `json:"already,omitempty"`
	// Leases are the imported leases in the store.
	Leases []store.Lease `json:"leases,omitempty"`
	// Stale are the addresses of files from before the boot. They were not imported.
	Stale []netip.Addr `json:"stale,omitempty"`
	// Skipped are the files that could not be used.
	Skipped []SkippedFile `json:"skipped,omitempty"`
}

// SkippedFile is a file that an import could not use.
type SkippedFile struct {
	// Name is the file's name, quoted if it contains unprintable bytes.
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// thisNode returns the ID of the present node.db, or "" if there is none.
func thisNode(ctx context.Context, h *roles.Host) (string, error) {
	info, err := store.Read(ctx, h.Store, (*store.Tx).Info)
	if err != nil || info.Created.IsZero() {
		return "", err
	}
	return info.BootID + " " + info.Created.Format(time.RFC3339Nano), nil
}

// Import copies the leases and cursors of a reference host-local directory,
// <dataDir>/<network>, to the store. It marks the directory, so that this happens once
// for a node.db; after a boot all of its files are stale. A later Import reads only files
// that were made since, because the reference was run again. With force it reads all
// files again, and keeps leases that exist. Import does not write to the directory, and
// holds its lock until all leases are stored. If the directory does not exist, the error
// wraps fs.ErrNotExist.
func Import(ctx context.Context, h *roles.Host, dataDir, network string, force bool) (*ImportReport, error) {
	im := importer{
		id: store.PoolID{DataDir: filepath.Clean(dataDir), Network: network}, force: force,
		timeout: LockTimeout, setOf: func(netip.Addr) int { return 0 },
	}
	return im.run(ctx, h)
}

// importer is one import.
type importer struct {
	id    store.PoolID
	force bool
	// timeout is the longest wait for the directory's lock.
	timeout time.Duration
	// setOf returns the range set of an address.
	setOf func(netip.Addr) int
	// exported is the mark's field. setBack is the duration by which the clock was set
	// back since.
	exported time.Time
	setBack  time.Duration
	// removeStale means that files of before the boot are removed.
	removeStale bool
}

// ImportOnce imports a pool's directory if it exists and was not imported before. It logs
// the files that it cannot use. setOf returns the range set of an address. timeout is the
// longest wait for the directory's lock.
func ImportOnce(ctx context.Context, h *roles.Host, id store.PoolID, setOf func(netip.Addr) int, timeout time.Duration) error {
	return importOnce(ctx, h, importer{id: id, timeout: timeout, setOf: setOf})
}

func importOnce(ctx context.Context, h *roles.Host, im importer) error {
	pending, err := importPending(ctx, h, im.id)
	if err != nil || !pending {
		return err
	}
	report, err := im.run(ctx, h)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the directory was removed in between
	}
	if err != nil {
		return err
	}
	for _, s := range report.Skipped {
		h.Log.Warn("skip a file in a host-local import", "dir", report.Dir, "file", s.Name, "reason", s.Reason)
	}
	if !report.Already {
		h.Log.Info("imported host-local directory", "dir", report.Dir, "leases", len(report.Leases), "stale", len(report.Stale), "skipped", len(report.Skipped))
	}
	return nil
}

// importPending reports whether a pool has a directory that was not imported into this
// node.db, or has changed since. Without a directory it costs one system call.
func importPending(ctx context.Context, h *roles.Host, id store.PoolID) (bool, error) {
	there, modified, err := directoryExists(id)
	if err != nil || !there {
		return false, err
	}
	mark, err := store.ReadKeep(ctx, h.Store, func(keep *store.KeepTx) (importMark, error) { return readMark(keep, id) })
	if err != nil || mark.Node == "" {
		return true, err
	}
	node, err := thisNode(ctx, h)
	return mark.Node != node || mark.outdated(modified), err
}

// Importable returns the error with which ImportOnce would fail immediately, or nil.
func Importable(ctx context.Context, h *roles.Host, id store.PoolID) error {
	pending, err := importPending(ctx, h, id)
	if err != nil || !pending {
		return err
	}
	d, err := openDirectory(id)
	if err != nil {
		return err
	}
	defer d.close()
	lock, err := d.openLock(false)
	if lock != nil {
		lock.Close()
	}
	return err
}

// run holds the directory's lock from before it reads the first file until the leases and
// the mark are stored, so a reference plugin runs either before or after the import.
// Every verb that changes leases imports first. So if a crash leaves leases without the
// mark, none of them is released before the next import stores the same leases.
func (im *importer) run(ctx context.Context, h *roles.Host) (*ImportReport, error) {
	d, err := openDirectory(im.id)
	if err != nil {
		return nil, err
	}
	defer d.close()
	unlock, err := d.lock(ctx, false, im.timeout)
	if err != nil {
		return nil, err
	}
	defer unlock()
	boot, err := thisBoot()
	if err != nil {
		return nil, err
	}
	found, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	modified, err := d.modified()
	if err != nil {
		return nil, err
	}
	report := &ImportReport{Dir: d.path, Skipped: found.skipped}
	err = leasing.KeepUpdate(ctx, h, func(keep *store.KeepTx) error {
		mark, err := im.begin(ctx, h, keep, boot)
		if err != nil {
			return err
		}
		wanted := found.entries
		if mark.Node != "" && !im.force {
			wanted = slices.DeleteFunc(slices.Clone(wanted), func(e *entry) bool { return !mark.isNew(e, im.setBack) })
			if len(wanted) == 0 {
				*report = ImportReport{Dir: d.path, Already: true}
			}
		}
		if !report.Already {
			if err := im.store(ctx, h, wanted, found.cursors, boot, report); err != nil {
				return err
			}
			report.Already = mark.Node != "" && !im.force && len(report.Leases)+len(report.Stale)+len(report.Skipped) == 0
		}
		mark.Leases += len(report.Leases)
		mark.note(h.Now(), boot, modified, found)
		mark.Node, err = thisNode(ctx, h)
		if err != nil {
			return err
		}
		return mark.write(keep, im.id)
	})
	if err != nil {
		return nil, fmt.Errorf("import %q: %w", d.path, err)
	}
	if im.removeStale {
		isStale := func(e *entry) bool { return slices.Contains(report.Stale, e.addr) }
		if err := d.removeAll(found.entries, isStale); err != nil {
			h.Log.Warn("files of before the boot stay", "error", err)
		}
	}
	return report, nil
}

// begin reads the mark of an import into this node.db, or the zero mark.
func (im *importer) begin(ctx context.Context, h *roles.Host, keep *store.KeepTx, boot bootTimes) (importMark, error) {
	mark, err := readMark(keep, im.id)
	if err != nil {
		return mark, err
	}
	node, err := thisNode(ctx, h)
	if node == "" || mark.Node != node {
		mark = importMark{}
	}
	im.exported, im.setBack = mark.Exported, mark.setBack(boot)
	return mark, err
}

// store stores the entries in the pool, importBatch leases in a transaction: bbolt splits
// its pages only at a commit, and 65,000 leases in one transaction take ten times as
// long. Other processes do not see a partial import, because they wait for keep.db.
func (im *importer) store(ctx context.Context, h *roles.Host, entries []*entry, cursors map[int]netip.Addr, boot bootTimes, report *ImportReport) error {
	var live []*entry
	for _, e := range entries {
		if boot.has(e.modified) {
			live = append(live, e)
		} else {
			report.Stale = append(report.Stale, e.addr)
		}
	}
	sorting.Stable(live, func(a, b *entry) int { return a.addr.Compare(b.addr) })
	for batch := range slices.Chunk(live, importBatch) {
		err := im.update(ctx, h, func(pool *store.Pool) error {
			for _, e := range batch {
				if err := im.storeOne(pool, e, report); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return im.update(ctx, h, func(pool *store.Pool) error { return storeCursors(pool, cursors) })
}

func (im *importer) update(ctx context.Context, h *roles.Host, do func(*store.Pool) error) error {
	return h.Store.Update(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(im.id)
		if err != nil {
			return err
		}
		return do(pool)
	})
}

// storeCursors sets the cursors of range sets that have none. An existing cursor is
// newer.
func storeCursors(pool *store.Pool, cursors map[int]netip.Addr) error {
	for set, addr := range cursors {
		_, ok, err := pool.Cursor(set)
		if err == nil && !ok {
			err = pool.SetCursor(set, addr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (im *importer) storeOne(pool *store.Pool, e *entry, report *ImportReport) error {
	l := store.Lease{
		Address: e.addr, Set: im.setOf(e.addr), Time: e.modified, Imported: true,
		Owner: store.Key{Network: im.id.Network, ContainerID: e.containerID, IfName: e.ifName},
	}
	err := pool.Reserve(l)
	if errors.Is(err, store.ErrTaken) {
		err = im.replace(pool, l, err)
	}
	var taken *store.TakenError
	switch {
	case err == nil:
		report.Leases = append(report.Leases, l)
	case errors.As(err, &taken) && taken.Owner == l.Owner:
		// An earlier import stored the lease.
	case errors.As(err, &taken):
		report.Skipped = append(report.Skipped, SkippedFile{e.name, err.Error()})
	default:
		return err
	}
	return nil
}

// replace gives a taken address to the owner in a file. This is right if the holder's
// lease was imported, mirrored or exported, because the reference knew the holder and
// must have released the address. Otherwise replace returns taken.
func (im *importer) replace(pool *store.Pool, l store.Lease, taken error) error {
	held, err := pool.Lease(l.Address)
	if err != nil {
		return err
	}
	if held.Owner == l.Owner || !held.Imported && !held.Mirrored && (!held.Time.Before(im.exported) || !l.Time.After(im.exported.Add(-im.setBack))) {
		return taken
	}
	if err := pool.Release(l.Address); err != nil {
		return err
	}
	return pool.Reserve(l)
}

// directoryPath returns <dataDir>/<network>.
func directoryPath(id store.PoolID) string { return filepath.Join(id.DataDir, id.Network) }
