// Package azureview writes the two state files of Azure's CNI plugins, for programs that
// read them: azure-vnet.json has the pods' networks and endpoints, azure-vnet-ipam.json
// the addresses and their owners. The files are views of the store, written after each
// change in the form of azure's plugins v1.0.17, which readers of newer files understand
// too. Only the revision at the end of a file is read back.
package azureview

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Conf are the keys about the files. The Conf of a role that writes them embeds it.
type Conf struct {
	// StateFiles keeps azure's state files, azure-vnet.json and azure-vnet-ipam.json,
	// as views of the node's state. Default true for azure-vnet and azure-vnet-ipam.
	StateFiles *bool `json:"stateFiles,omitempty"`
	// StateDir is the directory of azure's state files, without symbolic links in
	// its path. Default /run, which is /var/run; where CNIBOX_RUN_DIR names another
	// run directory than /run/cnibox, that one.
	StateDir string `json:"stateDir,omitempty"`
}

// Check reports the faults of the keys.
func (c *Conf) Check(f *roles.Faults) {
	if c.StateDir != "" && !filepath.IsAbs(c.StateDir) {
		f.Addf("stateDir", `%q is not an absolute path: write "/run", or leave it out`, c.StateDir)
	}
}

// File is one of the two files, by its name.
type File string

// The files.
const (
	Network   File = "azure-vnet.json"
	Addresses File = "azure-vnet-ipam.json"
)

// patience is how long a writer waits for the one before it. If that takes longer, the
// pod does not wait: the next writer writes the missed changes too.
const patience = 2 * time.Second

// rounds is how often a writer waits for another to end. The first may have begun before
// the change was stored, the second began after it.
const rounds = 2

// Write brings a file up to date with the store, unless another process did so
// since this one's last change. It is called after ADD, DEL and GC, failed ones
// too, without any lock or transaction. If the file cannot be written
// that is logged, and the call does not fail. Within a Batch it is written at the end.
func Write(ctx context.Context, h *roles.Host, c *Conf, f File) {
	if c.StateFiles != nil && !*c.StateFiles {
		return
	}
	dir := c.StateDir
	if !filepath.IsAbs(dir) { // none, or the DEL of a configuration that Judge would refuse
		dir = defaultDir(h.Store.RunDir())
	}
	dir = filepath.Clean(dir)
	if b, ok := ctx.Value(batchKey{}).(batch); ok {
		b.add(dir, f)
		return
	}
	writeAll(ctx, h, dir, []File{f})
}

// Batch is for a role that calls others in its process, which write files too. Calls
// with the returned context leave the files to end, which writes all of them at once.
// Call end after the last change, from one goroutine.
func Batch(ctx context.Context, h *roles.Host) (_ context.Context, end func()) {
	if _, ok := ctx.Value(batchKey{}).(batch); ok {
		return ctx, func() {}
	}
	b := batch{}
	return context.WithValue(ctx, batchKey{}, b), func() {
		for dir, files := range b {
			writeAll(ctx, h, dir, files)
		}
	}
}

// batch is what a call has to write at its end, by directory.
type batch map[string][]File

type batchKey struct{}

func (b batch) add(dir string, f File) {
	if !slices.Contains(b[dir], f) {
		b[dir] = append(b[dir], f)
	}
}

func writeAll(ctx context.Context, h *roles.Host, dir string, files []File) {
	// The call may be past its deadline: its changes are written nevertheless.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := write(ctx, h, dir, files); err != nil {
		h.Log.Warn("state files of azure's form are behind", "directory", dir, "files", files, "error", err)
	}
}

func defaultDir(runDir string) string {
	if runDir == "/run/cnibox" {
		return "/run"
	}
	return runDir
}

// write holds the directory's lock, so that what is written last was read last. One
// process writes, and all others wait for its end; the next one that finds its change
// missing writes the changes of all. If each took the lock in turn, the last one would
// wait for all others.
func write(ctx context.Context, h *roles.Host, dir string, files []File) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	defer d.close()
	name := "azureview" + dir
	lock, mine, err := h.Store.TryLockShared(ctx, name, true)
	for range rounds {
		if err != nil || mine {
			break
		}
		end, e := h.Store.LockShared(ctx, name, false)
		if e != nil {
			return e
		}
		end.Unlock()
		if files = d.behind(h, files); len(files) == 0 {
			return nil
		}
		lock, mine, err = h.Store.TryLockShared(ctx, name, true)
	}
	if err == nil && !mine {
		lock, err = h.Store.LockShared(ctx, name, true)
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if files = d.behind(h, files); len(files) == 0 {
		return nil
	}
	docs, err := render(ctx, h, files)
	for i, doc := range docs {
		if e := d.replace(files[i], doc); e != nil {
			return errors.Join(e, err)
		}
	}
	if len(docs) > 0 {
		err = errors.Join(d.sync(), err)
	}
	return err // of records that cannot be read: the rest was written
}

// render makes the files' documents of one transaction; nil if that fails. Otherwise the
// error is about records that cannot be read.
func render(ctx context.Context, h *roles.Host, files []File) ([][]byte, error) {
	now := h.Now()
	docs := make([][]byte, len(files))
	inv := newInventory()
	var faults []error
	read := func(tx *store.Tx) error {
		revision, err := tx.Revision()
		if err != nil {
			return err
		}
		inv.revision = revision
		for i, f := range files {
			switch f {
			case Network:
				docs[i], err = networkView(tx, h, revision, now)
				if docs[i] == nil {
					return err
				}
			case Addresses:
				err = inv.read(tx)
			default:
				return fmt.Errorf("%q is not one of azure's state files", f)
			}
			faults = append(faults, err)
		}
		return nil
	}
	run := h.Store.View
	if _, ok := h.Store.Seen(); ok && slices.Contains(files, Network) {
		run = h.Store.Update // what is derived anew is kept
	}
	if err := run(ctx, read); err != nil {
		return nil, fmt.Errorf("read the node's state: %w", err)
	}
	if i := slices.Index(files, Addresses); i >= 0 {
		faults = append(faults, inv.nameInterfaces(ctx, h))
		doc, err := inv.view(h, now)
		if err != nil {
			return nil, err
		}
		docs[i] = doc
	}
	return docs, errors.Join(faults...)
}
