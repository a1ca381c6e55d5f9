package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// CheckIn is like Check. In addition the node's pod networks must be within the cluster's, so that a
// record cannot attract other traffic.
func (n *Node) CheckIn(c *Config) error {
	if err := n.Check(); err != nil {
		return err
	}
	if len(n.PodCIDRs) == 0 {
		return fmt.Errorf("%w: podCIDRs: there is none", ErrInvalid)
	}
	for _, p := range n.PodCIDRs {
		if !c.Contains(p) {
			return fmt.Errorf("%w: podCIDRs: %s is not inside of %v", ErrInvalid, p, c.Families())
		}
	}
	return nil
}

// SubnetRequest is the input of Assign.
type SubnetRequest struct {
	// Demanded are the subnets that the node must get, unless it is empty. They may be outside
	// SubnetMin and SubnetMax.
	Demanded []netip.Prefix
	// Own are the subnets of the node's record, Previous those that it had before, the newest first. They are
	// preferred if they still fit and no other node has them.
	Own, Previous []netip.Prefix
	// Name is the node's name. Others are nodes of the registry, and may have this one. The subnets of one that are not in
	// the cluster's network, or are all of it, are not avoided.
	Name   string
	Others []*Node
}

// holder is a node that has a subnet.
type holder struct {
	*Node
	subnet netip.Prefix
}

// Assign returns the subnets for a node, one of each family, IPv4 first. If the
// records of two nodes have the same subnet, the node whose name sorts first keeps
// it.
func (c *Config) Assign(w SubnetRequest) ([]netip.Prefix, error) {
	var held []holder
	for _, n := range w.Others {
		for _, p := range n.PodCIDRs {
			if n.Name != w.Name && c.Contains(p) {
				held = append(held, holder{n, p})
			}
		}
	}
	if len(w.Demanded) > 0 {
		return c.demanded(w, held)
	}
	var out []netip.Prefix
	for _, network := range c.Families() {
		p, err := c.assign(network, w, held)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (c *Config) assign(network netip.Prefix, w SubnetRequest, held []holder) (netip.Prefix, error) {
	fits := func(p netip.Prefix) bool { return network.Overlaps(p) && c.Fits(p) }
	if i := slices.IndexFunc(w.Own, fits); i >= 0 {
		p := w.Own[i]
		if h := holderOf(p, held); h != nil && w.Name >= h.Name {
			return netip.Prefix{}, conflict(p, h)
		}
		return p, nil
	}
	for _, p := range w.Previous {
		if fits(p) && holderOf(p, held) == nil {
			return p, nil
		}
	}
	return c.choose(network, held)
}

func (c *Config) demanded(w SubnetRequest, held []holder) ([]netip.Prefix, error) {
	n := Node{Name: w.Name, PodCIDRs: w.Demanded}
	if err := n.CheckIn(c); err != nil {
		return nil, err
	}
	if len(w.Demanded) != len(c.Families()) {
		return nil, fmt.Errorf("%w: podCIDRs: %v is not one of each of %v", ErrInvalid, w.Demanded, c.Families())
	}
	var faults []error
	for _, p := range w.Demanded {
		if h := holderOf(p, held); h != nil && (!slices.Contains(w.Own, p) || h.Name < w.Name) {
			faults = append(faults, conflict(p, h))
		}
	}
	return w.Demanded, errors.Join(faults...)
}

// holderOf returns the first node by name whose subnet overlaps p, or nil.
func holderOf(p netip.Prefix, held []holder) (first *holder) {
	for i := range held {
		if h := &held[i]; h.subnet.Overlaps(p) && (first == nil || h.Name < first.Name) {
			first = h
		}
	}
	return first
}

func conflict(p netip.Prefix, h *holder) error {
	name := h.Name
	if a := h.Address(); a.IsValid() {
		name += " (" + a.String() + ")"
	}
	return fmt.Errorf("pod network %s: %w: %s has %s", p, ErrConflict, name, h.subnet)
}
