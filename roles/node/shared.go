package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// SharedAlias marks a shared link that we made: only such a one is ever removed.
const SharedAlias = labelPrefix + "shared"

// VRFAlias marks a VRF that we made in a container.
const VRFAlias = labelPrefix + "vrf"

// RecordShared notes the shared objects that a network stands on: those that a
// plan makes, those of its spec that another network made before, and elements
// that another network's wider one stands for. So the last of these networks can
// remove them, and nobody what we have not made.
func RecordShared(tx *store.Tx, network, role string, wanted netops.Spec, changes []netops.Change, now time.Time) error {
	var spec netops.Spec
	for _, c := range changes {
		if c.Do.Object.IsShared() && c.Do.Verb == netops.VerbAdd {
			spec.Add(c.Do.Object)
		}
	}
	names := sharedNames(wanted)
	if len(spec.Objects) == 0 {
		rec, err := tx.Network(network)
		if err == nil && rec.Settled == settledBy(rec.Shared, names) {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	mine, others, err := sharedChanges(tx, network)
	if err != nil {
		return err
	}
	noted := map[string]bool{}
	for _, c := range mine {
		noted[identity(c.Do.Object)] = true
	}
	for _, o := range spec.Objects {
		noted[identity(o)] = true
	}
	made := map[string]netops.Object{}
	for _, c := range others {
		made[identity(c.Do.Object)] = c.Do.Object
	}
	for _, o := range wanted.Objects {
		id := identity(o)
		if !o.IsShared() || noted[id] {
			continue
		}
		if made[id] == nil && alwaysOurs(o) {
			made[id] = o
		}
		if made[id] != nil {
			spec.Add(made[id])
			noted[id] = true
		}
	}
	unnoted := func(name string) bool { return !noted[name] }
	if len(names) == 0 || slices.ContainsFunc(names, unnoted) {
		names = nil // another network may come to have made what is missing
	}
	return recordObjects(tx, network, role, spec, names, now)
}

// alwaysOurs tells whether nobody else makes objects of the kind: all elements of our
// tables are ours, though a wider one may stand for one, and so is a bridge that has
// an uplink's place.
func alwaysOurs(o netops.Object) bool {
	switch o.(type) {
	case *netops.Element, *netops.Takeover, *netops.LinkDNS:
		return true
	}
	return false
}

// sharedNames are the identities of those shared objects of a spec that can be
// noted.
func sharedNames(wanted netops.Spec) []string {
	var names []string
	for _, c := range netops.SharedInverses(wanted) {
		names = append(names, identity(c.Do.Object))
	}
	return names
}

// settledBy stands for a record's shared objects and those that an attachment
// wants: what is settled once needs no record decoded in every later ADD.
func settledBy(shared json.RawMessage, names []string) string {
	h := sha256.New()
	h.Write(shared)
	for _, n := range names {
		h.Write([]byte{0})
		h.Write([]byte(n))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// recordObjects adds shared objects to a network's record. With names, those of
// all that an attachment wants, the record holds them all now.
func recordObjects(tx *store.Tx, network, role string, spec netops.Spec, names []string, now time.Time) error {
	if len(spec.Objects) == 0 && len(names) == 0 {
		return nil
	}
	rec, err := tx.Network(network)
	if errors.Is(err, store.ErrNotFound) {
		rec, err = &store.Network{Name: network}, nil
	}
	if err != nil {
		return err
	}
	merged, err := mergeChanges(rec.Shared, netops.SharedInverses(spec))
	if err != nil {
		return fmt.Errorf("network %q: %w", network, err)
	}
	rec.Shared, rec.Role, rec.Updated = merged, role, now
	if len(names) > 0 {
		rec.Settled = settledBy(merged, names)
	}
	return tx.PutNetwork(rec)
}

// mergeChanges appends changes that are not among the stored ones.
func mergeChanges(stored json.RawMessage, add []netops.Change) (json.RawMessage, error) {
	var list []json.RawMessage
	if len(stored) > 0 {
		if err := json.Unmarshal(stored, &list); err != nil {
			return nil, fmt.Errorf("shared objects: %w: %w", roles.ErrDecode, err)
		}
	}
	held := make(map[string]bool, len(list)+len(add))
	for _, l := range list {
		var c bytes.Buffer
		if err := json.Compact(&c, l); err != nil {
			return nil, fmt.Errorf("shared objects: %w: %w", roles.ErrDecode, err)
		}
		held[c.String()] = true
	}
	for _, c := range add {
		raw, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		if !held[string(raw)] {
			held[string(raw)] = true
			list = append(list, raw)
		}
	}
	return json.Marshal(list)
}

// RemoveShared removes what a network's attachments shared, when none of them
// is left and no other network stands on it. It does nothing while another
// process holds one of the named locks.
func RemoveShared(ctx context.Context, h *roles.Host, network string, names []string) error {
	for _, n := range names {
		lock, ok, err := h.Store.TryLockShared(ctx, n, true)
		if err != nil || !ok {
			return err
		}
		defer lock.Unlock()
	}
	return removeShared(ctx, h, network, nil)
}

// RemoveUnused is RemoveShared for whoever took the network's last attachment
// away: it waits for the locks, for at most the store's LockTimeout. An ADD
// that is at work is over then, and either recorded or gone. Of the named links
// it removes those that bear our label although no record tells of them.
func RemoveUnused(ctx context.Context, h *roles.Host, network string, names []string, links []*netops.Link) error {
	used := false
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		used = tx.Attached(network)
		return nil
	})
	if err != nil || used {
		return err
	}
	for _, n := range names {
		lock, err := h.Store.LockShared(ctx, n, true)
		if err != nil {
			return err
		}
		defer lock.Unlock()
	}
	return removeShared(ctx, h, network, links)
}

// removeShared does the work of both under the locks.
func removeShared(ctx context.Context, h *roles.Host, network string, ours []*netops.Link) error {
	var mine, others []netops.Change
	used := false
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		used = tx.Attached(network)
		var err error
		mine, others, err = sharedChanges(tx, network)
		return err
	})
	if err != nil || used {
		return err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return err
	}
	mine = append(unnoted(ours, links, mine), mine...)
	gone, kept := removable(links, mine, others)
	if err := h.Net.Undo(ctx, gone, nil); err != nil {
		return err
	}
	if len(others) == 0 {
		if err := h.Net.RemoveTables(ctx); err != nil {
			return err
		}
	}
	if len(mine) == 0 {
		return nil
	}
	err = h.Store.Update(ctx, func(tx *store.Tx) error { return forgetShared(tx, network, kept) })
	if err != nil {
		return err
	}
	// After the record: where the tables are gone, all on record is made again.
	return h.Net.Ensure(ctx, uncovered(gone, others), nil)
}

