package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// saving is the result of a writing of the saved policies.
type saving struct {
	is  fs.FileInfo
	err error
}

// mark marks the node as one that enforces policies, in the state that outlives a boot, and by the file of the saved policies.
func (k *Keeper) mark(ctx context.Context) error {
	path := enforce.SavedPath(k.Host.Store)
	if is, err := os.Lstat(path); err == nil && is.Size() > 0 {
		k.hasSaved = true // the agent was killed before it marked that
	}
	e := &store.Enforcing{Since: k.Host.Now(), Source: k.From, Known: k.hasSaved}
	if err := k.Host.Store.SetEnforcing(ctx, e); err != nil {
		return fmt.Errorf("mark the node as one that enforces network policies: %w", err)
	}
	k.hasSaved = e.Known
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return smallfile.Replace(path, nil, 0o600)
	}
	return nil
}

// save begins to write what an ADD needs if the agent does not answer, unless that was written just now. The next change does not wait for
// the disk.
func (k *Keeper) save() {
	if k.isSaving || k.table.IsSaved || time.Since(k.saveEnd) < saveTime {
		return
	}
	k.isSaving = true
	s := k.table.Save(k.Source.FromFiles())
	go func() {
		is, err := enforce.WriteSaved(k.Host.Store, s)
		k.saved <- saving{is, err}
	}()
}

// isSavedGone reports whether another program deleted or changed the saved policies. Then they are written again.
func (k *Keeper) isSavedGone() bool {
	if k.isSaving || !k.table.IsSaved {
		return false
	}
	is, err := os.Lstat(enforce.SavedPath(k.Host.Store))
	same := err == nil && k.savedIs != nil && os.SameFile(is, k.savedIs) && is.ModTime().Equal(k.savedIs.ModTime()) && is.Size() == k.savedIs.Size()
	k.table.IsSaved = same
	return !same
}

// endSaving writes the saved policies before the Keeper ends.
func (k *Keeper) endSaving() {
	if k.isSaving {
		k.endSave(<-k.saved)
	}
	k.saveEnd = time.Time{}
	if k.synced {
		k.save()
	}
	if k.isSaving {
		k.endSave(<-k.saved)
		k.report(k.saveErr)
	}
}

// endSave notes the end of a writing, and reports whether its result is new.
func (k *Keeper) endSave(s saving) (isNew bool) {
	err := s.err
	isNew = err != nil || k.saveErr != nil
	k.table.IsSaved = k.table.IsSaved && err == nil
	k.isSaving, k.saveErr, k.saveEnd = false, err, time.Now()
	k.savedIs = s.is
	if k.table.IsSaved {
		k.counts.saved()
	}
	return isNew
}

// noteSaved notes the end of a writing, and in the node's mark that policies were saved once. It reports whether the result is new.
func (k *Keeper) noteSaved(ctx context.Context, s saving) (isNew bool) {
	isNew = k.endSave(s)
	if s.err == nil && !k.hasSaved {
		k.hasSaved = true
		k.markErr = k.mark(ctx)
	}
	return isNew
}
