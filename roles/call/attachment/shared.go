package attachment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// SharedAlias marks a shared link that we made. We never remove other links.
const SharedAlias = LabelPrefix + "shared"

// VRFAlias marks a VRF that we made in a container.
const VRFAlias = LabelPrefix + "vrf"

// PutShared records the shared objects that a network depends on: those that its plan
// makes, those of its spec that another network has made, and elements that a wider
// element of another network covers. So the last of these networks can remove them, and
// objects that we have not made are never removed.
func PutShared(tx *store.Tx, network, role string, wanted netops.Spec, changes []netops.Change, now time.Time) error {
	var spec netops.Spec
	for _, c := range changes {
		if c.Do.Object.IsShared() && c.Do.Verb == netops.VerbAdd {
			spec.Add(c.Do.Object)
		}
	}
	names := sharedNames(wanted)
	if len(spec.Objects) == 0 && (len(names) == 0 || tx.SharedConfirmed(network, role, names)) {
		return nil
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
	if err := AddShared(tx, network, role, spec, now); err != nil {
		return err
	}
	if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool { return !noted[name] }) {
		return nil // another network may make the missing objects later
	}
	return tx.ConfirmShared(network, role, names)
}

// alwaysOurs reports whether objects of this type can be recorded although no plan made
// them. Only cnibox makes elements in its tables and bridges that replace an uplink. A
// namespace may be another program's, but is removed only if it is empty.
func alwaysOurs(o netops.Object) bool {
	switch o.(type) {
	case *netops.Element, *netops.Takeover, *netops.LinkDNS, *netops.Netns:
		return true
	}
	return false
}

// sharedNames returns the identities of a spec's shared objects that can be recorded.
func sharedNames(wanted netops.Spec) []string {
	var names []string
	for _, c := range netops.SharedInverses(wanted) {
		names = append(names, identity(c.Do.Object))
	}
	return names
}

// AddShared adds shared objects to a network's record.
func AddShared(tx *store.Tx, network, role string, spec netops.Spec, now time.Time) error {
	if len(spec.Objects) == 0 {
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
	return tx.PutNetwork(rec)
}

// mergeChanges appends the changes that are not stored yet.
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

// SharedSubnets returns the subnets of the host addresses that a network's attachments share,
// such as those of its former gateways.
func SharedSubnets(tx *store.Tx, network string) ([]netip.Prefix, error) {
	rec, err := tx.Network(network)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	changes, err := DecodeChanges(rec.Shared)
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", network, err)
	}
	var subnets []netip.Prefix
	for _, c := range changes {
		if a, ok := c.Do.Object.(*netops.Addr); ok {
			subnets = append(subnets, a.Address.Masked())
		}
	}
	return subnets, nil
}

// sharedChanges reads the recorded shared objects of a network, and those of all other
// networks.
func sharedChanges(tx *store.Tx, network string) (mine, others []netops.Change, err error) {
	nets, err := tx.Networks()
	if err != nil {
		return nil, nil, err
	}
	for _, n := range nets {
		c, err := DecodeChanges(n.Shared)
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

// identity returns a text that is equal for two records of the same object. Two networks
// may have planned the same bridge with different MACs.
func identity(o netops.Object) string {
	if l, ok := o.(*netops.Link); ok && l.In == netops.Host {
		return "link " + l.Name
	}
	return o.String()
}
