package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

// On some network file systems flock(2) succeeds and does not reach other machines: NFS with nolock, sshfs, 9p. What all of them do for
// all machines is to create a file exclusively. So who has the lock makes a file with its name, too. If that file is there, it is of a
// process that was killed, and stays as it is, or of one that works at the same time: then the lock is none, and the registry is not used
// any more.
const (
	holderDir  = "lock-holder"
	holderFile = "name"
	maxHolder  = 1 << 10
	// abandonedAfter is how long the file of a killed process is waited for. A holder needs milliseconds.
	abandonedAfter = 2 * time.Second
)

// take makes the file with the holder's name. The caller has the lock until after leave.
func (r *Registry) take(ctx context.Context) (leave func(), err error) {
	path := filepath.Join(r.o.Dir, holderDir, holderFile)
	name := r.o.Name + " " + rand.Text()
	wait := web.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}
	var found string
	var since time.Time
	for {
		err := create(path, name)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("lock: %w: %w", cluster.ErrUnavailable, err)
			}
			continue
		}
		if err == nil {
			return func() {
				if now, err := smallfile.ReadOwn(path, maxHolder); err == nil && string(now) != name || errors.Is(err, fs.ErrNotExist) {
					_ = r.together(string(now)) // the next call returns it
					return
				}
				_ = os.Remove(path) // the next holder waits, if it stays
			}, nil
		}
		now, readErr := smallfile.ReadOwn(path, maxHolder)
		switch {
		case !errors.Is(err, fs.ErrExist) || readErr != nil && !errors.Is(readErr, fs.ErrNotExist):
			return nil, fmt.Errorf("lock: %w: %w", cluster.ErrUnavailable, errors.Join(err, readErr))
		case since.IsZero() && readErr == nil:
			found, since = string(now), time.Now()
		case readErr != nil || string(now) != found:
			return nil, r.together(found)
		case time.Since(since) > abandonedAfter:
			if err := r.clear(path, found); err != nil {
				return nil, err
			}
			since = time.Time{}
		}
		if err := wait.Wait(ctx, 0); err != nil {
			return nil, fmt.Errorf("lock: %w: %s is of a process that was killed: %w", cluster.ErrUnavailable, path, err)
		}
	}
}

func create(path, name string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(name)
	return errors.Join(err, f.Close())
}

// clear removes the file of a killed process. What it reads could be old, because network file systems cache: the new name is not cached.
func (r *Registry) clear(path, found string) error {
	aside := path + "." + rand.Text()
	err := os.Rename(path, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return r.together(found)
	}
	var now []byte
	if err == nil {
		now, err = smallfile.ReadOwn(aside, maxHolder)
	}
	if err != nil {
		return fmt.Errorf("lock: %w: %w", cluster.ErrUnavailable, err)
	}
	if string(now) != found {
		return r.together(found)
	}
	_ = os.Remove(aside)
	return nil
}

// together returns the error for two holders of the lock, now and from now on.
func (r *Registry) together(other string) error {
	err := fmt.Errorf("lock %s: %w: %.80q had it at the same time: flock(2) does not reach other machines on this file system: "+
		"use a mount with locks (NFS without nolock and local_lock), etcd or Kubernetes, then start the agents again", r.o.Dir, cluster.ErrInvalid, other)
	r.unlocked.Store(&err)
	return err
}
