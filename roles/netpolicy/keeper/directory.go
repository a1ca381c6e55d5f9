package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/internal/yaml"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

const (
	// maxFile bounds a file in bytes.
	maxFile = 1 << 20
	// rescanTime is the interval of readings without a notification.
	rescanTime = 30 * time.Second
	// settleTime is the time in which notifications are combined.
	settleTime = 20 * time.Millisecond
)

// Directory is a Source of YAML files, each with one object. If one is invalid, the last valid state of all files stays
// in force.
type Directory struct {
	Path string
	Log  *slog.Logger
	// read has the objects of the last reading.
	read  []*netpolicy.Object
	fault string
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

// Run reads the files after each change.
func (d *Directory) Run(ctx context.Context, put func(func(*netpolicy.Table))) {
	synced := false
	for ctx.Err() == nil {
		wait, closeWait := d.watch() // before reading, so that no change is missed
		objects, err := d.readAll()
		d.report(err)
		if err == nil {
			old := d.read
			put(func(t *netpolicy.Table) { replace(t, old, objects) })
			d.read = objects
			d.warn(old, objects)
			if !synced {
				put(nil)
			}
			synced = true
		}
		select {
		case <-ctx.Done():
		case <-wait:
		case <-time.After(rescanTime):
		}
		closeWait()
		select { // a program may write several files
		case <-ctx.Done():
		case <-time.After(settleTime):
		}
	}
}

func (d *Directory) report(err error) {
	text := fmt.Sprint(err)
	if text != d.fault && err != nil {
		d.Log.Error("network policies cannot be read: the last valid ones stay in force", "error", err)
	}
	d.fault = text
}

// warnUnenforced logs what cnibox does not enforce of a policy.
func warnUnenforced(log *slog.Logger, p *netpolicy.ClusterPolicy) {
	if len(p.Unenforced) > 0 {
		log.Warn("cluster network policy: domain names are not enforced: their Accept rules match nothing, and their other rules deny all", "policy", p.Name, "at", p.Unenforced)
	}
}

// warn logs what is not enforced of the objects that differ from those of the last reading.
func (d *Directory) warn(old, objects []*netpolicy.Object) {
	for _, o := range objects {
		same := func(n *netpolicy.Object) bool {
			return n.ID == o.ID && slices.Equal(n.Cluster.Unenforced, o.Cluster.Unenforced)
		}
		if o.Cluster != nil && !slices.ContainsFunc(old, same) {
			warnUnenforced(d.Log, o.Cluster)
		}
	}
}

// replace changes a table from the objects of one reading to those of another.
func replace(t *netpolicy.Table, old, objects []*netpolicy.Object) {
	for _, o := range old {
		kept := func(n *netpolicy.Object) bool { return n.ID == o.ID }
		if !slices.ContainsFunc(objects, kept) {
			o.RemoveFrom(t)
		}
	}
	for _, o := range objects {
		o.PutInto(t)
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

// readAll reads all files.
func (d *Directory) readAll() (objects []*netpolicy.Object, err error) {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return nil, err
	}
	var errs []error
	files := map[string]string{}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".yaml" && ext != ".yml" && ext != ".json" {
			continue
		}
		path := filepath.Join(d.Path, e.Name())
		o, err := readFile(path)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		case files[o.ID] != "":
			errs = append(errs, fmt.Errorf("%s: %s is also in %s", path, o.ID, files[o.ID]))
		}
		files[o.ID] = path
		objects = append(objects, o)
	}
	return objects, errors.Join(errs...)
}

func readFile(path string) (*netpolicy.Object, error) {
	content, err := smallfile.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	doc, err := yaml.ToJSON(content)
	if err != nil {
		return nil, err
	}
	return netpolicy.Decode(doc)
}

// watch returns a channel that is closed after a change in the directory (inotify(7)). A directory that does not exist is
// watched for by its parent.
func (d *Directory) watch() (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{})
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return ch, func() {}
	}
	const events = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_CREATE
	if _, err := unix.InotifyAddWatch(fd, d.Path, events); err != nil {
		_, _ = unix.InotifyAddWatch(fd, filepath.Dir(d.Path), events) // or a rescan finds it
	}
	f := os.NewFile(uintptr(fd), "inotify")
	go func() {
		buf := make([]byte, 4096)
		if _, err := f.Read(buf); err == nil {
			close(ch)
		}
	}()
	return ch, func() { _ = f.Close() }
}
