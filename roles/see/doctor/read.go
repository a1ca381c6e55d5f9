package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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

// Read reads the node. What cannot be read is in Facts.Unread.
func Read(ctx context.Context, h *roles.Host, o Options) *Facts {
	name, _ := os.Hostname() // the report is for this node, whatever its name
	r := &reader{h: h, o: o, f: &Facts{Node: name, Host: view.NewHost(ctx, h.Net), Restart: AgentFix(name), Program: o.Program, Now: h.Now(), Runtimes: o.Runtimes, Netavark: o.Netavark, Calls: o.Calls}}
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

// readKernel reads cnibox's own rules and those of kube-proxy.
func (r *reader) readKernel(ctx context.Context) {
	f, n := r.f, r.h.Net
	w := &f.Firewall
	for _, read := range []func() error{
		func() (err error) {
			w.Lost, err = n.LostSets(ctx)
			if err == nil && len(w.Lost) == 0 {
				w.Lost, err = n.FlushedSets(ctx)
			}
			return err
		},
		func() (err error) { w.Labelled, err = n.Labelled(ctx, attachment.LabelPrefix); return err },
		func() (err error) { w.StrayTrace, err = packets.HasStrayTrace(ctx); return err },
		func() (err error) { w.KubeProxy, err = look.HasKubeProxy(ctx, n); return err },
	} {
		r.unread("packet filter", read())
	}
}

// readState reads node.db and keep.db, and compares the attachments.
func (r *reader) readState(ctx context.Context) {
	s := &r.f.State
	st := r.h.Store
	s.RunDir, s.StateDir = st.RunDir(), filepath.Dir(st.KeepPath())
	for _, path := range []string{s.RunDir, filepath.Dir(st.Path()), st.Path(), s.StateDir, st.KeepPath()} {
		s.addMode(path)
	}
	r.f.DirErrors = map[string]error{s.RunDir: st.CheckRunDir(), s.StateDir: st.CheckStateDir()}
	bounded := func(check func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, stateTime)
		defer cancel()
		return check(ctx)
	}
	s.Keep = bounded(func(ctx context.Context) error { return st.KeepCheck(ctx, (*store.KeepTx).Sound) })
	s.Node = bounded(func(ctx context.Context) error {
		return st.Check(ctx, func(tx *store.Tx) (err error) {
			s.Dump, err = tx.Export()
			return err
		})
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
	var published []attachment.PublishedPorts
	for _, c := range s.Dump.Claims {
		if c.Kind == store.KindPort {
			published = append(published, attachment.PublishedPorts{Owner: c.Owner, Ports: c.Resource().Ports})
		}
	}
	var err error
	r.f.Listeners, err = attachment.PortListeners(ctx, published)
	r.unread("sockets", err)
	s.Census, err = attachment.NewCensus(ctx, r.h)
	r.unread("interfaces", err)
	if err != nil || s.Keep != nil || len(s.Dump.Attachments) == 0 {
		return // CHECK waits for keep.db, and would rebuild a missing node.db
	}
	ctx, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	r.f.Differences, err = r.o.Audit(ctx, s.Dump)
	if !errors.Is(err, store.ErrUnwritable) { // it needs locks; the check disk reports it
		r.unread("attachments", err)
	}
}

// addMode checks owner and mode of a file or directory of the state.
func (s *State) addMode(path string) {
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
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.unread("cached results in "+dir, err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			c, err := recovery.ReadCache(path)
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			case err != nil || c.Kind != recovery.CacheKind:
				r.f.Damaged = append(r.f.Damaged, path)
			default:
				r.f.Caches[path] = c
			}
		}
	}
}

// readUnrecorded finds rules without a record. Those of a cached result may have lost it.
func (r *reader) readUnrecorded(ctx context.Context) {
	if r.f.State.Dump == nil {
		return
	}
	cached := map[string]bool{}
	for _, c := range r.f.Caches {
		cached[attachment.Label(c.Key())] = true
	}
	o, err := recovery.LastingOrphans(ctx, r.h, cached)
	r.unread("rules without a record", err)
	if err == nil {
		r.f.Firewall.Unrecorded = o.Unbound()
	}
}
