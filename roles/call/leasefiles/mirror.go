package leasefiles

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Files repeats leases in the reference's directory, so that its host-local can
// replace cnibox at any time: it knows our addresses, and can release them. For the
// order of a file and its lease see store.Mirror.
type Files struct {
	// SetOf returns the range set of an address.
	SetOf func(netip.Addr) int
}

var _ leasing.LeaseFiles = Files{}

// Serves reports whether a pool can have files. The default directory belongs to the
// machine, so nodes that are simulated on it do not use it.
func (Files) Serves(h *roles.Host, id store.PoolID) bool {
	return filepath.IsAbs(id.DataDir) && isComponent(id.Network) &&
		(id.DataDir != recovery.DefaultDataDir || h.Store.RunDir() == store.DefaultRunDir)
}

// Import imports the directory at the pool's first use. It removes files of before the
// boot, because nothing else releases their addresses for the reference. If keep.db, which
// records the import, cannot be used, no lease is imported: Create fails for each address
// with a file.
func (f Files) Import(ctx context.Context, h *roles.Host, id store.PoolID) error {
	err := importOnce(ctx, h, importer{id: id, timeout: LockTimeout, setOf: f.SetOf, removeStale: true})
	if errors.Is(err, store.ErrUnwritable) || errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSchema) {
		h.Log.Warn("continue without the leases of a host-local directory", "error", err)
		return nil
	}
	return err
}

// Create makes a lease's file, and writes last_reserved_ip.<N>, after which the
// reference continues. It needs no lock, because O_EXCL decides between it and
// the reference. A directory that cannot be written by us cannot be written by the
// reference, so it is no error. A full one is an error, as it may have space again when
// the reference is back.
func (f Files) Create(ctx context.Context, h *roles.Host, id store.PoolID, l store.Lease) error {
	d, err := makeDirectory(id)
	if err == nil {
		err = d.create(l.Address.String(), leaseContent(l.Owner))
		if err == nil {
			err = d.writeCursor(f.SetOf(l.Address), l.Address)
		}
		d.close()
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return withDirectory(ctx, id, LockTimeout, func(d *directory) error { return d.replaceUnused(ctx, h, id, l) })
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG):
		h.Log.Warn("host-local's directory cannot be written: when it can be again, run 'cnibox state export --format host-local DIR'", "dir", id.DataDir, "error", err)
		return nil
	}
	return err
}

// Missing returns the mirrored leases without a file. If the directory cannot be written,
// ADD may have made none, so it returns nothing.
func (Files) Missing(id store.PoolID, leases []store.Lease) (missing []store.Lease) {
	dir := directoryPath(id)
	for _, l := range leases {
		_, err := os.Lstat(filepath.Join(dir, l.Address.String()))
		if l.Mirrored && errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, l)
		}
	}
	writable := func(dir string) error { return unix.Access(dir, unix.W_OK) }
	for len(missing) > 0 && errors.Is(writable(dir), fs.ErrNotExist) {
		dir = filepath.Dir(dir)
	}
	if len(missing) > 0 && writable(dir) != nil {
		return nil
	}
	return missing
}

// replaceUnused replaces the file of an address if its owner is gone: if it is empty,
// because a process was killed between creation and writing, or if an import would not
// read it. Otherwise the error is a FileError.
func (d *directory) replaceUnused(ctx context.Context, h *roles.Host, id store.PoolID, l store.Lease) error {
	name := l.Address.String()
	taken := &leasing.FileError{Path: d.path + "/" + name, Address: l.Address}
	content, modified, err := d.content(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return taken
	}
	if len(bytes.TrimSpace(content)) > 0 && !d.isOf(l) {
		known, err := knownFiles(ctx, h, id)
		if err != nil {
			return err
		}
		if _, err := Parse(name, content); err != nil || !known(&entry{addr: l.Address, modified: modified}) {
			return taken
		}
	}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		pool, err := tx.Pool(id)
		if err != nil {
			return err
		}
		now, err := pool.Lease(l.Address)
		if err == nil && now.Owner != l.Owner {
			err = taken // an import gave the address to the file's owner meanwhile
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return taken
	}
	if err != nil {
		return err
	}
	return d.replace(name, leaseContent(l.Owner))
}

// knownFiles returns a function that reports whether an import read a file before, or
// does not read it because it is from before the boot. If such an address has no lease,
// it was released.
func knownFiles(ctx context.Context, h *roles.Host, id store.PoolID) (func(*entry) bool, error) {
	boot, err := thisBoot()
	if err != nil {
		return nil, err
	}
	mark, err := store.ReadKeep(ctx, h.Store, func(keep *store.KeepTx) (importMark, error) { return (&importer{id: id}).begin(ctx, h, keep, boot) })
	if err != nil {
		h.Log.Warn("every file of a host-local directory counts as in use", "error", err)
	}
	return func(e *entry) bool {
		return !boot.has(e.modified) || mark.Node != "" && !mark.isNew(e, mark.setBack(boot))
	}, nil
}

