package multi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// hostLink returns the host's VLAN or VXLAN interface that a network requests with DANM's keys:
// host_device with vlan or vxlan. It returns nil if the network requests none. The first user
// creates the interface, the last one removes it. It replaces the master of the network's first
// plugin.
func hostLink(list []byte) (*netops.Link, error) {
	var c struct {
		HostDevice string `json:"host_device"`
		VLAN       int    `json:"vlan"`
		VXLAN      int    `json:"vxlan"`
	}
	if err := coldjson.Unmarshal(list, &c); err != nil || c.HostDevice == "" || c.VLAN == 0 && c.VXLAN == 0 {
		return nil, nil // a plugin may have keys of these names with other types
	}
	var f roles.Faults
	l := &netops.Link{In: netops.Host, Shared: true, Parent: c.HostDevice, Alias: attachment.SharedAlias, Up: true}
	switch {
	case c.VLAN != 0 && c.VXLAN != 0:
		f.Addf("vxlan", "cannot be combined with vlan: remove one of them")
	case c.VLAN != 0:
		l.Kind, l.VLANID, l.Name = "vlan", c.VLAN, fmt.Sprintf("%s.%d", c.HostDevice, c.VLAN)
		if c.VLAN < 1 || c.VLAN > 4094 {
			f.Addf("vlan", "is %d, want 1 to 4094", c.VLAN)
		}
	default:
		l.Kind, l.VNI, l.Name = "vxlan", c.VXLAN, fmt.Sprintf("vxlan%d", c.VXLAN)
		if c.VXLAN < 1 || c.VXLAN >= 1<<24 {
			f.Addf("vxlan", "is %d, want 1 to %d", c.VXLAN, 1<<24-1)
		}
		l.Group4 = netip.AddrFrom4([4]byte{239, byte(c.VXLAN >> 16), byte(c.VXLAN >> 8), byte(c.VXLAN)})
	}
	if err := errors.Join(roles.LinkName(c.HostDevice), roles.LinkName(l.Name)); err != nil && f.Err() == nil {
		f.Addf("host_device", "%v", err)
	}
	return l, f.Err()
}

// linkLock returns the name of the lock for creating and removing a host interface.
func linkLock(name string) string { return "multi-link/" + name }

// makeHostLinks creates the host interfaces of networks. The record of the networks already names
// them.
func (c *runner) makeHostLinks(ctx context.Context, all []store.Delegate) error {
	for i := range all {
		link, err := hostLink(all[i].List)
		if err != nil || link == nil || all[i].HostLink == "" {
			continue // the resolver reported the error
		}
		held, err := c.h.Store.LockShared(ctx, linkLock(link.Name), true)
		if err != nil {
			return err
		}
		err = c.h.Net.Ensure(ctx, netops.Spec{Objects: []netops.Object{link}}, nil)
		held.Unlock()
		if err != nil {
			return withNetwork(&all[i], err)
		}
	}
	return nil
}

// releaseHostLinks removes the host interfaces of the networks in gone, except those that
// another record or a network in left uses. It calls change to update this attachment's
// record under the same locks, so that the last of two users removes the interface. If a
// record cannot be read the interfaces stay, because its container may use them.
func (c *runner) releaseHostLinks(ctx context.Context, gone, left []store.Delegate, change func() error) error {
	var names []string
	for i := range gone {
		if n := gone[i].HostLink; n != "" {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return change()
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, n := range names {
		held, err := c.h.Store.LockShared(ctx, linkLock(n), true)
		if err != nil {
			return err
		}
		defer held.Unlock()
	}
	others, whole, err := allRecords(ctx, c.h)
	if err != nil {
		return err
	}
	used := slices.Clone(left)
	for i := range others {
		if others[i].Owner != c.out.Owner {
			used = append(used, others[i].Delegates...)
		}
	}
	for _, n := range names {
		if !whole || slices.ContainsFunc(used, func(d store.Delegate) bool { return d.HostLink == n }) {
			continue
		}
		if err := c.removeLink(ctx, n); err != nil {
			return err
		}
	}
	return change()
}

// removeLink removes a host interface if its alias marks it as created by cnibox.
func (c *runner) removeLink(ctx context.Context, name string) error {
	l, err := c.h.Net.Link(ctx, nil, name)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	if err != nil || l.Alias != attachment.SharedAlias {
		return err
	}
	return c.h.Net.Remove(ctx, netops.Spec{Objects: []netops.Object{
		&netops.Link{In: netops.Host, Name: name, Kind: l.Kind, Alias: attachment.SharedAlias},
	}}, nil)
}
