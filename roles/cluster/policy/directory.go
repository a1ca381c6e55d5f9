package policy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cnibox/cnibox/roles/netpolicy"
)

const (
	// maxFile bounds a file in bytes.
	maxFile = 1 << 20
	// rescanTime is the interval of readings without a notification.
	rescanTime = 30 * time.Second
	// settleTime is the time in which notifications are combined.
	settleTime = 20 * time.Millisecond
	// firstTime bounds the time in which the first reading waits for files that change all the time.
	firstTime = time.Second
)

// Directory is a Source of YAML files, each with one object. Each file counts by itself. In place of an invalid one, its last valid state is in
// force. If that is not known, the namespace of its policy is denied, or, if that is not known either, nothing is in force.
type Directory struct {
	Path string
	// Keep is the directory with copies of the last valid states, which outlive the agent, or "".
	Keep string
	// MustRead is true if the copies do not stand for a directory that cannot be read.
	MustRead bool
	Log      *slog.Logger
	// reads counts the files that were read.
	reads int
	// files are the files by name. ids has the name of the file whose object of an ID is in force.
	files map[string]*file
	ids   map[string]string
	// changes are changes of the Table that were not passed on yet.
	changes []func(*netpolicy.Table)
	// kept are the last valid states of an earlier agent by the name of the file. It is nil after the first reading. keptSums are those of
	// all copies.
	kept     map[string]json.RawMessage
	keptSums map[string][sha256.Size]byte
	// wasRead is true after the first reading of the directory.
	wasRead bool
	fault   string
}

// file is a file of the directory.
type file struct {
	// is identifies the content that was read last.
	is stamp
	// object is in force, or nil. isValid is true if it is what the file says, or what it said before.
	object  *netpolicy.Object
	isValid bool
	// wanted is a valid object that is not in force, because another file has its ID.
	wanted *netpolicy.Object
	// seen is what the file was at the time since, if it may be in writing.
	seen  stamp
	since time.Time
	// reason is that of the last logged fault, or "".
	reason string
}

// FromFiles returns true.
func (d *Directory) FromFiles() bool { return true }

// Publish does nothing: there are no other nodes.
func (d *Directory) Publish(map[string]netpolicy.Given) {}

// OnNode is not used: the attachments are the pods.
func (d *Directory) OnNode(*netpolicy.Pod) bool { return false }

// Fetch is not used: the attachments are the pods.
func (d *Directory) Fetch(context.Context, string, string) (*netpolicy.Pod, error) {
	return nil, fs.ErrNotExist
}

// Run reads the files that change.
func (d *Directory) Run(ctx context.Context, put func(func(*netpolicy.Table))) {
	d.files, d.ids = map[string]*file{}, map[string]string{}
	d.readKept()
	w := openWatcher(d.Path)
	defer w.close()
	begin := time.Now()
	synced := false
	for ctx.Err() == nil {
		changed := w.take()
		if err := d.look(changed); err != nil {
			d.report(err)
		} else if changed.all {
			d.report(nil)
		}
		again := d.unsettled()
		if len(d.changes) > 0 {
			changes := d.changes
			d.changes = nil
			put(func(t *netpolicy.Table) {
				for _, change := range changes {
					change(t)
				}
			})
		}
		if !synced && d.isKnown() && (again == nil || time.Since(begin) > firstTime) {
			put(nil)
			synced, d.kept = true, nil
		}
		select {
		case <-ctx.Done():
		case <-w.changed:
			select { // a program may write several files
			case <-ctx.Done():
			case <-time.After(settleTime):
			}
		case <-again:
		case <-time.After(rescanTime):
			w.all()
		}
	}
}

// isKnown reports whether the directory was read, or what an earlier agent read of it is known.
func (d *Directory) isKnown() bool { return d.wasRead || !d.MustRead && len(d.kept) > 0 }

// report logs that the directory cannot be read.
func (d *Directory) report(err error) {
	text := fmt.Sprint(err)
	if text == d.fault {
		return
	}
	d.fault = text
	var f *netpolicy.Fault
	if err != nil {
		f, _ = netpolicy.NewFault(d.Path, err, "the last valid state of its files is in force")
		d.Log.Error("network policies cannot be read: the last valid ones stay in force", "error", err)
	}
	d.changes = append(d.changes, func(t *netpolicy.Table) { t.SetFault(d.Path, f) })
}

