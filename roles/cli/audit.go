package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netlist"
	"github.com/cnibox/cnibox/roles/plugindir"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/roles/result"
	"github.com/cnibox/cnibox/store"
)

// The values of difference.Fix.
const (
	fixRepair  = "cnibox repair"
	fixRestart = "restart the container"
	fixRemove  = "remove the container with its runtime"
	fixPath    = "name the plugins' directory with --cni-path"
)

// difference is one difference between an attachment and its specification.
type difference struct {
	store.Key
	Pod    string `json:"pod,omitempty"`
	Object string `json:"object"`
	Want   string `json:"want"`
	Have   string `json:"have"`
	// Fix is what to do about it.
	Fix string `json:"fix"`
	// of is the object, or nil.
	of netops.Object
}

// audited is one attachment of the node. A runtime's cache or a record describes it, or both.
type audited struct {
	store.Key
	pod    string
	cached *recovery.CacheEntry
	record *store.Attachment
	found  []difference
	// plan repairs what can be repaired. dead means that the attachment can be removed.
	plan netops.Plan
	dead bool
}

// auditor compares the attachments of a node with their specifications. For an attachment in
// a runtime's cache it runs CHECK of the network's plugins, also of other programs. For others it
// compares the recorded objects.
type auditor struct {
	p        *Process
	h        *roles.Host
	delegate roles.Delegator
	path     []string
	census   *record.Census
	records  map[store.Key]*store.Attachment
}

// pluginDirs are the directories in which runtimes look for plugins by default.
func pluginDirs() []string { return []string{defaultPluginDir, "/usr/lib/cni", "/usr/libexec/cni"} }

// newAuditor reads the records, unless dump has them. The plugins are those in the directories of the flag
// --cni-path or of CNI_PATH, else those of all runtimes.
func (p *Process) newAuditor(ctx context.Context, h *roles.Host, path string, dump *store.Dump) (*auditor, error) {
	a := &auditor{p: p, h: h, path: pluginDirs(), records: map[store.Key]*store.Attachment{}}
	// Only a role in this process returns its differences one by one.
	a.delegate = h.Delegate.WithCopies(func(file string) bool {
		f, err := plugindir.Open(filepath.Dir(file), p.Executable).Look(filepath.Base(file))
		return err == nil && f.Standing == plugindir.Ours
	})
	if path != "" || p.getenv("CNI_PATH") != "" {
		a.path = p.pluginPath(path)
	}
	if dump == nil {
		rebuilt, err := rebuildAndExport(ctx, h)
		if err != nil {
			return nil, stateHint(err)
		}
		dump = rebuilt
	}
	for i := range dump.Attachments {
		a.records[dump.Attachments[i].Key] = &dump.Attachments[i]
	}
	var err error
	a.census, err = record.NewCensus(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	return a, nil
}

// all compares all attachments, in the order of their keys.
func (a *auditor) all(ctx context.Context) ([]*audited, error) {
	var out []*audited
	covered := map[store.Key]bool{}
	for _, c := range recovery.ReadCaches(a.h, a.p.cacheDirs()) {
		one := &audited{Key: c.Key(), cached: c, record: a.records[c.Key()]}
		if !checkable(c) {
			one.cached = nil
		}
		if one.record == nil && one.cached == nil {
			continue
		}
		covered[one.Key] = true
		out = append(out, one)
	}
	if err := a.coverDelegates(ctx, covered); err != nil {
		return nil, err
	}
	for key, r := range a.records {
		if !covered[key] {
			out = append(out, &audited{Key: key, record: r})
		}
	}
	slices.SortFunc(out, func(x, y *audited) int {
		return cmp.Or(strings.Compare(x.Network, y.Network), strings.Compare(x.ContainerID, y.ContainerID), strings.Compare(x.IfName, y.IfName))
	})
	for _, one := range out {
		if err := a.audit(ctx, one, nil); err != nil {
			return nil, fmt.Errorf("check %s: %w", one.Describe(), err)
		}
	}
	return out, nil
}

// checkable reports whether CHECK can compare an attachment: its list has CHECK, and the cache
// has the result of ADD. A faulty list is an error of CHECK.
func checkable(c *recovery.CacheEntry) bool {
	l, err := netlist.Parse(c.Config, "0.1.0")
	return err != nil || len(c.Result) > 0 && !l.DisableCheck && result.AtLeast(l.CNIVersion, "0.4.0")
}

// coverDelegates marks the networks to which a meta role delegated, because the CHECK of the
// meta role compares them.
func (a *auditor) coverDelegates(ctx context.Context, covered map[store.Key]bool) error {
	return a.h.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		all, err := tx.Delegations("")
		for i := range all {
			owner := all[i].Owner
			for _, d := range all[i].Delegates {
				if l, _ := netlist.Parse(d.List, d.Version); l != nil && covered[owner] {
					covered[store.Key{Network: l.Name, ContainerID: owner.ContainerID, IfName: d.IfName}] = true
				}
			}
		}
		return err
	})
}

