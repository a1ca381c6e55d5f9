package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/look"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// The maximum times of parts that wait for another process.
const (
	stateTime = 2 * time.Second
	agentTime = 3 * time.Second
	auditTime = 20 * time.Second
)

// subnetEnv is flannel's file with the subnet of the node.
const subnetEnv = "/run/flannel/subnet.env"

// Options are what the command line knows and this package does not.
type Options struct {
	Table     roles.Table
	Program   string
	Runtimes  []Runtime
	Netavark  bool
	CacheDirs []string
	// StateDir is the directory of keep.db.
	StateDir string
	// Home is the directory of this program's plugins, and Install the command that installs them there.
	Home, Install string
	// Look finds the plugin of a type as a runtime does.
	Look func(dirs []string, typ string) Plugin
	// Calls are those that take long.
	Calls []Call
	// Audit compares the recorded attachments with the kernel.
	Audit func(ctx context.Context, dump *store.Dump) ([]Difference, error)
}

// reader collects the facts.
type reader struct {
	h *roles.Host
	o Options
	f *Facts
}

// node is what a node says of itself.
type node struct {
	Name, Restart string
	Now           time.Time
}

// Read reads the node. What cannot be read is in Facts.Unread. It asks known for each fact, so h is not read if known has all of them.
func Read(ctx context.Context, h *roles.Host, known *view.Host, o Options) *Facts {
	is, _ := view.Ask(known, "node", func() (node, error) {
		name, _ := os.Hostname() // the report is for this node, whatever its name
		return node{name, AgentFix(name), h.Now()}, nil
	})
	r := &reader{h: h, o: o, f: &Facts{
		Node: is.Name, Host: known, Restart: is.Restart, Program: o.Program, Now: is.Now, Runtimes: slices.Clone(o.Runtimes), Netavark: o.Netavark, Calls: o.Calls,
	}}
	r.readConf()
	r.readKernel(ctx)
	r.readState(ctx)
	r.readCaches()
	r.readUnrecorded(ctx)
	r.readOverlay(ctx)
	r.readPolicies(ctx)
	r.readFeatures(ctx)
	caches := map[string]*recovery.CacheEntry{}
	for _, c := range r.f.Caches {
		caches[attachment.Label(c.Key())] = c
	}
	r.f.Records = advice.New(r.f.State.Dump, caches, r.f.links())
	return r.f
}

// unread notes that a fact could not be read.
func (r *reader) unread(what string, err error) { r.f.unread(what, err) }

// objects asks for objects of the kernel.
func (r *reader) objects(question string, read func() ([]netops.Object, error)) ([]netops.Object, error) {
	all, err := view.Ask(r.f.Host, question, func() (netops.Spec, error) {
		all, err := read()
		return netops.Spec{Objects: all}, err
	})
	return all.Objects, err
}

// readKernel reads cnibox's own rules and those of kube-proxy.
func (r *reader) readKernel(ctx context.Context) {
	n, known := r.h.Net, r.f.Host
	w := &r.f.Firewall
	var errs [4]error
	w.Lost, errs[0] = view.Ask(known, "lost sets", func() ([]string, error) {
		lost, err := n.LostSets(ctx)
		if err == nil && len(lost) == 0 {
			lost, err = n.FlushedSets(ctx)
		}
		return lost, err
	})
	w.Labelled, errs[1] = r.objects("labelled rules", func() ([]netops.Object, error) { return n.Labelled(ctx, attachment.LabelPrefix) })
	w.StrayTrace, errs[2] = view.Ask(known, "stray trace", func() (bool, error) { return packets.HasStrayTrace(ctx) })
	w.KubeProxy, errs[3] = view.Ask(known, "kube-proxy", func() (bool, error) { return look.HasKubeProxy(ctx, n) })
	for _, err := range errs {
		r.unread("packet filter", err)
	}
}

// stateFiles are the files and directories of the state.
type stateFiles struct {
	RunDir, StateDir string
	Modes            []Mode
}

// readState reads node.db and keep.db, and compares the attachments.
func (r *reader) readState(ctx context.Context) {
	s, st, known := &r.f.State, r.h.Store, r.f.Host
	files, _ := view.Ask(known, "state files", func() (stateFiles, error) {
		f := stateFiles{RunDir: st.RunDir(), StateDir: filepath.Dir(st.KeepPath())}
		for _, path := range []string{f.RunDir, filepath.Dir(st.Path()), st.Path(), f.StateDir, st.KeepPath()} {
			f.addMode(path)
		}
		return f, nil
	})
	s.RunDir, s.StateDir, s.Modes = files.RunDir, files.StateDir, files.Modes
	type none = struct{}
	_, runErr := view.Ask(known, "writable: "+s.RunDir, func() (none, error) { return none{}, st.CheckRunDir() })
	_, stateErr := view.Ask(known, "writable: "+s.StateDir, func() (none, error) { return none{}, st.CheckStateDir() })
	r.f.DirErrors = map[string]error{s.RunDir: runErr, s.StateDir: stateErr}
	_, s.Keep = view.Ask(known, "keep.db", func() (none, error) {
		ctx, cancel := context.WithTimeout(ctx, stateTime)
		defer cancel()
		return none{}, st.KeepCheck(ctx, (*store.KeepTx).Sound)
	})
	s.Dump, s.Node = view.Ask(known, "node.db", func() (dump *store.Dump, err error) {
		ctx, cancel := context.WithTimeout(ctx, stateTime)
		defer cancel()
		err = st.Check(ctx, func(tx *store.Tx) (err error) {
			dump, err = tx.Export()
			return err
		})
		return dump, err
	})
	eachFile(r.f, func(name string, err error) {
		known := errors.Is(err, store.ErrBusy) || errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSchema)
		if !known && len(s.Modes) == 0 {
			r.unread(name, err)
		}
	})
	if s.Node != nil {
		s.Dump = nil
		return
	}
	var err error
	r.f.Listeners, err = view.Ask(known, "listeners", func() ([]attachment.PortListener, error) {
		var published []attachment.PublishedPorts
		for _, c := range s.Dump.Claims {
			if c.Kind == store.KindPort {
				published = append(published, attachment.PublishedPorts{Owner: c.Owner, Ports: c.Resource().Ports})
			}
		}
		return attachment.PortListeners(ctx, published)
	})
	r.unread("sockets", err)
	if s.Keep == nil && len(s.Dump.Attachments) > 0 { // CHECK waits for keep.db, and would rebuild a missing node.db
		r.readDifferences(ctx)
	}
}

