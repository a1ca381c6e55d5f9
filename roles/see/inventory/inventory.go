// Package inventory is what is attached to a node: what the store has, and which of it the kernel and the runtimes still have.
package inventory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Attachment is an attachment in the output of `cnibox state`.
type Attachment struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifname"`
	Pod         string         `json:"pod,omitempty"`
	Addresses   []netip.Prefix `json:"addresses,omitempty"`
	MAC         string         `json:"mac,omitempty"`
	HostLink    string         `json:"hostLink,omitempty"`
	Netns       string         `json:"netns,omitempty"`
	Roles       []string       `json:"roles,omitempty"`
	// Ports are the published ports of the host: "8080/tcp", "192.0.2.1:8000-8010/udp".
	Ports   []string    `json:"ports,omitempty"`
	Routes  []string    `json:"routes,omitempty"`
	State   store.State `json:"state"`
	Created time.Time   `json:"created"`
	// Alive is false if the container certainly no longer exists. LinkMissing is true if its
	// interface on the host does not.
	Alive       bool `json:"alive"`
	LinkMissing bool `json:"linkMissing,omitempty"`
	// Error is that of the last ADD or DEL of a plugin, if it failed. State is then "failed": the attachment is not complete.
	Error string `json:"error,omitempty"`
	// Made are the recorded changes. IsMasqueraded means that these, or those that its network shares, masquerade it.
	Made          []netops.Change `json:"-"`
	IsMasqueraded bool            `json:"-"`
}

// Inventory is the output of `cnibox state --json`.
type Inventory struct {
	Attachments []Attachment  `json:"attachments"`
	Leases      []store.Lease `json:"leases"`
	Claims      []store.Claim `json:"claims"`
	// Cloud is empty without cloud networks.
	Cloud []CloudPool `json:"cloud,omitempty"`
	// NICs are the host's interfaces by MAC address.
	NICs map[string]netops.LinkInfo `json:"-"`
	// Dump is the whole store.
	Dump *store.Dump `json:"-"`
}

// Only removes what is not of a network and container.
func (s *Inventory) Only(keep func(network, id string) bool) {
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a Attachment) bool { return !keep(a.Network, a.ContainerID) })
	s.Leases = slices.DeleteFunc(s.Leases, func(l store.Lease) bool { return !keep(l.Owner.Network, l.Owner.ContainerID) })
	s.Claims = slices.DeleteFunc(s.Claims, func(c store.Claim) bool { return !keep(c.Owner.Network, c.Owner.ContainerID) })
	s.Cloud = nil
}

// OnlyContainer removes what is not of the container with a name: its ID, the beginning of
// its ID, or its pod.
func (s *Inventory) OnlyContainer(name string) error {
	if name == "" {
		return roles.Usagef("the name of the container is empty: want its ID, the beginning of it, or a pod")
	}
	var ids []string
	pods := map[string]string{}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		ids, pods[a.Pod] = append(ids, a.ContainerID), a.ContainerID
	}
	for i := range s.Leases {
		ids, pods[s.Leases[i].Pod] = append(ids, s.Leases[i].Owner.ContainerID), s.Leases[i].Owner.ContainerID
	}
	if id, ok := pods[name]; ok {
		name = id
	}
	id, err := CompleteID(ids, name)
	if err != nil {
		return err
	}
	s.Only(func(_, one string) bool { return one == id })
	if len(s.Attachments)+len(s.Leases) == 0 {
		return fmt.Errorf("container or pod %q is not attached: %w", name, store.ErrNotFound)
	}
	return nil
}

// CompleteID returns the only ID that begins with a prefix, or the prefix if there is none.
func CompleteID(ids []string, prefix string) (string, error) {
	found := map[string]bool{}
	for _, id := range ids {
		if id == prefix {
			return id, nil
		}
		if strings.HasPrefix(id, prefix) {
			found[id] = true
		}
	}
	all := slices.Sorted(maps.Keys(found))
	switch len(all) {
	case 0:
		return prefix, nil
	case 1:
		return all[0], nil
	}
	return "", roles.Usagef("%q is the beginning of %d container IDs, %s and %s: give more of it", prefix, len(all), all[0], all[1])
}

// Seen is what was read of a node, from which Inventory makes the rest.
type Seen struct {
	Dump  *store.Dump `json:"-"`
	Cloud []CloudPool
	NICs  map[string]netops.LinkInfo
	// Dead and LinkMissing are about the attachments of the dump.
	Dead, LinkMissing []bool
}

// Read reads the store and then checks in the kernel which containers exist.
func Read(ctx context.Context, h *roles.Host) (*Inventory, error) {
	dump, err := Export(ctx, h)
	if err != nil {
		return nil, err
	}
	seen, err := See(ctx, h, dump)
	if err != nil {
		return nil, err
	}
	return seen.Inventory()
}