// audit compares one attachment, and calls then, if it is not nil, with the container's
// namespace. It holds the attachment's lock. An attachment whose lock another process holds is
// being made or removed, and has no differences. The error is a failure to read.
func (a *auditor) audit(ctx context.Context, one *audited, then func(*netops.Namespace) error) error {
	one.found, one.plan, one.dead = nil, netops.Plan{}, false
	lock, ok, err := a.h.Store.TryLockAttachment(ctx, one.Key)
	if err != nil || !ok {
		return err
	}
	defer lock.Unlock()
	if one.record != nil {
		err := a.h.Store.View(ctx, func(tx *store.Tx) error {
			now, err := tx.Attachment(one.Key)
			if err == nil {
				one.record = now
			}
			return err
		})
		if errors.Is(err, store.ErrNotFound) {
			return nil // it was removed meanwhile
		}
		if err != nil {
			return err
		}
	}
	path := ""
	if one.cached != nil {
		path = one.cached.Netns
		args, _ := cachedArgs(one.cached) // CHECK reports faults
		one.pod = (&roles.Request{Args: args}).Pod()
	}
	if one.record != nil {
		path, one.pod = cmp.Or(path, one.record.Netns.Path), cmp.Or(one.record.Pod, one.pod)
	}
	ns, err := a.open(path)
	if err != nil {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	one.dead = one.record != nil && a.census.Dead(one.record)
	switch {
	case one.dead:
		one.add("container", "present", "absent", fixRepair)
		return nil
	case ns == nil && path != "":
		one.add("namespace "+path, "present", "absent", fixRemove)
		return nil
	}
	var diffs []netops.Difference
	if one.cached != nil {
		diffs = one.addErrors(a.check(ctx, one.cached))
	} else if diffs, err = record.Verify(ctx, a.h, one.record, ns); err != nil {
		return err
	}
	a.addDifferences(ctx, one, diffs, ns)
	if then == nil || ns == nil {
		return nil
	}
	return then(ns)
}

// open opens a namespace. It returns nil if it does not exist, or if the path is now of the
// host, as the path of a process that ended can be.
func (a *auditor) open(path string) (*netops.Namespace, error) {
	ns, err := record.OpenIfPresent(a.h, path)
	if ns == nil || err != nil {
		return nil, err
	}
	host, err := a.h.Net.IsHost(ns)
	if err != nil || host {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// check runs CHECK as the runtime would.
func (a *auditor) check(ctx context.Context, c *recovery.CacheEntry) error {
	list, err := netlist.Parse(c.Config, "0.1.0")
	if err != nil {
		return fmt.Errorf("cached configuration: %w", err)
	}
	call := netlist.Call{Runtime: c.CapabilityArgs, Request: &roles.Request{
		ContainerID: c.ContainerID, Netns: c.Netns, IfName: c.IfName, Path: a.path, Env: a.p.Env,
	}}
	call.Request.Args, err = cachedArgs(c)
	if err != nil {
		return err
	}
	call.Result, err = result.Decode(list.CNIVersion, c.Result)
	if err != nil {
		return fmt.Errorf("cached %w", err)
	}
	return list.Check(ctx, a.delegate, call)
}

// addDifferences adds differences, and the plan that repairs them. Repair changes only a
// namespace that a record of the container names: a path in a runtime's cache can be of
// another process now.
func (a *auditor) addDifferences(ctx context.Context, one *audited, diffs []netops.Difference, ns *netops.Namespace) {
	certain := false
	for _, r := range a.records {
		certain = certain || ns != nil && r.ContainerID == one.ContainerID && record.IsRecorded(ns, r.Netns)
	}
	whole := one.cached != nil
	var refused map[netops.Object]error
	if certain {
		mendable := slices.DeleteFunc(slices.Clone(diffs), func(d netops.Difference) bool {
			_, link := d.Object.(*netops.Link)
			return link && !whole // a record does not have the whole link
		})
		one.plan, refused = a.h.Net.PlanRepair(ctx, mendable, ns)
	}
	for _, d := range diffs {
		fix := fixRepair
		_, link := d.Object.(*netops.Link)
		if !certain || refused[d.Object] != nil || link && !whole {
			fix = fixRestart
		}
		one.add(d.Object.String(), d.Want, d.Have, fix)
		one.found[len(one.found)-1].of = d.Object
	}
}

func (one *audited) add(object, want, have, fix string) {
	one.found = append(one.found, difference{Key: one.Key, Pod: one.pod, Object: object, Want: want, Have: have, Fix: fix})
}

// addErrors returns the differences in an error of CHECK. It adds the errors that have none
// as differences of their own: those of IPAM roles and of executed plugins.
func (one *audited) addErrors(err error) []netops.Difference {
	switch e := err.(type) { //nolint:errorlint // this walks the tree of errors
	case nil:
		return nil
	case *roles.CheckError:
		return e.Differences
	case interface{ Unwrap() []error }:
		var all []netops.Difference
		if errors.As(err, new(*roles.CheckError)) || len(roles.SplitJoined(err)) > 1 {
			for _, inner := range e.Unwrap() {
				all = append(all, one.addErrors(inner)...)
			}
			return all
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); errors.As(inner, new(*roles.CheckError)) {
			return one.addErrors(inner)
		}
	}
	fix := fixRestart
	if errors.Is(err, roles.ErrNoPlugin) {
		fix = fixPath
	}
	one.add("CHECK", "success", strings.ReplaceAll(err.Error(), "\n", "; "), fix)
	return nil
}

// differences returns the differences of all attachments. It is not nil.
func differences(all []*audited) []difference {
	out := []difference{}
	for _, one := range all {
		out = append(out, one.found...)
	}
	return out
}

func (p *Process) writeDifferences(found []difference, s style) error {
	t := table{head: []string{"CONTAINER", "NETWORK", "IFNAME", "OBJECT", "WANT", "HAVE", "FIX"}}
	for _, d := range found {
		t.add(s.name(d.Pod, d.ContainerID), d.Network, d.IfName, d.Object, d.Want, d.Have, d.Fix)
	}
	if len(t.rows) == 0 {
		return nil
	}
	return t.write(p.Stdout, s)
}

// auditAll compares all attachments.
func (p *Process) auditAll(ctx context.Context, h *roles.Host, path string) (*auditor, []*audited, error) {
	a, err := p.newAuditor(ctx, h, path, nil)
	if err != nil {
		return nil, nil, err
	}
	all, err := a.all(ctx)
	return a, all, err
}

// checkAll is `cnibox check --all`.
func (p *Process) checkAll(ctx context.Context, path string, asJSON bool, s style) error {
	h, done, err := p.host(ctx, "")
	if err != nil {
		return err
	}
	defer done()
	_, all, err := p.auditAll(ctx, h, path)
	if err != nil {
		return stateHint(err)
	}
	found := differences(all)
	if asJSON {
		err = writeJSON(p.Stdout, found)
	} else {
		err = p.writeDifferences(found, s)
	}
	if err != nil {
		return err
	}
	if len(found) == 0 {
		_, err = fmt.Fprintf(p.Stderr, "cnibox: check: no differences found in %d attachments\n", len(all))
		return err
	}
	err = fmt.Errorf("%d %w in %d attachments", len(found), errDifferent, len(all))
	if slices.ContainsFunc(found, func(d difference) bool { return d.Fix == fixRepair }) {
		err = withHint(err, "cnibox repair, which prints its plan first")
	}
	return err
}
