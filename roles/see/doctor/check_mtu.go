package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/store"
)

// addSmallerUplinks adds a finding for each network and interface by which its masqueraded pods leave the node, if the pods' MTU is larger.
// A pod tells servers the segment size of its own MTU. One that is reached by larger packets sends them, and depends on the router before
// the smaller MTU to report it. The node itself tells that of its interface, so it has no such fault.
func (f *Facts) addSmallerUplinks(add add) {
	type place struct {
		network, uplink string
		podMTU, mtu     int
	}
	pods := map[place][]string{}
	var order []place
	for _, one := range f.attachments() {
		l := f.link(one.HostLink)
		if l == nil || !slices.ContainsFunc(f.links(), func(o netops.LinkInfo) bool { return o.MTU < l.MTU && !f.isOwn(&o) && !check.IsTunnel(&o) }) {
			continue
		}
		if !slices.ContainsFunc(f.changesOf(&one), func(c netops.Change) bool { return netops.Masquerades(c.Do.Object) }) {
			continue
		}
		for _, p := range one.Addresses {
			mtu, err := f.Host.MTUOf(one.Netns.Path, one.IfName, check.Elsewhere(p.Addr().Is6()))
			f.unread("interfaces of pods", err)
			up, err := check.SmallerUplink(f.Host, cmp.Or(l.Master, l.Name), p.Addr(), mtu)
			f.unread("routes", err)
			if up == nil {
				continue
			}
			at := place{one.Network, up.Name, mtu, up.MTU}
			if pods[at] == nil {
				order = append(order, at)
			}
			if pod := name(one.Pod, one.Key); !slices.Contains(pods[at], pod) {
				pods[at] = append(pods[at], pod)
			}
		}
	}
	for _, at := range order {
		add(at.uplink, fmt.Sprintf("its MTU is %d, and that of %s is %d: large answers from networks with a larger MTU get lost if a router does not report the size", at.mtu, few(pods[at]), at.podMTU),
			fmt.Sprintf("set \"mtu\" to %d in %s, and start the pods again", at.mtu, f.pathOf(at.network)))
	}
}

// pathOf returns the file of a network, or its name.
func (f *Facts) pathOf(network string) string {
	for _, n := range f.Networks {
		if n.Name == network {
			return n.Path
		}
	}
	return "the network " + network
}

// changesOf returns the recorded changes of an attachment and of what its network shares. Another check reports those that are damaged.
func (f *Facts) changesOf(a *store.Attachment) (all []netops.Change) {
	for _, n := range f.State.Dump.Networks {
		if n.Name == a.Network {
			all, _ = attachment.DecodeChanges(n.Shared)
		}
	}
	for _, part := range a.Parts {
		changes, _ := attachment.DecodeChanges(part.Changes)
		all = append(all, changes...)
	}
	return all
}