// RemoveFilesOf removes the files of a container's interface, for a DEL that finds no
// lease: the record was lost, or was made by the reference or before the boot.
func RemoveFilesOf(ctx context.Context, id store.PoolID, key store.Key) error {
	return withDirectory(ctx, id, BriefLockTimeout, func(d *directory) error {
		found, err := d.read(ctx)
		if err != nil {
			return err
		}
		return d.removeAll(found.entries, func(e *entry) bool {
			return e.containerID == key.ContainerID && (e.ifName == key.IfName || e.ifName == "")
		})
	})
}

// RemoveInvalidFiles removes the files of containers that have no lease and are not in
// a GC's list. It keeps files that were not imported yet: their containers may be newer
// than the list.
func RemoveInvalidFiles(ctx context.Context, h *roles.Host, id store.PoolID, req *roles.Request) error {
	return withDirectory(ctx, id, BriefLockTimeout, func(d *directory) error {
		known, err := knownFiles(ctx, h, id)
		if err != nil {
			return err
		}
		found, err := d.read(ctx)
		if err != nil {
			return err
		}
		leased := map[netip.Addr]bool{} // read after the files, because a lease is stored first
		err = h.Store.View(ctx, func(tx *store.Tx) error {
			pool, err := tx.Pool(id)
			if err != nil {
				return err
			}
			for a := range pool.Owners() {
				leased[a] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
		return d.removeAll(found.entries, func(e *entry) bool {
			return !leased[e.addr] && !req.IsValid(e.containerID, e.ifName) && known(e)
		})
	})
}

// withDirectory calls do with a pool's directory, under its lock, if the directory exists.
func withDirectory(ctx context.Context, id store.PoolID, timeout time.Duration, do func(*directory) error) error {
	d, err := openDirectory(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	unlock, err := d.lock(ctx, true, timeout)
	if err != nil {
		return err
	}
	defer unlock()
	return do(d)
}

// removeAll removes the files that match.
func (d *directory) removeAll(files []*entry, match func(*entry) bool) error {
	var errs []error
	for _, e := range files {
		if match(e) {
			errs = append(errs, d.remove(e.name))
		}
	}
	return errors.Join(errs...)
}

// Mirror is the store.Mirror of one transaction.
type Mirror struct {
	Log *slog.Logger
	// busy are the directories whose lock another process has. unlock has the locks of
	// this process; it is nil for a directory whose lock was not free in time.
	busy   []store.PoolID
	unlock map[store.PoolID]func()
}

var _ store.Mirror = (*Mirror)(nil)

// Remove removes the files of released leases, except those that name another container.
// The lock is needed because the reference may replace a file between the comparison and
// the removal.
func (m *Mirror) Remove(released []store.Released) bool {
	for _, r := range released {
		err := m.remove(r)
		if errors.Is(err, unix.EWOULDBLOCK) {
			m.busy = append(m.busy, r.PoolID)
		} else if err != nil {
			m.Log.Warn("the file of a released address stays until GC", "address", r.Address, "error", err)
		}
	}
	return len(m.busy) == 0
}

func (m *Mirror) remove(r store.Released) error {
	if !filepath.IsAbs(r.DataDir) || !isComponent(r.Network) {
		return nil
	}
	d, err := openDirectory(r.PoolID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	if !d.isOf(r.Lease) {
		return nil
	}
	unlock, waited := m.unlock[r.PoolID]
	if waited && unlock == nil {
		return errors.New("the directory is locked for too long")
	}
	if !waited {
		f, err := d.openLock(true)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return d.fault("lock", lockFile, err)
		}
		if !d.isOf(r.Lease) {
			return nil
		}
	}
	return d.remove(r.Address.String())
}

// isOf reports whether an address's file has the content of a lease, without the interface
// as before 2019, or is empty, because ADD was killed.
func (d *directory) isOf(l store.Lease) bool {
	content, _, err := d.content(l.Address.String())
	if err != nil || len(content) == 0 {
		return err == nil
	}
	f, err := Parse(l.Address.String(), content)
	return err == nil && f.ContainerID == l.Owner.ContainerID && (f.IfName == l.Owner.IfName || f.IfName == "")
}

// Lock takes the locks that Remove needs, in one order for all processes.
func (m *Mirror) Lock(ctx context.Context) error {
	sorting.Func(m.busy, func(a, b store.PoolID) int {
		return cmp.Or(cmp.Compare(a.DataDir, b.DataDir), cmp.Compare(a.Network, b.Network))
	})
	if m.unlock == nil {
		m.unlock = map[store.PoolID]func(){}
	}
	for _, id := range slices.Compact(m.busy) {
		d, err := openDirectory(id)
		if err != nil {
			m.unlock[id] = nil
			continue
		}
		m.unlock[id], err = d.lock(ctx, true, BriefLockTimeout)
		d.close()
		if ctx.Err() != nil {
			return err
		}
	}
	m.busy = nil
	return nil
}

// Close gives the locks back.
func (m *Mirror) Close() {
	for _, unlock := range m.unlock {
		if unlock != nil {
			unlock()
		}
	}
}
