// Package view is what the commands that look at a node know about it. Each fact is read when a check first needs it, and once: a
// question to the kernel, such as the route of a packet, is one of its arguments. A view changes and sends nothing.
package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/cnibox/cnibox/netops"
)

// Namespace is a network namespace. Its answers are as old as the first question.
type Namespace struct {
	*source
	// path is that of a container's namespace, or "" for the host's.
	path string
	// ns is nil for the host's namespace.
	ns *netops.Namespace
	// Name is that of its container in texts, or "host". Enter begins a command that runs in it, and is "" for the host.
	Name, Enter string
}

// source is where the namespaces of a node have their answers from.
type source struct {
	ctx context.Context //nolint:containedctx // a view lives as long as the command, and checks are functions of the view alone
	// net is nil for recorded answers.
	net *netops.Net
	// facts are answers by question. A question is a kind, and what it is about after a colon: "sysctl: net/ipv4/ip_forward". One about a
	// container begins with its namespace: "in /run/netns/web, links".
	facts map[string]any
	// opened are the namespaces of containers by path.
	opened map[string]*netops.Namespace
}

// HostName is the Name of this node's own namespace.
const HostName = "host"

// answer is a fact, or why it could not be read.
type answer[T any] struct {
	value T
	err   error
}

// Ask returns the answer to a question about the node that is not one to the kernel, which read gets the first time. What commands that look
// at a node read of it, they read so: then records are all that they need.
func Ask[T any](h *Host, question string, read func() (T, error)) (T, error) {
	return ask(&h.Namespace, question, read)
}

// ask returns the answer to a question, which read gets the first time. A view without a kernel has only recorded answers.
func ask[T any](v *Namespace, question string, read func() (T, error)) (T, error) {
	if v.path != "" {
		question = "in " + v.path + ", " + question
	}
	known, is := v.facts[question].(answer[T])
	if is {
		return known.value, known.err
	}
	record, is := v.facts[question].(Record)
	switch {
	case is:
		known.err = record.err()
		if len(record.Value) > 0 {
			known.err = errors.Join(known.err, json.Unmarshal(record.Value, &known.value))
		}
	case v.net == nil:
		known.err = fmt.Errorf("%s: not recorded", question)
	default:
		known.value, known.err = read()
	}
	v.facts[question] = known
	return known.value, known.err
}

// about returns a question of a kind about a struct, whose fields that are not zero it names.
func about(kind string, of any) string {
	v := reflect.ValueOf(of)
	text := kind + ":"
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			text += fmt.Sprintf(" %s=%v", v.Type().Field(i).Name, v.Field(i))
		}
	}
	return text
}

// Container returns the view of a container's namespace, which the caller keeps open. path is how commands name it.
func (h *Host) Container(ns *netops.Namespace, name, path string) *Namespace {
	return &Namespace{source: h.source, path: path, ns: ns, Name: name, Enter: "nsenter --net=" + path + " "}
}

// Open returns the view of a container's namespace, which stays open until Close.
func (h *Host) Open(name, path string) (*Namespace, error) {
	_, err := ask(&h.Namespace, "namespace: "+path, func() (none struct{}, err error) {
		if h.opened[path] != nil {
			return none, nil
		}
		ns, err := h.net.OpenNamespace(path)
		if err == nil { // Close closes what is in the map
			h.opened[path] = ns
		}
		return none, err
	})
	if err != nil {
		return nil, err
	}
	return h.Container(h.opened[path], name, path), nil
}

// Close closes what Open has opened.
func (h *Host) Close() {
	for _, ns := range h.opened {
		_ = ns.Close() // it was only read
	}
	clear(h.opened)
}

// Opened returns the namespace for who sends packets from it, or nil for the host's and for a recorded one.
func (v *Namespace) Opened() *netops.Namespace { return v.ns }

// IsRecorded reports whether the view has recorded answers only. Packets cannot be sent then.
func (v *Namespace) IsRecorded() bool { return v.net == nil }

// Forget makes the view read everything again, as after a probe.
func (h *Host) Forget() {
	clear(h.facts)
	h.rules = nil
}

// IsHost reports whether it is the host's namespace.
func (v *Namespace) IsHost() bool { return v.path == "" }

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
	return ask(v, "sysctl: "+key, func() (string, error) {
		value, err := v.net.Sysctl(v.ctx, v.ns, key)
		if errors.Is(err, netops.ErrNotExist) {
			return "", nil
		}
		return value, err
	})
}

// Way asks the kernel for the way of a packet, as netops.Net.Way does.
func (v *Namespace) Way(p netops.Packet) (netops.Way, error) {
	return ask(v, about("way", p), func() (netops.Way, error) { return v.net.Way(v.ctx, v.ns, p) })
}

// Neighbour returns the entry for an address on a link.
func (v *Namespace) Neighbour(link string, a netip.Addr) (netops.Neighbour, error) {
	return ask(v, "neighbour: "+a.String()+" dev "+link, func() (netops.Neighbour, error) { return v.net.Neighbour(v.ctx, v.ns, link, a) })
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
	return ask(v, "host end: "+link, func() (netops.LinkInfo, error) { return v.net.HostEnd(v.ctx, v.ns, link) })
}
