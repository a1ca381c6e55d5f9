// Package view is what the commands that look at a node know about it. Each fact is read when a check first needs it, and once: a
// question to the kernel, such as the route of a packet, is one of its arguments. A view changes and sends nothing.
package view

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/netops"
)

// Namespace is a network namespace. Its answers are as old as the first question.
type Namespace struct {
	ctx context.Context //nolint:containedctx // a view lives as long as the command, and checks are functions of the view alone
	net *netops.Net
	// ns is nil for the host's namespace.
	ns *netops.Namespace
	// Name is that of its container in texts, or "host". Enter begins a command that runs in it, and is "" for the host.
	Name, Enter string
	facts       map[string]any
}

// HostName is the Name of this node's own namespace.
const HostName = "host"

// answer is a fact, or why it could not be read.
type answer[T any] struct {
	value T
	err   error
}

// ask returns the answer to a question, which read gets the first time. A view without a kernel has only recorded answers.
func ask[T any](v *Namespace, question string, read func() (T, error)) (T, error) {
	known, is := v.facts[question].(answer[T])
	if is {
		return known.value, known.err
	}
	record, is := v.facts[question].(Record)
	switch {
	case is:
		known.err = cmp.Or(record.err(), json.Unmarshal(record.Value, &known.value))
	case v.net == nil:
		known.err = fmt.Errorf("%s: not recorded", question)
	default:
		known.value, known.err = read()
	}
	v.facts[question] = known
	return known.value, known.err
}

// Container returns the view of a container's namespace, which the caller keeps open. path is how commands name it.
func (h *Host) Container(ns *netops.Namespace, name, path string) *Namespace {
	return &Namespace{ctx: h.ctx, net: h.net, ns: ns, Name: name, Enter: "nsenter --net=" + path + " ", facts: map[string]any{}}
}

// Forget makes the view read everything again, as after a probe.
func (v *Namespace) Forget() { clear(v.facts) }

// IsHost reports whether it is the host's namespace.
func (v *Namespace) IsHost() bool { return v.ns == nil }

// Links returns the links with their addresses.
func (v *Namespace) Links() ([]netops.LinkInfo, error) {
	return ask(v, "links", func() ([]netops.LinkInfo, error) { return v.net.Links(v.ctx, v.ns) })
}

// Link returns a link. The error wraps netops.ErrNotExist if it is absent.
func (v *Namespace) Link(name string) (*netops.LinkInfo, error) {
	all, err := v.Links()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(l netops.LinkInfo) bool { return l.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("link %q: %w", name, netops.ErrNotExist)
	}
	return &all[i], nil
}

// Routes returns the unicast routes of all tables.
func (v *Namespace) Routes() ([]netops.Route, error) {
	return ask(v, "routes", func() ([]netops.Route, error) { return v.net.Routes(v.ctx, v.ns, 0) })
}

// Sysctl returns a setting below /proc/sys, or "" if it does not exist, as that of a missing module.
func (v *Namespace) Sysctl(key string) (string, error) {
	return ask(v, "sysctl "+key, func() (string, error) {
		value, err := v.net.Sysctl(v.ctx, v.ns, key)
		if errors.Is(err, netops.ErrNotExist) {
			return "", nil
		}
		return value, err
	})
}

// Way asks the kernel for the way of a packet, as netops.Net.Way does.
func (v *Namespace) Way(p netops.Packet) (netops.Way, error) {
	return ask(v, fmt.Sprintf("way %+v", p), func() (netops.Way, error) { return v.net.Way(v.ctx, v.ns, p) })
}

// Neighbour returns the entry for an address on a link.
func (v *Namespace) Neighbour(link string, a netip.Addr) (netops.Neighbour, error) {
	return ask(v, "neighbour "+a.String()+" dev "+link, func() (netops.Neighbour, error) { return v.net.Neighbour(v.ctx, v.ns, link, a) })
}

// DeviceFilters returns what may drop packets on the links besides the packet filters, by link.
func (v *Namespace) DeviceFilters() (map[string][]netops.DeviceFilter, error) {
	return ask(v, "device filters", func() (map[string][]netops.DeviceFilter, error) { return v.net.DeviceFilters(v.ctx, v.ns) })
}

// HostEnd returns the host's end of a container's veth. The error wraps netops.ErrNotExist if there is none.
func (v *Namespace) HostEnd(link string) (netops.LinkInfo, error) {
	if v.IsHost() {
		return netops.LinkInfo{}, fmt.Errorf("host's end of link %q of the host: %w", link, netops.ErrNotExist)
	}
	return ask(v, "host end of "+link, func() (netops.LinkInfo, error) { return v.net.HostEnd(v.ctx, v.ns, link) })
}