// warnUnenforced logs what cnibox does not enforce of a policy.
func warnUnenforced(log *slog.Logger, p *netpolicy.ClusterPolicy) {
	if len(p.Unenforced) > 0 {
		log.Warn("cluster network policy: domain names are not enforced: their Accept rules match nothing, and their other rules deny all", "policy", p.Name, "at", p.Unenforced)
	}
}

// Check returns an error if the directory cannot be read.
func (d *Directory) Check() error {
	_, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read network policies: %w: run 'mkdir -p %s'", err, d.Path)
	}
	return err
}

// isPolicyFile reports whether a file of this name has an object.
func isPolicyFile(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml" || ext == ".json"
}

// look reads what changed. Files that are gone come first: an object may be in another file now.
func (d *Directory) look(changed changed) error {
	for name, f := range d.files { // that may be in writing
		if !f.since.IsZero() {
			changed.names[name] = changed.names[name] || false
		}
	}
	if changed.all {
		entries, err := os.ReadDir(d.Path)
		if err != nil {
			d.useKept()
			return err
		}
		d.wasRead = true
		for name := range d.files {
			changed.names[name] = changed.names[name] || false
		}
		for _, e := range entries {
			if isPolicyFile(e.Name()) {
				changed.names[e.Name()] = changed.names[e.Name()] || false
			}
		}
	}
	if _, err := os.Stat(d.Path); err != nil { // then its files were not deleted one by one
		return err
	}
	var present []string
	for _, name := range slices.Sorted(maps.Keys(changed.names)) {
		if _, err := os.Lstat(filepath.Join(d.Path, name)); errors.Is(err, fs.ErrNotExist) {
			d.forget(name)
		} else {
			present = append(present, name)
		}
	}
	for _, name := range present {
		d.read(name, changed.names[name])
	}
	d.retryWanted()
	if changed.all {
		d.tidyKept()
	}
	return nil
}

// forget removes the object of a file that is gone.
func (d *Directory) forget(name string) {
	if d.files[name] == nil {
		return
	}
	d.use(name, nil, true)
	delete(d.files, name)
	d.setFault(name, nil)
	d.dropKept(name)
}

// use puts an object in force in place of that of a file.
func (d *Directory) use(name string, o *netpolicy.Object, isValid bool) {
	f := d.files[name]
	if old := f.object; old != nil && (o == nil || old.ID != o.ID) {
		d.changes = append(d.changes, old.RemoveFrom)
		delete(d.ids, old.ID)
	}
	f.object, f.isValid, f.wanted = o, isValid, nil
	if o == nil {
		return
	}
	d.ids[o.ID] = name
	d.changes = append(d.changes, o.PutInto)
}

// retryWanted puts objects in force that another file had.
func (d *Directory) retryWanted() {
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		if f := d.files[name]; f.wanted != nil && d.ids[f.wanted.ID] == "" {
			d.accept(name, f.wanted)
		}
	}
}

// accept puts the valid object of a file in force, unless another file has it.
func (d *Directory) accept(name string, o *netpolicy.Object) {
	f := d.files[name]
	if other := d.ids[o.ID]; other != "" && other != name {
		if !f.isValid {
			d.use(name, nil, false) // the object is in force, by the other file
		}
		d.refuse(name, nil, fmt.Errorf("%s is also in %s: remove one of the files", o.ID, filepath.Join(d.Path, other)))
		f.wanted = o
		return
	}
	if o.Cluster != nil && (f.object == nil || f.object.Cluster == nil || !slices.Equal(f.object.Cluster.Unenforced, o.Cluster.Unenforced)) {
		warnUnenforced(d.Log, o.Cluster)
	}
	d.use(name, o, true)
	d.setFault(name, nil)
}

// setFault notes why a file is not in force, and logs that once.
func (d *Directory) setFault(name string, f *netpolicy.Fault) {
	path := filepath.Join(d.Path, name)
	d.changes = append(d.changes, func(t *netpolicy.Table) { t.SetFault(path, f) })
	one := d.files[name]
	reason := ""
	if f != nil {
		reason = f.String()
	}
	switch {
	case one == nil || reason == one.reason:
	case f != nil:
		d.Log.Error("a file of network policies is not in force", "fault", reason)
	default:
		d.Log.Warn("a file of network policies is in force again", "file", path)
	}
	if one != nil {
		one.reason = reason
	}
}