// readDifferences compares the attachments with the kernel.
func (r *reader) readDifferences(ctx context.Context) {
	type recorded struct {
		Difference
		Spec netops.Spec
	}
	all, err := view.Ask(r.f.Host, "differences", func() (all []recorded, _ error) {
		ctx, cancel := context.WithTimeout(ctx, auditTime)
		defer cancel()
		found, err := r.o.Audit(ctx, r.f.State.Dump)
		for _, d := range found {
			one := recorded{Difference: d}
			if d.Of != nil {
				one.Spec.Add(d.Of)
			}
			all = append(all, one)
		}
		return all, err
	})
	for _, one := range all {
		for _, of := range one.Spec.Objects {
			one.Of = of
		}
		r.f.Differences = append(r.f.Differences, one.Difference)
	}
	if !errors.Is(err, store.ErrUnwritable) { // it needs locks; the check disk reports it
		r.unread("attachments", err)
	}
}

// addMode checks owner and mode of a file or directory of the state.
func (s *stateFiles) addMode(path string) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	mode := Mode{Path: path}
	switch {
	case err != nil:
		return // it does not exist, or opening it fails too
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		mode.Fault, mode.Fix = "is a symbolic link", "rm "+path
		to, err := filepath.EvalSymlinks(path)
		var target unix.Stat_t
		if err == nil && unix.Lstat(to, &target) == nil && int(target.Uid) == os.Geteuid() && !strings.ContainsFunc(to, isSpecial) {
			mode.Fix += " && mv " + to + " " + path // the state is there
		}
	case int(st.Uid) != os.Geteuid():
		mode.Fault, mode.Fix = fmt.Sprintf("belongs to user %d", st.Uid), fmt.Sprintf("chown %d %s", os.Geteuid(), path)
	case st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o077 != 0:
		mode.Fault, mode.Fix = fmt.Sprintf("has mode %04o", st.Mode&0o7777), "chmod go= "+path
	default:
		return
	}
	s.Modes = append(s.Modes, mode)
}

// isSpecial reports whether a shell or a terminal may not take a rune of a path as it is.
func isSpecial(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/-_.", r)
}

// readCaches reads the runtimes' cached results.
func (r *reader) readCaches() {
	r.f.Caches = map[string]*recovery.CacheEntry{}
	for _, dir := range r.o.CacheDirs {
		all, err := ReadCached(r.f.Host, dir)
		r.unread("cached results in "+dir, err)
		maps.Copy(r.f.Caches, all.Entries)
		r.f.Damaged = append(r.f.Damaged, all.Damaged...)
	}
}

// Cached are the cached results of a directory, by path, and the files that are none.
type Cached struct {
	Entries map[string]*recovery.CacheEntry
	Damaged []string
}

// ReadCached reads a directory of cached results.
func ReadCached(known *view.Host, dir string) (Cached, error) {
	return view.Ask(known, "cached results: "+dir, func() (c Cached, unread error) {
		entries, err := os.ReadDir(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			unread = err
		}
		c.Entries = map[string]*recovery.CacheEntry{}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			one, err := recovery.ReadCache(path)
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			case err != nil || one.Kind != recovery.CacheKind:
				c.Damaged = append(c.Damaged, path)
			default:
				c.Entries[path] = one
			}
		}
		return c, unread
	})
}

// readUnrecorded finds rules without a record. Those of a cached result may have lost it.
func (r *reader) readUnrecorded(ctx context.Context) {
	if r.f.State.Dump == nil {
		return
	}
	all, err := r.objects("rules without a record", func() ([]netops.Object, error) {
		cached := map[string]bool{}
		for _, c := range r.f.Caches {
			cached[attachment.Label(c.Key())] = true
		}
		o, err := recovery.LastingOrphans(ctx, r.h, cached)
		if err != nil {
			return nil, err
		}
		return o.Unbound(), nil
	})
	r.unread("rules without a record", err)
	r.f.Firewall.Unrecorded = all
}

// isGone reports whether a path certainly does not exist.
func (f *Facts) isGone(path string) bool {
	gone, err := view.Ask(f.Host, "gone: "+path, func() (bool, error) {
		_, err := os.Lstat(path)
		return err != nil && attachment.IsAbsent(err), nil
	})
	return gone && err == nil
}

// isNetnsGone reports whether a recorded namespace certainly does not exist.
func (f *Facts) isNetnsGone(n store.Netns) bool {
	gone, err := view.Ask(f.Host, fmt.Sprintf("namespace gone: %+v", n), func() (bool, error) { return attachment.IsNetnsGone(n), nil })
	return gone && err == nil
}
