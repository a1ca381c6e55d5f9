package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// deviceRole moves a device of the host into the container. Every other role's
// interface there is made for the attachment, and deleted with it. What the
// interface's alias cannot be trusted for that: a process that may set up links in
// the container may change it.
const deviceRole = "host-device"

// containers stores the attachments without an interface on the host: those whose
// namespace, which a runtime's cache names, has an interface with their label. Of the
// others it only reserves the addresses, after all certain ones: the runtime has not
// detached them, so an address may be in use as long as the namespace may exist. It
// enters each namespace.
func (r *rebuilder) containers(ctx context.Context) (attached, reserved int, err error) {
	var uncertain []*store.Attachment
	for _, label := range slices.Sorted(maps.Keys(r.cache)) {
		c := r.cache[label]
		if r.stored[label] || c.IfName == "lo" { // part of every namespace, not an attachment
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		a := &store.Attachment{Key: c.Key(), Addresses: c.Addresses()}
		l, there, err := r.inside(ctx, c, a)
		switch {
		case err != nil:
			r.h.Log.Warn("look for an attachment in its namespace", "container", c.ContainerID, "ifname", c.IfName, "netns", c.Netns, "error", err)
			uncertain = append(uncertain, a)
		case l != nil:
			if err := r.container(a, label, *l); err != nil {
				return 0, 0, fmt.Errorf("%q of container %q: %w", c.IfName, c.ContainerID, err)
			}
			attached++
		case there:
			uncertain = append(uncertain, a)
		}
	}
	for _, a := range uncertain {
		n, err := r.reserve(a)
		if err != nil {
			return 0, 0, fmt.Errorf("addresses of container %q: %w", a.ContainerID, err)
		}
		reserved += n
	}
	return attached, reserved, nil
}

// inside looks for the interface with an attachment's label in the attachment's
// namespace and records the namespace. It returns nil if there is no such interface.
// there reports whether there is a namespace. A path that is not a namespace is an
// error, because the path may be a namespace in another mount namespace.
func (r *rebuilder) inside(ctx context.Context, c *CacheEntry, a *store.Attachment) (l *netops.LinkInfo, there bool, err error) {
	a.Netns.Path = c.Netns
	ns, err := r.h.Net.OpenNamespace(c.Netns)
	if record.IsAbsent(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer ns.Close()
	// A process that is gone may have left its number, and so its path, to one of the host.
	if host, err := r.h.Net.IsHost(ns); err != nil || host {
		return nil, false, err
	}
	a.Netns = record.ThisNetns(c.Netns, ns)
	label := record.Label(a.Key)
	links, err := r.h.Net.Links(ctx, ns) // it may have been renamed
	if i := slices.IndexFunc(links, func(l netops.LinkInfo) bool { return bears(l, label) }); i >= 0 {
		r.noteVRF(label, links, links[i])
		return &links[i], true, nil
	}
	return nil, true, err
}

// otherEnd looks for the other end of a veth in the namespace that the cache
// names. Where it is, that is the attachment's namespace.
func (r *rebuilder) otherEnd(ctx context.Context, l netops.LinkInfo, a *store.Attachment) error {
	ns, err := r.h.Net.OpenNamespace(a.Netns.Path)
	if err != nil {
		return err
	}
	defer ns.Close()
	if host, err := r.h.Net.IsHost(ns); err != nil || host {
		return err
	}
	links, err := r.h.Net.Links(ctx, ns)
	i := slices.IndexFunc(links, func(end netops.LinkInfo) bool {
		return end.Kind == l.Kind && end.Index == l.PeerIndex && end.PeerIndex == l.Index
	})
	if i < 0 {
		return err
	}
	a.Netns = record.ThisNetns(a.Netns.Path, ns)
	r.noteVRF(record.Label(a.Key), links, links[i])
	return nil
}

// noteVRF records that an attachment's interface is in one of our VRFs.
func (r *rebuilder) noteVRF(label string, links []netops.LinkInfo, l netops.LinkInfo) {
	for _, m := range links {
		if m.Index == l.MasterIndex && m.Alias == record.VRFAlias {
			r.vrfs[label] = &netops.VRF{In: netops.Container, Name: m.Name, Table: m.Table, Link: l.Name, LinkIndex: l.Index, Alias: m.Alias}
		}
	}
}

// bears reports whether a link has the label.
func bears(l netops.LinkInfo, label string) bool {
	info, ok := record.ParseAlias(l.Alias)
	return ok && info.Label == label
}

// container stores the attachment of one interface in a container, and leases
// for its addresses.
func (r *rebuilder) container(a *store.Attachment, label string, l netops.LinkInfo) error {
	a.MAC = l.MAC
	p := r.cache[label].plugin()
	var made netops.Object = &netops.Link{In: netops.Container, Name: l.Name, Kind: l.Kind, Alias: label}
	if p.Type == deviceRole {
		made = movedDevice(l, label)
	}
	if err := r.record(a, label, made); err != nil {
		return err
	}
	_, err := r.reserve(a)
	return err
}

// movedDevice is the move of a device that is in a container. Without a usable name in
// its alias the device keeps its present name when it returns.
func movedDevice(l netops.LinkInfo, label string) *netops.Move {
	info, _ := record.ParseAlias(l.Alias)
	if roles.LinkName(info.Device) != nil {
		info.Device = ""
	}
	return &netops.Move{From: netops.Host, Name: info.Device, To: netops.Container, As: l.Name, Alias: label, Kind: l.Kind, MAC: l.MAC}
}

// reserve reserves the addresses of a cached attachment if they are of a pool,
// and returns how many that are.
func (r *rebuilder) reserve(a *store.Attachment) (int, error) {
	p := r.cache[record.Label(a.Key)].plugin()
	dataDir, pooled := p.dataDir()
	if !pooled || len(a.Addresses) == 0 {
		return 0, nil
	}
	return len(a.Addresses), r.leases(a, dataDir)
}
