// Package recovery restores a node's state after it was lost: it rebuilds the
// state file from the kernel and from the runtimes' caches, gives rebuilt
// records to their owners, and removes labelled objects that no record names.
package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// Rebuild fills a new state file from the kernel and from the runtimes' caches. Every
// interface with our label becomes an attachment, its addresses are reserved, and the
// shared objects of its network are recorded. If the interface's owner is unknown, the
// record's key contains the label. An interface in a container is found if a cache has
// the path of its namespace.
func Rebuild(ctx context.Context, h *roles.Host, tx *store.Tx, cacheDirs []string) error {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	var found []netops.LinkInfo
	bridges := map[string]netops.LinkInfo{}
	for _, l := range links {
		if _, ok := attachment.ParseAlias(l.Alias); ok && l.IsPairEnd() {
			found = append(found, l)
		}
		if l.Alias == attachment.SharedAlias {
			bridges[l.Name] = l
		}
	}
	takeovers, err := takenOver(ctx, h, links, bridges)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	elements, err := h.Net.Labelled(ctx, attachment.LabelPrefix)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	cache := ReadCaches(h, cacheDirs)
	cache, err = withDelegates(ctx, h, cache)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	rules, err := h.Net.BoundRules(ctx)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	policy, err := h.Net.SharedPolicy(ctx)
	if err != nil {
		return fmt.Errorf("rebuild state: %w", err)
	}
	r := rebuilder{
		h: h, tx: tx, cache: cache, elements: elements, rules: rules, policy: policy,
		takeovers: takeovers, stored: map[string]bool{}, recorded: map[[2]string]bool{}, vrfs: map[string]*netops.VRF{},
	}
	for _, l := range found {
		if err := r.attachment(ctx, l, bridges); err != nil {
			return fmt.Errorf("rebuild attachment of %q: %w", l.Name, err)
		}
	}
	inside, reserved, err := r.containers(ctx)
	if err != nil {
		return fmt.Errorf("rebuild attachments from the runtimes' caches: %w", err)
	}
	if err := r.sharedByElements(bridges); err != nil {
		return fmt.Errorf("rebuild networks' shared objects: %w", err)
	}
	if n := len(found) + inside; n+reserved+len(bridges)+len(elements) > 0 {
		h.Log.Warn("state file was missing, rebuilt from the kernel and the runtimes' caches", "attachments", n, "reserved", reserved)
	}
	return nil
}

// rebuilt is the role's name in a rebuilt record, because the kernel does not store the
// role.
const rebuilt = "rebuilt"

// RebuiltPart returns the part of a rebuilt record that replaces the interface role's
// part, or nil.
func RebuiltPart(a *store.Attachment) *store.Part { return a.Part(rebuilt) }

// rebuilder fills one new state file.
type rebuilder struct {
	h     *roles.Host
	tx    *store.Tx
	cache map[string]*CacheEntry
	// elements were returned by Net.Labelled.
	elements []netops.Object
	// rules and policy were returned by Net.BoundRules and Net.SharedPolicy.
	rules  []*netops.Rule
	policy []netops.Object
	// takeovers are the bridges that replaced an uplink, by the bridge's name.
	takeovers map[string]*netops.Takeover
	// stored are the labels of the attachments that are stored.
	stored map[string]bool
	// vrfs are the VRFs that attachments' interfaces are in, by label.
	vrfs map[string]*netops.VRF
	// recorded has the networks and bridges whose shared objects are stored.
	recorded map[[2]string]bool
}

