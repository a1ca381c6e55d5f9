package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// auditor compares the attachments of a node with their specifications. For an attachment in
// a runtime's cache it runs CHECK of the network's plugins, also of other programs. For others it
// compares the recorded objects.
type auditor struct {
	p        *Process
	h        *roles.Host
	delegate roles.Delegator
	// path has the directories of plugins, and pathOf those of the networks whose runtime is known.
	path    []string
	pathOf  map[string][]string
	census  *attachment.Census
	records map[store.Key]*store.Attachment
	// dump has the records, and advice what fixes must not remove. advice is nil until a fix needs it.
	dump   *store.Dump
	advice *advice.Records
	// host is the host as it was when a comparison began, and links are its links.
	host  *view.Host
	links []netops.LinkInfo
	// lost are cnibox's nftables sets that records need and whose table or rules another program deleted, if
	// the caller has read them.
	lost []string
	// calls are those that run on the node.
	calls []runningCall
	// published are the tracked connections to published ports of UDP, and stale those that lead elsewhere.
	published []attachment.PublishedFlows
	stale     map[store.Key][]netops.Connection
	// after replaces the configuration of its network, whose attachments alone are compared then.
	after *network
	// late has the networks whose CHECK takes too long, and why their other attachments are not compared.
	late map[string]string
	// shown is the number of differences that a terminal showed so far.
	shown int
	// stream, if it is not nil, gets the differences of an attachment as soon as they are certain.
	stream func([]difference) error
}

// pluginDirs are the directories in which runtimes look for plugins by default.
func pluginDirs() []string { return []string{defaultPluginDir, "/usr/lib/cni", "/usr/libexec/cni"} }

// newAuditor reads the records, unless dump has them. The plugins are those in the directories of the flag
// --cni-path or of CNI_PATH, else those of the runtime whose network it is.
func (p *Process) newAuditor(ctx context.Context, h *roles.Host, path string, dump *store.Dump) (*auditor, error) {
	a := &auditor{p: p, h: h, records: map[store.Key]*store.Attachment{}, late: map[string]string{}}
	// Only a role in this process returns its differences one by one.
	a.delegate = h.Delegate.WithCopies(func(file string) bool {
		f, err := plugindir.Open(filepath.Dir(file), p.Executable).Look(filepath.Base(file))
		return err == nil && f.Standing == plugindir.Ours
	})
	if err := a.findPlugins(path); err != nil {
		return nil, err
	}
	if dump == nil {
		rebuilt, err := inventory.Export(ctx, h)
		if err != nil {
			return nil, stateHint(err)
		}
		dump = rebuilt
	}
	for i := range dump.Attachments {
		a.records[dump.Attachments[i].Key] = &dump.Attachments[i]
	}
	a.dump, a.published = dump, attachment.UDPFlows(dump.Claims)
	return a, nil
}

// findPlugins sets the directories of plugins.
func (a *auditor) findPlugins(path string) error {
	if path != "" || a.p.getenv("CNI_PATH") != "" {
		a.path = a.p.pluginPath(path)
		return nil
	}
	runtimes, _, err := a.p.runtimes()
	if err != nil {
		return err
	}
	doctor.Choose(a.p.Table, runtimes)
	a.path, a.pathOf = pluginDirs(), map[string][]string{}
	for _, r := range runtimes {
		a.path = append(a.path, r.PluginDirs...)
		if r.Network != nil {
			a.pathOf[r.Network.Name] = append(a.pathOf[r.Network.Name], r.PluginDirs...)
		}
	}
	return nil
}

// pathFor returns the directories of a network's plugins.
func (a *auditor) pathFor(network string) []string {
	if path := a.pathOf[network]; path != nil {
		return path
	}
	return a.path
}

// afterAll compares the plans of ADD for a new container with the configuration of a cached
// attachment and with the new one. CHECK does not compare what a later plugin of the list may change,
// such as the MTU.
func (a *auditor) afterAll(ctx context.Context, all []*audited) (*audited, error) {
	out := &audited{Key: store.Key{Network: a.after.Name, ContainerID: "a new container"}}
	i := slices.IndexFunc(all, func(one *audited) bool { return one.cached != nil })
	if i < 0 {
		return out, nil
	}
	out.IfName = all[i].IfName
	now, err := a.planned(ctx, all[i].cached.Config, out.IfName)
	if err != nil {
		return nil, fmt.Errorf("plan of the present configuration: %w", err)
	}
	then, err := a.planned(ctx, a.after.raw, out.IfName)
	if err != nil {
		out.add("ADD", "success", err.Error(), "cnibox plan FILE")
		return out, nil
	}
	for _, c := range then.Since(now) {
		out.addChange(c)
	}
	return out, nil
}

