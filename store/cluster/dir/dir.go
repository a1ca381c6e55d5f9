// Package dir is a registry without a server: a directory of JSON files. It is for nodes that share
// a file system, such as simulated nodes on one machine, or machines with a network file system.
//
//	config.json        net-conf.json, written by the operator of the cluster
//	nodes/<name>.json  one node: name, publicIP, publicIPv6, podCIDRs,
//	                   backendType, backendData, backendV6Data, author
//	lock               locked (flock) while a node chooses its subnets or blocks
//	lock-holder/       the name of the node that does so, to notice a file system without locks
//	ranges/            pages of cluster-wide ranges
//	range-nodes/       a file for each node with blocks of them
//	nodeipam-nodes/    objects of nodes whose pod networks nodeipam assigns
//	nodeipam-leases/   the Lease of nodeipam's leader
//
// Files have mode 0644, because they have no secrets. They are replaced by renaming, so that a reader
// gets either the old record or the new one. An incomplete file of another writer is a fault of its
// entry. Changes are noticed by inotify, or within 30 s if inotify does not report them, as on network
// file systems.
package dir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/web"
)

const (
	configFile = "config.json"
	// configKey is the name of the configuration in Snapshot.Faults. No node can have it.
	configKey = "/" + configFile
	nodesDir  = "nodes"
	lockFile  = "lock"
	suffix    = ".json"
	// maxConfig and maxRecord bound the sizes of the files, maxNodes their number.
	maxConfig = 1 << 20
	maxRecord = 64 << 10
	maxNodes  = 100_000
	// lockTimeout bounds the wait for other nodes that choose their subnets.
	lockTimeout = 10 * time.Second
)

// Options are the arguments of Open.
type Options struct {
	// Dir is the directory's absolute path. Name is the node's name.
	Dir, Name string
	// Owner decides which record is the node's own. It may be nil.
	Owner *cluster.Owner
	// Warn is called for each key of the configuration that has no effect. It may be nil.
	Warn func(string)
	// Found is called when the registry is found. If it is set and there is no configuration, the
	// registry is made in an existing directory, which suffices for ranges. It is nil for a node
	// that has used the registry before, because then the directory is a mount point of a file
	// system that is not mounted.
	Found func()
	// Rescan is the interval at which a watch compares all files, for changes that inotify does not report: those of
	// other machines on a network file system. 0 means 30 s.
	Rescan time.Duration
}

// Registry is a directory that is opened for one node.
type Registry struct {
	o Options
	// turn is held with the lock. The goroutines of a process wait for it in order, and none waits too long.
	turn chan struct{}
	// pages watches the pages of ranges, and is nil before they exist.
	pages *notifier
	// unlocked is the error of a lock that two nodes had at the same time.
	unlocked atomic.Pointer[error]
	// found is done when Options.Found was called.
	found sync.Once
}

// Open checks the options. It does not read the directory, which may be created later.
func Open(o Options) (*Registry, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("open cluster directory %q: %w: not an absolute path", o.Dir, cluster.ErrInvalid)
	}
	if err := cluster.CheckName(o.Name); err != nil {
		return nil, fmt.Errorf("open cluster directory: %w", err)
	}
	o.Dir = filepath.Clean(o.Dir)
	if o.Rescan == 0 {
		o.Rescan = rescan
	}
	return &Registry{o: o, turn: make(chan struct{}, 1)}, nil
}

// config reads config.json.
func (r *Registry) config() (*cluster.Config, []string, error) {
	path := filepath.Join(r.o.Dir, configFile)
	b, err := smallfile.Read(path, maxConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read network configuration: %w: %w", cluster.ErrUnavailable, err)
	}
	c, warnings, err := cluster.ParseSubnetConfig(b)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return c, warnings, nil
}

// Acquire writes the node's file under the lock if its content differs.
func (r *Registry) Acquire(ctx context.Context, want cluster.Node) (cluster.Node, error) {
	want.Name = r.o.Name
	err := want.Check()
	if err == nil {
		err = r.publish(ctx, &want)
	}
	if err != nil {
		return cluster.Node{}, fmt.Errorf("publish node %s: %w", want.Name, err)
	}
	r.o.Owner.Published(ctx, &want)
	return want, nil
}

// publish sets the pod networks and the author of a record, and writes it if it differs.
func (r *Registry) publish(ctx context.Context, want *cluster.Node) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	config, _, err := r.config()
	if err != nil {
		return err
	}
	own, others, err := r.others()
	if err != nil {
		return err
	}
	if err := r.o.Owner.Check(&own.node, want, false); err != nil {
		return err
	}
	want.PodCIDRs, err = config.Assign(cluster.SubnetRequest{
		Name: want.Name, Demanded: want.PodCIDRs, Own: own.node.PodCIDRs, Previous: r.o.Owner.Former(), Others: others,
	})
	if err != nil {
		return err
	}
	if own.err == nil && r.o.Owner.Unchanged(&own.node, want) {
		return nil
	}
	want.Author = r.o.Owner.Next(ctx, own.node.Author)
	return r.write(want)
}

func (r *Registry) write(n *cluster.Node) error {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	if err := smallfile.ReplaceSynced(r.path(n.Name), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
	}
	return nil
}

// Ready does nothing: this registry has no readiness.
func (r *Registry) Ready(context.Context) error { return nil }