// attachment stores the attachment of one interface of the host, leases for its
// addresses in the pool that its network uses, and the shared objects.
func (r *rebuilder) attachment(ctx context.Context, l netops.LinkInfo, bridges map[string]netops.LinkInfo) error {
	info, _ := attachment.ParseAlias(l.Alias)
	a := &store.Attachment{Key: info.Key, HostLink: l.Name, Addresses: info.Addresses}
	dataDir, pooled := unknownDir, true
	switch c := r.cache[info.Label]; {
	case c != nil:
		p := c.plugin()
		a.Key, a.Netns = c.Key(), store.Netns{Path: c.Netns, Mount: attachment.MountNamespace()}
		dataDir, pooled = p.dataDir()
		if err := r.otherEnd(ctx, l, a); err != nil {
			r.h.Log.Warn("find the other end of an interface", "interface", l.Name, "netns", c.Netns, "error", err)
		}
	case !info.Whole:
		a.ContainerID = info.Label
	}
	made := &netops.Link{In: netops.Host, Name: l.Name, Kind: l.Kind, Alias: info.Label}
	if err := r.record(a, info.Label, append(r.neighbours(a, l.Master), made)...); err != nil {
		return err
	}
	if pooled {
		if err := r.leases(a, dataDir); err != nil {
			return err
		}
	}
	return r.shared(a.Network, bridges[l.Master])
}

// record stores an attachment. Its inverses delete the given objects, the policy rules
// that are bound to the interface, and the nftables elements with the attachment's label.
func (r *rebuilder) record(a *store.Attachment, label string, made ...netops.Object) error {
	for _, rule := range r.rules {
		if rule.IIF == a.HostLink {
			made = append(made, rule)
		}
	}
	for _, e := range r.elements {
		if labelOf(e) == label {
			made = append(made, e)
		}
	}
	if v := r.vrfs[label]; v != nil {
		made = append(made, v)
	}
	raw, err := json.Marshal(attachment.Inverses(made))
	if err != nil {
		return err
	}
	now := r.h.Now()
	a.Parts = []store.Part{{Role: rebuilt, State: store.Done, Changes: raw, Time: now}}
	a.Created, a.Updated, a.Program = now, now, r.h.Program
	r.stored[label] = true
	return r.tx.PutAttachment(a)
}

// leases reserves an attachment's addresses.
func (r *rebuilder) leases(a *store.Attachment, dataDir string) error {
	pool, err := r.tx.Pool(store.PoolID{DataDir: dataDir, Network: a.Network})
	if err != nil {
		return err
	}
	for i, p := range a.Addresses {
		err := pool.Reserve(store.Lease{Address: p.Addr(), Owner: a.Key, Set: i, Netns: a.Netns, Time: r.h.Now()})
		if err != nil && !errors.Is(err, store.ErrTaken) {
			return err
		}
	}
	return nil
}

// shared records the bridge, if we made it, and the network's shared nftables elements.
// An element of the uplink set means that the node has several NICs; the policy rules and
// routing tables of the other NICs are then recorded too.
func (r *rebuilder) shared(network string, bridge netops.LinkInfo) error {
	id := [2]string{network, bridge.Name}
	if r.recorded[id] {
		return nil
	}
	r.recorded[id] = true
	var spec netops.Spec
	if t := r.takeovers[bridge.Name]; t != nil {
		spec.Add(t, &netops.LinkDNS{Link: t.Bridge, From: t.Uplink})
	} else if bridge.Name != "" {
		spec.Add(&netops.Link{In: netops.Host, Shared: true, Name: bridge.Name, Kind: bridge.Kind, Alias: attachment.SharedAlias})
	}
	for _, e := range r.elements {
		if labelOf(e) == attachment.SharedLabel(network) {
			setShared(e)
			spec.Add(e)
			if el, ok := e.(*netops.Element); ok && el.Set == netops.UplinkSet {
				spec.Add(r.policy...)
			}
		}
	}
	return attachment.AddShared(r.tx, network, rebuilt, spec, r.h.Now())
}

// sharedByElements calls shared for every network that has shared elements, because the
// network may have no attachment.
func (r *rebuilder) sharedByElements(bridges map[string]netops.LinkInfo) error {
	for _, e := range r.elements {
		network, ok := strings.CutPrefix(labelOf(e), attachment.SharedAlias+" ")
		if !ok {
			continue
		}
		if err := r.shared(network, bridges[attachment.LinkOf(e)]); err != nil {
			return err
		}
	}
	return nil
}
