package leasefiles

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// ExportReport lists what an export wrote.
type ExportReport struct {
	Networks []ExportedNetwork `json:"networks"`
}

// ExportedNetwork is one directory.
type ExportedNetwork struct {
	Dir string `json:"dir"`
	// Written counts new address files, and Kept those that already had the right
	// content.
	Written int `json:"written"`
	Kept    int `json:"kept"`
	// Removed are addresses that were imported from files and have been released since.
	// Their files were removed.
	Removed []netip.Addr `json:"removed,omitempty"`
	// Foreign are files of other addresses. They were not changed.
	Foreign []string `json:"foreign,omitempty"`
}

// exported is one pool, read from the store.
type exported struct {
	id      store.PoolID
	leases  []store.Lease
	cursors map[int]netip.Addr
	// imported is the time at which dir/<network> was imported; zero if it was not.
	imported time.Time
}

// Export writes every pool into dir/<network>, or with an empty dir into its own data
// directory, in the form of the reference plugin and under its lock, so that the
// reference can replace cnibox. It updates a directory that was imported: it removes or
// replaces the files that the import read if their lease no longer exists. It keeps newer
// files. A newer file for an address that is leased to another container is an error, and
// so is an address that two pools of one network lease. Export still writes all other
// files.
func Export(ctx context.Context, h *roles.Host, dir string) (*ExportReport, error) {
	if dir != "" {
		dir = filepath.Clean(dir)
	}
	start := h.Now()
	pools, err := readPools(ctx, h, dir)
	if err != nil {
		return nil, err
	}
	report := &ExportReport{Networks: []ExportedNetwork{}}
	var errs []error
	for _, p := range pools {
		n, err := p.write(ctx, h, p.directory(dir), start)
		if n != nil {
			report.Networks = append(report.Networks, *n)
		}
		errs = append(errs, err)
	}
	return report, errors.Join(errs...)
}

// readPools reads the pools from the store.
func readPools(ctx context.Context, h *roles.Host, dir string) ([]exported, error) {
	var pools []exported
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		return tx.EachPool("", func(pool *store.Pool) error {
			id := pool.ID()
			if id.DataDir == store.CloudDataDir || strings.HasPrefix(id.DataDir, store.RangeDataDir) {
				return nil // the reference host-local has no such pools
			}
			p := exported{id: id, cursors: map[int]netip.Addr{}}
			err := p.read(pool)
			pools = append(pools, p)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	err = h.Store.KeepView(ctx, func(keep *store.KeepTx) error {
		for i := range pools {
			mark, err := readMark(keep, store.PoolID{DataDir: pools[i].directory(dir), Network: pools[i].id.Network})
			if err != nil {
				return err
			}
			pools[i].imported = mark.Time
		}
		return nil
	})
	return pools, err
}

// directory returns the data directory to which the pool is written: given, or the pool's
// own. Leases of an unknown pool are written to the default.
func (p *exported) directory(given string) string {
	return cmp.Or(given, p.id.DataDir, recovery.DefaultDataDir)
}

func (p *exported) read(pool *store.Pool) (err error) {
	p.leases, err = store.Collect(pool.Leases())
	if err != nil {
		return err
	}
	for set := range maxSets {
		a, ok, err := pool.Cursor(set)
		if err != nil {
			return err
		}
		if ok {
			p.cursors[set] = a
		}
	}
	return nil
}

// write updates one directory.
func (p *exported) write(ctx context.Context, h *roles.Host, dir string, start time.Time) (*ExportedNetwork, error) {
	id := store.PoolID{DataDir: dir, Network: p.id.Network}
	d, err := makeDirectory(id)
	if err != nil {
		return nil, err
	}
	defer d.close()
	unlock, err := d.lock(ctx, true, LockTimeout)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	n := &ExportedNetwork{Dir: d.path}
	errs := []error{p.removeOld(d, found, n)}
	for _, l := range p.leases {
		errs = append(errs, d.writeLease(l, n))
	}
	for set, addr := range p.cursors {
		errs = append(errs, d.replace(cursorFile+"."+strconv.Itoa(set), []byte(addr.String())))
	}
	if err := errors.Join(errs...); err != nil || id != p.id || len(n.Foreign) > 0 {
		return n, err
	}
	return n, p.mark(ctx, h, d, start)
}

// mark records that the pool's own directory contains exactly the pool's leases, so that
// a later import reads only files that the reference writes from now on.
func (p *exported) mark(ctx context.Context, h *roles.Host, d *directory, start time.Time) error {
	found, err := d.read(ctx)
	if err != nil {
		return err
	}
	modified, err := d.modified()
	if err != nil {
		return err
	}
	boot, err := thisBoot()
	if err != nil {
		return err
	}
	mark := importMark{Leases: len(p.leases), Exported: start}
	mark.note(h.Now(), boot, modified, found)
	mark.Node, err = thisNode(ctx, h)
	if err != nil {
		return err
	}
	return leasing.KeepUpdate(ctx, h, func(keep *store.KeepTx) error { return mark.write(keep, p.id) })
}

// removeOld removes files that an import read, unless their lease still exists.
func (p *exported) removeOld(d *directory, found *foundFiles, n *ExportedNetwork) error {
	owners := make(map[netip.Addr]store.Key, len(p.leases))
	for _, l := range p.leases {
		owners[l.Address] = l.Owner
	}
	var errs []error
	for _, e := range found.entries {
		owner, leased := owners[e.addr]
		switch {
		case leased && owner.ContainerID == e.containerID && owner.IfName == e.ifName:
		case e.modified.After(p.imported):
			if !leased {
				n.Foreign = append(n.Foreign, e.name)
			}
		default:
			errs = append(errs, d.remove(e.name))
			if !leased {
				n.Removed = append(n.Removed, e.addr)
			}
		}
	}
	return errors.Join(errs...)
}

// writeLease writes an address file. It keeps a file with the right content, and replaces
// an empty one.
func (d *directory) writeLease(l store.Lease, n *ExportedNetwork) error {
	name := l.Address.String()
	content := leaseContent(l.Owner)
	old, _, err := d.content(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return d.fault("read", name, err)
	case bytes.Equal(bytes.TrimSpace(old), content):
		n.Kept++
		return nil
	case len(bytes.TrimSpace(old)) > 0:
		return fmt.Errorf("%w: %q belongs to another container (%.80q), the lease belongs to %.64q", ErrDirectory, d.path+"/"+name, old, l.Owner.ContainerID)
	}
	if err := d.replace(name, content); err != nil {
		return err
	}
	n.Written++
	return nil
}

func (d *directory) remove(name string) error {
	if err := unix.Unlinkat(int(d.f.Fd()), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.fault("remove", name, err)
	}
	return nil
}

// replace removes and writes a file. The caller holds the directory's lock, so no process
// sees it absent.
func (d *directory) replace(name string, content []byte) error {
	if err := d.remove(name); err != nil {
		return err
	}
	return d.create(name, content)
}