// See reads what Inventory needs beside the store.
func See(ctx context.Context, h *roles.Host, dump *store.Dump) (*Seen, error) {
	s := &Seen{Dump: dump}
	if err := s.readCloud(ctx, h); err != nil {
		return nil, err
	}
	if len(dump.Attachments) == 0 {
		return s, nil
	}
	census, err := attachment.NewCensus(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	for i := range dump.Attachments {
		a := &dump.Attachments[i]
		s.Dead, s.LinkMissing = append(s.Dead, census.Dead(a)), append(s.LinkMissing, census.LinkMissing(a))
	}
	return s, nil
}

// leases returns those of all pools.
func (s *Seen) leases() []store.Lease {
	all := []store.Lease{}
	for _, p := range s.Dump.Pools {
		all = append(all, p.Leases...)
	}
	return all
}

// Inventory returns what is attached.
func (s *Seen) Inventory() (*Inventory, error) {
	dump := s.Dump
	out := &Inventory{Attachments: []Attachment{}, Leases: s.leases(), Claims: append([]store.Claim{}, dump.Claims...), Cloud: s.Cloud, NICs: s.NICs, Dump: dump}
	shared := map[string][]netops.Change{}
	for _, n := range dump.Networks {
		changes, _ := attachment.DecodeChanges(n.Shared) // doctor reports a record that cannot be decoded
		shared[n.Name] = append(shared[n.Name], changes...)
	}
	for i := range dump.Attachments {
		a := &dump.Attachments[i]
		one := Attachment{
			Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Pod: a.Pod, Addresses: a.Addresses, MAC: a.MAC,
			HostLink: a.HostLink, Netns: a.Netns.Path, State: store.Done, Created: a.Created, Alive: !s.Dead[i],
			LinkMissing: s.LinkMissing[i], Routes: a.Routes, Ports: ports(dump.Claims, a.Key),
		}
		for _, part := range a.Parts {
			changes, err := attachment.DecodeChanges(part.Changes)
			if err != nil {
				return nil, err
			}
			one.Made = append(one.Made, changes...)
			one.Roles = append(one.Roles, part.Role)
			if part.State != store.Done {
				one.State = part.State
			}
		}
		one.IsMasqueraded = slices.ContainsFunc(slices.Concat(one.Made, shared[a.Network]), masquerades)
		out.Attachments = append(out.Attachments, one)
	}
	return out, nil
}

func masquerades(c netops.Change) bool { return netops.Masquerades(c.Do.Object) }

// Key returns the key of the record.
func (a *Attachment) Key() store.Key {
	return store.Key{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}

// Failed is the State of an attachment whose last call failed.
const Failed store.State = "failed"

// AddFailures adds errors from the trace: when a later plugin of a list fails, the runtime may leave what earlier ones have made.
func (s *Inventory) AddFailures(h *roles.Host) error {
	calls, _, err := h.Store.Traced() // damaged lines are left out
	if err != nil {
		return err
	}
	last := map[store.Key]*store.TracedCall{}
	for _, c := range calls {
		if c.Verb == "ADD" || c.Verb == "DEL" {
			last[c.Key()] = c
		}
	}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		if c := last[a.Key()]; c != nil && c.Code != 0 {
			a.State, a.Error = Failed, c.Verb+" of "+cmp.Or(c.Role, "-")+" failed: "+c.Fault()
		}
	}
	return nil
}

// ports returns the published ports of an attachment, from portmap's claims.
func ports(claims []store.Claim, owner store.Key) []string {
	var out []string
	for _, c := range claims {
		p := c.Resource().Ports
		if p.First == 0 || c.Owner != owner {
			continue
		}
		port := p.Numbers() + "/" + p.Protocol
		if p.Address.IsValid() {
			port = p.Address.String() + ":" + port
		}
		if !slices.Contains(out, port) { // of both address families
			out = append(out, port)
		}
	}
	return out
}

// Export reads the whole store in one transaction. It rebuilds a missing state file first if the kernel has interfaces of cnibox:
// without that the result would be empty.
func Export(ctx context.Context, h *roles.Host) (*store.Dump, error) {
	dump, err := store.Read(ctx, h.Store, (*store.Tx).Export)
	if err != nil || len(dump.Attachments) > 0 {
		return dump, err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	if !slices.ContainsFunc(links, attachment.Labelled) {
		return dump, nil
	}
	if err := recovery.Ensure(ctx, h); err != nil {
		return nil, err
	}
	return store.Read(ctx, h.Store, (*store.Tx).Export)
}

// Has reports whether the attachment has an address.
func (a *Attachment) Has(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
}

// Title is the pod, or the container's ID as ShortID has it.
func (a *Attachment) Title() string { return cmp.Or(a.Pod, ShortID(a.ContainerID)) }

// The lengths of container IDs that runtimes make of random digits, and of the beginning that people are shown.
const (
	longID  = 64
	shortID = 12
)

// IsRandom reports whether an ID is one that a runtime made of random digits.
func IsRandom(id string) bool { return len(id) == longID && strings.Trim(id, "0123456789abcdef") == "" }

// ShortID returns the beginning of an ID of random digits, and another ID whole.
func ShortID(id string) string {
	if IsRandom(id) {
		return id[:shortID]
	}
	return id
}