// planned returns what ADD would make for a new container.
func (a *auditor) planned(ctx context.Context, conf []byte, ifName string) (spec netops.Spec, err error) {
	list, err := netlist.Parse(conf, "0.1.0")
	if err != nil {
		return spec, err
	}
	plans, err := list.Unfused().Plan(ctx, a.delegate, netlist.Call{Request: &roles.Request{ContainerID: "plan", IfName: ifName, Path: a.pathFor(a.after.Name), Env: a.p.Env}})
	for _, p := range plans {
		for _, c := range p.Changes {
			spec.Add(c.Do.Object)
		}
	}
	return spec, err
}

// checkable reports whether CHECK can compare an attachment: its list has CHECK, and the cache
// has the result of ADD. A faulty list is an error of CHECK.
func checkable(c *recovery.CacheEntry) bool {
	l, err := netlist.Parse(c.Config, "0.1.0")
	return err != nil || len(c.Result) > 0 && !l.DisableCheck && result.AtLeast(l.CNIVersion, "0.4.0")
}

// eachDelegate calls each with the attachments of meta roles and those to which they delegated.
func (a *auditor) eachDelegate(ctx context.Context, each func(owner, key store.Key)) error {
	return a.h.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		all, err := tx.Delegations("")
		for i := range all {
			owner := all[i].Owner
			for _, d := range all[i].Delegates {
				if l, _ := netlist.Parse(d.List, d.Version); l != nil {
					each(owner, store.Key{Network: l.Name, ContainerID: owner.ContainerID, IfName: d.IfName})
				}
			}
		}
		return err
	})
}