// uncovered are the elements of other networks that one which is gone may have
// stood for: the kernel holds no prefix within another of the same link.
func uncovered(gone, others []netops.Change) netops.Spec {
	of := map[string]bool{}
	for _, c := range gone {
		if e, ok := c.Do.Object.(*netops.Element); ok {
			of[e.Set+" "+e.Key[0]] = true
		}
	}
	var spec netops.Spec
	for _, c := range others {
		if e, ok := c.Do.Object.(*netops.Element); ok && of[e.Set+" "+e.Key[0]] {
			spec.Add(e)
		}
	}
	return spec
}

// unnoted are changes that make those of our links that are there and that no
// noted change makes.
func unnoted(ours []*netops.Link, links []netops.LinkInfo, noted []netops.Change) []netops.Change {
	var missing []netops.Object
	for _, o := range ours {
		isIt := func(l netops.LinkInfo) bool { return l.Name == o.Name && l.Kind == o.Kind && l.Alias == o.Alias }
		makesIt := func(c netops.Change) bool { return identity(c.Do.Object) == identity(o) }
		if slices.ContainsFunc(links, isIt) && !slices.ContainsFunc(noted, makesIt) {
			missing = append(missing, o)
		}
	}
	return inverses(missing)
}

// forgetShared leaves in a network's record what a stranger's port holds: the
// next GC looks at it again.
func forgetShared(tx *store.Tx, network string, kept []netops.Change) error {
	if len(kept) == 0 {
		return tx.DeleteNetwork(network)
	}
	rec, err := tx.Network(network)
	if errors.Is(err, store.ErrNotFound) {
		rec, err = &store.Network{Name: network}, nil
	}
	if err != nil {
		return err
	}
	if rec.Shared, err = json.Marshal(kept); err != nil {
		return err
	}
	return tx.PutNetwork(rec)
}

// sharedChanges reads a network's shared objects, and all other networks'.
func sharedChanges(tx *store.Tx, network string) (mine, others []netops.Change, err error) {
	nets, err := tx.Networks()
	if err != nil {
		return nil, nil, err
	}
	for _, n := range nets {
		c, err := decodeChanges(n.Shared)
		if err != nil {
			return nil, nil, fmt.Errorf("network %q: %w", n.Name, err)
		}
		if n.Name == network {
			mine = c
		} else {
			others = append(others, c...)
		}
	}
	return mine, others, nil
}

// removable tells apart the changes whose object can go and those that are
// kept: a bridge with ports of anybody's stays, and so does all that is on it.
// What another network stands on is neither, it is that network's from now on.
func removable(links []netops.LinkInfo, mine, others []netops.Change) (gone, kept []netops.Change) {
	inUse := map[string]bool{}
	for _, c := range others {
		inUse[identity(c.Do.Object)] = true
	}
	made := madeBy(mine, links)
	keep := map[string]bool{}
	for _, l := range links {
		if l.Master != "" && !made[l.Name] && l.Uplink == "" {
			keep[l.Master] = true
		}
	}
	for _, c := range mine {
		switch {
		case inUse[identity(c.Do.Object)]:
		case keep[onLink(c.Do.Object)]:
			kept = append(kept, c)
		default:
			gone = append(gone, c)
		}
	}
	return gone, kept
}

