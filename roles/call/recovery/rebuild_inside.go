package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// movesDevice reports whether a role moves a device of the host into the container;
// DEL must move the device back. Every other role makes an interface that DEL deletes.
// The interface's alias is not used for this decision, because a process in the container
// that may configure links can change the alias.
func movesDevice(role string) bool { return role == "host-device" || role == "sriov" }

// bondRole is the name of the role that moves several devices and makes a bond of them, and the kernel's kind of a bond.
const bondRole = "bond"

// containers stores the attachments without an interface on the host. It looks for their
// labels in the namespaces that the runtimes' caches name. If it finds no interface in a
// namespace, or cannot read the namespace, it only reserves the attachment's addresses:
// the runtime has not detached the container, so the addresses may be in use. It reserves
// these last, so that certain leases have precedence.
func (r *rebuilder) containers(ctx context.Context) (attached, reserved int, err error) {
	var uncertain []*store.Attachment
	for _, label := range slices.Sorted(maps.Keys(r.cache)) {
		c := r.cache[label]
		if r.stored[label] || c.IfName == "lo" { // lo is part of every namespace, not an attachment
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		a := &store.Attachment{Key: c.Key(), Addresses: c.Addresses()}
		found, exists, err := r.findInContainer(ctx, c, a)
		switch {
		case err != nil:
			r.h.Log.Warn("find an attachment in its namespace", "container", c.ContainerID, "ifname", c.IfName, "netns", c.Netns, "error", err)
			uncertain = append(uncertain, a)
		case len(found) > 0:
			if err := r.container(a, label, found); err != nil {
				return 0, 0, fmt.Errorf("%q of container %q: %w", c.IfName, c.ContainerID, err)
			}
			attached++
		case exists:
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

// findInContainer looks for the interfaces with an attachment's label in the attachment's
// namespace, and sets a.Netns. The attachment's own interface is first, before the links
// of a bond. exists reports whether the namespace exists. A path that is not a namespace
// is an error, because the path may be a namespace in another mount namespace.
func (r *rebuilder) findInContainer(ctx context.Context, c *CacheEntry, a *store.Attachment) (found []netops.LinkInfo, exists bool, err error) {
	a.Netns.Path = c.Netns
	ns, err := r.h.Net.OpenNamespace(c.Netns)
	if attachment.IsAbsent(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer ns.Close()
	// The path may be of a process that ended, and its PID may be a host process's now.
	if host, err := r.h.Net.IsHost(ns); err != nil || host {
		return nil, false, err
	}
	a.Netns = attachment.ThisNetns(c.Netns, ns)
	label := attachment.Label(a.Key)
	links, err := r.h.Net.Links(ctx, ns) // all links: the interface may have been renamed
	for _, l := range links {
		if hasLabel(l, label) {
			found = append(found, l)
		}
	}
	sorting.Stable(found, func(a, b netops.LinkInfo) int { return strings.Compare(deviceOf(a), deviceOf(b)) }) // "" is first
	if len(found) > 0 {
		r.noteVRF(label, links, found[0])
	}
	return found, true, err
}

// deviceOf returns the host's name of a device in a container, or "" for an interface that was made there.
func deviceOf(l netops.LinkInfo) string {
	info, _ := attachment.ParseAlias(l.Alias)
	return info.Device
}

// otherEnd looks for the other end of a pair in the namespace that the cache names. If it
// finds the end, it sets a.Netns.
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
	a.Netns = attachment.ThisNetns(a.Netns.Path, ns)
	r.noteVRF(attachment.Label(a.Key), links, links[i])
	return nil
}

// noteVRF records that an attachment's interface is in one of our VRFs.
func (r *rebuilder) noteVRF(label string, links []netops.LinkInfo, l netops.LinkInfo) {
	for _, m := range links {
		if m.Index == l.MasterIndex && m.Alias == attachment.VRFAlias {
			r.vrfs[label] = &netops.VRF{In: netops.Container, Name: m.Name, Table: m.Table, Link: l.Name, LinkIndex: l.Index, Alias: m.Alias}
		}
	}
}

// hasLabel reports whether a link has the label.
func hasLabel(l netops.LinkInfo, label string) bool {
	info, ok := attachment.ParseAlias(l.Alias)
	return ok && info.Label == label
}

// container stores the attachment of interfaces in a container, and reserves its
// addresses.
func (r *rebuilder) container(a *store.Attachment, label string, found []netops.LinkInfo) error {
	l := found[0]
	a.MAC = l.MAC
	p := r.cache[label].plugin()
	var made []netops.Object
	if p.Type == bondRole {
		for _, l := range found {
			if p.bonds(deviceOf(l)) {
				made = append(made, movedDevice(l, label))
			}
		}
	}
	switch {
	case movesDevice(p.Type):
		made = append(made, movedDevice(l, label))
	case p.Type != bondRole || l.Kind == bondRole:
		made = append(made, &netops.Link{In: netops.Container, Name: l.Name, Kind: l.Kind, Alias: label})
	}
	if err := r.record(a, label, made...); err != nil {
		return err
	}
	_, err := r.reserve(a)
	return err
}

// movedDevice returns the move of a device into its container. If the alias contains no
// valid name, the device keeps its name when it returns to the host.
func movedDevice(l netops.LinkInfo, label string) *netops.Move {
	info, _ := attachment.ParseAlias(l.Alias)
	if roles.LinkName(info.Device) != nil {
		info.Device = ""
	}
	return &netops.Move{From: netops.Host, Name: info.Device, To: netops.Container, As: l.Name, Alias: label, Kind: l.Kind, MAC: l.MAC}
}

// reserve reserves the addresses of a cached attachment if they are from a pool. It
// returns the number of reserved addresses.
func (r *rebuilder) reserve(a *store.Attachment) (int, error) {
	p := r.cache[attachment.Label(a.Key)].plugin()
	dataDir, pooled := p.dataDir()
	if !pooled || len(a.Addresses) == 0 {
		return 0, nil
	}
	return len(a.Addresses), r.leases(a, dataDir)
}