// audit compares one attachment, and calls then, if it is not nil, with the container's
// namespace. It holds the attachment's lock. An attachment whose lock another process holds is
// being made or removed, and is busy; a call that hangs is a difference. The error is a failure to read.
func (a *auditor) audit(ctx context.Context, one *audited, then func(*netops.Namespace) error) error {
	one.found, one.plan, one.dead, one.busy = nil, netops.Plan{}, false, ""
	if then != nil { // it changes the host
		a.host.Forget()
	}
	lock, ok, err := a.h.Store.TryLockAttachment(ctx, one.Key)
	switch {
	case errors.Is(err, unix.EROFS) && then == nil: // no call can change the state either
	case err == nil && !ok:
		one.addCall(a.calls)
		return nil
	case err != nil:
		return err
	}
	defer lock.Unlock()
	err = a.reread(ctx, one)
	if errors.Is(err, store.ErrNotFound) {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
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
	var wanted, earlier netops.Spec
	switch {
	case a.after != nil && one.cached == nil:
		one.add("attachment", "a cached result", "a record only", fixRestart)
		return nil
	case a.after != nil:
		changed := *one.cached
		changed.Config = a.after.raw
		_ = a.check(ctx, one.cached, &earlier) // its differences are those of `cnibox diff`
		diffs = one.addErrors(a.check(ctx, &changed, &wanted))
	case one.cached != nil:
		diffs = one.addErrors(a.check(ctx, one.cached, nil))
	default:
		if diffs, err = attachment.Verify(ctx, a.h, one.record, ns); err != nil {
			return err
		}
	}
	a.compareIPv6(one, path, ns, diffs)
	a.addDifferences(ctx, one, diffs, ns)
	a.addFlows(one)
	if err := errors.Join(a.compareMTU(ctx, one, ns), a.compareRoutes(one)); err != nil {
		return err
	}
	a.advise(one)
	if a.after != nil {
		one.addFormer(wanted.Since(earlier))
	}
	if then == nil || ns == nil {
		return nil
	}
	return then(ns)
}

// advise replaces the commands that would take something from other attachments.
func (a *auditor) advise(one *audited) {
	for i := range one.found {
		d := &one.found[i]
		if slices.Contains([]string{fixRepair, fixRestart, fixRemove, fixRecord, fixPath}, d.Fix) {
			continue
		}
		if a.advice == nil {
			a.advice = advice.New(a.dump, recovery.ReadCaches(a.h, a.p.cacheDirs()), a.links)
		}
		fix, harm := a.advice.Fix(d.Fix, one.Network)
		d.Fix = fix
		if harm != "" {
			d.Have += ", and no command is safe: " + harm
		}
	}
}

// reread reads the attachment's record again, if it has one. After it was removed the error is store.ErrNotFound.
func (a *auditor) reread(ctx context.Context, one *audited) error {
	if one.record == nil {
		return nil
	}
	return a.h.Store.View(ctx, func(tx *store.Tx) error {
		now, err := tx.Attachment(one.Key)
		if err == nil {
			one.record = now
		}
		return err
	})
}

// addCall says which call works on the attachment, as far as that is known.
func (one *audited) addCall(calls []runningCall) {
	one.busy = "another process works on it"
	for i := range calls {
		if c := &calls[i]; c.container == one.ContainerID && c.ifName == one.IfName {
			one.busy = c.String()
			if c.age >= slowCall {
				one.add("call", "ended", one.busy, c.fix())
			}
		}
	}
}

// compareMTU compares the ends of a pair: the host's end drops larger packets without an answer to the
// sender. CHECK does not compare what a later plugin of the list may change.
func (a *auditor) compareMTU(ctx context.Context, one *audited, ns *netops.Namespace) error {
	if one.record == nil || one.record.HostLink == "" || ns == nil || a.after != nil {
		return nil
	}
	inside, err := a.h.Net.Link(ctx, ns, one.IfName)
	if errors.Is(err, netops.ErrNotExist) || err == nil && !inside.IsPairEnd() {
		return nil // CHECK reports a missing one
	}
	if err != nil {
		return err
	}
	outside, err := a.h.Net.Link(ctx, nil, one.record.HostLink)
	const usual, least6 = 1500, 1280 // of the kernel's pairs, and RFC 8200, section 5
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	var d *difference
	switch {
	case err != nil:
	case inside.MTU < min(outside.MTU, least6) && slices.ContainsFunc(one.record.Addresses, is6), outside.MTU < inside.MTU && outside.MTU == usual:
		d = one.add("link "+inside.Name+" in the pod", fmt.Sprintf("mtu %d", outside.MTU), fmt.Sprintf("mtu %d", inside.MTU),
			fmt.Sprintf("nsenter --net=%s ip link set %s mtu %d && cnibox repair", one.record.Netns.Path, inside.Name, outside.MTU))
	case outside.MTU < inside.MTU:
		d = one.add("link "+outside.Name, fmt.Sprintf("mtu %d", inside.MTU), fmt.Sprintf("mtu %d", outside.MTU), fmt.Sprintf("ip link set %s mtu %d", outside.Name, inside.MTU))
	}
	if d != nil {
		d.of = &netops.Link{In: netops.Host, Name: outside.Name}
	}
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	return err
}

// compareRoutes looks for another route to the attachment's addresses than that of its network, which the kernel prefers.
func (a *auditor) compareRoutes(one *audited) error {
	if one.record == nil || a.after != nil {
		return nil
	}
	for _, p := range one.record.Addresses {
		want, have, fix, err := check.PodRoute(a.host, one.record.HostLink, p.Addr(), false)
		if err != nil {
			return err
		}
		if have != "" {
			one.add("route to "+p.Addr().String(), "dev "+want, have, fix)
			continue
		}
		device := a.deviceOf(one.record.HostLink)
		if device == "" || one.record.MAC == "" {
			continue
		}
		macs := []string{one.record.MAC}
		fault, err := check.Entry(&a.host.Namespace, device, p.Addr(), macs)
		if err != nil {
			return err
		}
		if fault != nil {
			entry, _ := a.host.Neighbour(device, p.Addr())
			one.add(fault.Object, one.record.MAC, entry.MAC, fault.Fix)
		}
	}
	return nil
}

// deviceOf returns the device of the host by which it sends packets to a pod, or "".
func (a *auditor) deviceOf(hostLink string) string {
	if i := slices.IndexFunc(a.links, func(l netops.LinkInfo) bool { return l.Name == hostLink }); i >= 0 {
		return cmp.Or(a.links[i].Master, hostLink)
	}
	return ""
}

// compareIPv6 adds the setting that keeps a container from having its addresses.
func (a *auditor) compareIPv6(one *audited, path string, ns *netops.Namespace, diffs []netops.Difference) {
	lost := func(d netops.Difference) bool {
		addr, is := d.Object.(*netops.Addr)
		return is && addr.In == netops.Container && addr.Address.Addr().Is6()
	}
	if ns == nil || !slices.ContainsFunc(diffs, lost) {
		return
	}
	fault, err := check.IPv6(a.host.Container(ns, one.Describe(), path), one.IfName)
	if err == nil && fault != nil {
		one.add(fault.Object, "0", "1", fault.Fix)
	}
}

// open opens a namespace. It returns nil if it does not exist, or if the path is now of the
// host, as the path of a process that ended can be.
func (a *auditor) open(path string) (*netops.Namespace, error) {
	ns, err := attachment.OpenIfPresent(a.h, path)
	if ns == nil || err != nil {
		return nil, err
	}
	host, err := a.h.Net.IsHost(ns)
	if err != nil || host {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// check runs CHECK as the runtime would. It adds the objects that cnibox's own roles compare to wanted, if that is not nil.
func (a *auditor) check(ctx context.Context, c *recovery.CacheEntry, wanted *netops.Spec) error {
	list, err := netlist.Parse(c.Config, "0.1.0")
	if err != nil {
		return fmt.Errorf("cached configuration: %w", err)
	}
	call := netlist.Call{Runtime: c.CapabilityArgs, Request: &roles.Request{
		ContainerID: c.ContainerID, Netns: c.Netns, IfName: c.IfName, Path: a.pathFor(c.Network), Env: a.p.Env, Compared: wanted,
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

// auditAll compares all attachments.
func (p *Process) auditAll(ctx context.Context, h *roles.Host, path string) ([]*audited, error) {
	a, err := p.newAuditor(ctx, h, path, nil)
	if err != nil {
		return nil, err
	}
	return a.all(ctx)
}