// madeBy names the links that changes make, and the other ends of veth pairs
// among them, which a rebuilt record does not tell.
func madeBy(changes []netops.Change, links []netops.LinkInfo) map[string]bool {
	made := map[string]bool{}
	for _, c := range changes {
		switch o := c.Do.Object.(type) {
		case *netops.Link:
			made[o.Name] = true
		case *netops.Takeover:
			made[o.Uplink] = true // it is the bridge's port for as long as that has its place
		}
	}
	byIndex := make(map[int]netops.LinkInfo, len(links))
	for _, l := range links {
		byIndex[l.Index] = l
	}
	for _, l := range links {
		if peer, ok := byIndex[l.PeerIndex]; ok && made[l.Name] && l.Kind == "veth" && peer.PeerIndex == l.Index {
			made[peer.Name] = true
		}
	}
	return made
}

// identity tells objects apart. Two networks may both have been about to make
// one bridge, each with a MAC of its own choice.
func identity(o netops.Object) string {
	if l, ok := o.(*netops.Link); ok {
		return "link " + l.Name
	}
	return o.String()
}

// onLink names the link that an object is or stands on.
func onLink(o netops.Object) string {
	switch o := o.(type) {
	case *netops.Link:
		return o.Name
	case *netops.Addr:
		return o.Link
	case *netops.Element:
		return o.Key[0]
	case *netops.Forward:
		return o.Link
	case *netops.Takeover:
		return o.Bridge
	case *netops.LinkDNS:
		return o.Link
	}
	return ""
}

// labelOf is the label of what Net.Labelled found.
func labelOf(o netops.Object) string {
	switch o := o.(type) {
	case *netops.Element:
		return o.Label
	case *netops.Forward:
		return o.Label
	}
	return ""
}

// setShared marks what Net.Labelled found and networks share.
func setShared(o netops.Object) {
	switch o := o.(type) {
	case *netops.Element:
		o.Shared = true
	case *netops.Forward:
		o.Shared = true
	}
}

// RemoveStrays deletes what carries a label of ours, has no record and is not
// valid: interfaces of the network with the rules that are bound to them, and nftables
// elements and rules of interfaces that are gone, which do not tell their network. They
// are what is left when state was lost.
func RemoveStrays(ctx context.Context, h *roles.Host, network string, valid []roles.AttachmentID) error {
	rules, err := h.Net.BoundRules(ctx) // before the links: an ADD makes its link first
	if err != nil {
		return err
	}
	links, err := h.Net.Links(ctx, nil) // before the records: an ADD records first
	if err != nil {
		return err
	}
	elements, err := h.Net.Labelled(ctx, labelPrefix)
	if err != nil {
		return err
	}
	known, bound := map[string]bool{}, map[string]bool{}
	for _, v := range valid {
		known[Label(store.Key{Network: network, ContainerID: v.ContainerID, IfName: v.IfName})] = true
	}
	err = h.Store.View(ctx, func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for _, a := range atts {
			known[Label(a.Key)] = true
			known[a.ContainerID] = true
			bound[a.HostLink] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	var stray []netops.Object
	for _, l := range links {
		info, ok := parseAlias(l.Alias)
		bound[l.Name] = bound[l.Name] || !ok || info.key.Network != network || known[info.label]
		if ok && info.key.Network == network && !known[info.label] {
			stray = append(stray, strayLink(l, info))
			h.Log.Info("removing interface without a record", "link", l.Name, "alias", l.Alias)
		}
	}
	for _, e := range elements {
		if isLabel(labelOf(e)) && !known[labelOf(e)] {
			stray = append(stray, e)
			h.Log.Info("removing firewall rule without a record", "rule", e.String())
		}
	}
	for _, r := range rules {
		if !bound[r.IIF] {
			stray = append(stray, r)
			h.Log.Info("removing policy rule without an attachment", "rule", r.String())
		}
	}
	return h.Net.Undo(ctx, inverses(stray), nil)
}

// strayLink is what has left a link on the host: one that was made there, or a
// device that came back when its namespace ended, and is to have its name again.
func strayLink(l netops.LinkInfo, info aliasInfo) netops.Object {
	if info.device != "" {
		return &netops.Move{From: netops.Host, Name: info.device, To: netops.Container, As: l.Name, Alias: info.label}
	}
	return &netops.Link{In: netops.Host, Name: l.Name, Kind: l.Kind, Alias: info.label}
}