// Release removes the node's files, unless they are another machine's.
func (r *Registry) Release(ctx context.Context) error {
	unlock, err := r.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	own := r.read(r.o.Name)
	if err := unread(own.err); err != nil {
		return fmt.Errorf("withdraw node: %w", err)
	}
	if err := r.o.Owner.Check(&own.node, &cluster.Node{}, false); err != nil {
		return fmt.Errorf("withdraw node: %w", err)
	}
	for _, path := range []string{r.path(r.o.Name), filepath.Join(r.o.Dir, rangeNodes, r.o.Name+suffix)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("withdraw node: %w", err)
		}
	}
	return nil
}

// Close ends DeletedPages.
func (r *Registry) Close() error {
	if r.pages != nil {
		r.pages.close()
	}
	return nil
}

func (r *Registry) path(name string) string {
	return filepath.Join(r.o.Dir, nodesDir, name+suffix)
}

// lock takes the directory's lock. The returned function releases it.
func (r *Registry) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if err := r.makeNodes(); err != nil {
		return nil, err
	}
	if err := r.unlocked.Load(); err != nil {
		return nil, *err
	}
	select {
	case r.turn <- struct{}{}: // also if ctx has ended
	default:
		select {
		case r.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("lock: %w: this process holds it: %w", cluster.ErrUnavailable, ctx.Err())
		}
	}
	defer func() {
		if err != nil {
			<-r.turn
		}
	}()
	path := filepath.Join(r.o.Dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w: %w", cluster.ErrUnavailable, err)
	}
	wait := web.Backoff{Min: 2 * time.Millisecond, Max: 50 * time.Millisecond}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			leave, err := r.take(ctx)
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return func() { leave(); _ = f.Close(); <-r.turn }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w: %w", path, cluster.ErrUnavailable, err), f.Close())
		}
		if err := wait.Wait(ctx, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w: another process holds it: %w", path, cluster.ErrUnavailable, err), f.Close())
		}
	}
}

// makeNodes creates the directory of the nodes, but not its parent, which may be the mount point of
// a file system that is not mounted.
func (r *Registry) makeNodes() error {
	err := os.Mkdir(filepath.Join(r.o.Dir, nodesDir), 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open cluster directory: %w: there is no %s: create it with the network's %s, or mount it: %w", cluster.ErrUnavailable, r.o.Dir, configFile, fs.ErrNotExist)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("open cluster directory: %w: %w", cluster.ErrUnavailable, err)
	}
	return nil
}

// others reads every record under the lock: the node's own, and those of other nodes. An invalid record
// reserves its subnets, too.
func (r *Registry) others() (own record, others []*cluster.Node, err error) {
	entries, err := r.list(nodesDir)
	if err != nil {
		return own, nil, err
	}
	r.tidy(nodesDir, entries)
	for _, name := range namesOf(entries) {
		rec := r.read(name)
		if err := unread(rec.err); err != nil {
			return own, nil, err // its subnets may be those that this node would choose
		}
		if name == r.o.Name {
			own = rec
			continue
		}
		rec.node.Name = name
		others = append(others, &rec.node)
	}
	return own, others, nil
}

// list returns the files of a directory of the registry, in order. A missing directory is fs.ErrNotExist.
func (r *Registry) list(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(filepath.Join(r.o.Dir, dir))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w: %w", dir, cluster.ErrUnavailable, err)
	}
	if len(entries) > maxNodes {
		return nil, fmt.Errorf("list %s: %w: more than %d files", dir, cluster.ErrInvalid, maxNodes)
	}
	return entries, nil
}

// tidy removes what writers left that were killed while they replaced a file. The caller holds the lock, so no other
// process writes a file now. An error does not matter: the next caller tries again.
func (r *Registry) tidy(dir string, entries []fs.DirEntry) {
	for _, e := range entries {
		if of, ok := smallfile.Unfinished(e.Name()); ok && strings.HasSuffix(of, suffix) && e.Type().IsRegular() {
			_ = os.Remove(filepath.Join(r.o.Dir, dir, e.Name()))
		}
	}
}

// namesOf returns the names of the nodes that have a file. Other files are ignored.
func namesOf(entries []fs.DirEntry) []string {
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if name, ok := nameOf(e.Name()); ok {
			names = append(names, name)
		}
	}
	return names
}

// nameOf returns the name of a file's node. A hidden file is being written and has none.
func nameOf(file string) (string, bool) {
	name, ok := strings.CutSuffix(file, suffix)
	return name, ok && name != "" && name[0] != '.'
}

// record is the content of a file. If err is set, node has the valid part.
type record struct {
	node cluster.Node
	err  error
}

func (r *Registry) read(name string) record {
	b, err := smallfile.ReadOwn(r.path(name), maxRecord)
	if err != nil {
		return record{err: err}
	}
	return decode(name, b)
}

// unread returns an error if a file could not be read although it may be a record: the file system failed, or this process has no
// descriptor left. A link, a socket, or a file that root may not read is not of an agent.
func unread(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) || slices.Contains([]unix.Errno{unix.ENOENT, unix.ELOOP, unix.ENXIO, unix.EACCES, unix.EPERM}, errno) {
		return nil
	}
	return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
}

// decode decodes a record. Its name must be that of the file.
func decode(name string, b []byte) record {
	if err := cluster.CheckName(name); err != nil {
		return record{err: err}
	}
	var n cluster.Node
	if err := json.Unmarshal(b, &n); err != nil {
		return record{err: fmt.Errorf("%w: %w", cluster.ErrInvalid, err)}
	}
	if n.Name != "" && n.Name != name {
		return record{node: n, err: fmt.Errorf("%w: the name is %q in the file of %s", cluster.ErrInvalid, n.Name, name)}
	}
	n.Name = name
	return record{node: n, err: n.Check()}
}
