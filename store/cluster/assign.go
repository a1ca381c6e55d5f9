package cluster

import (
	"cmp"
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
	// Name is the node's name. Others are the nodes that hold subnets.
	Name   string
	Others []Holder
}

// Holder is a node that has a subnet.
type Holder struct {
	Name   string
	Subnet netip.Prefix
	// Address is the node's address in a registry whose names are keys. Otherwise it is invalid.
	Address netip.Addr
}

// Assign returns the subnets for a node, one of each family, IPv4 first. If the
// records of two nodes have the same subnet, the node whose name sorts first keeps
// it.
func (c *Config) Assign(w SubnetRequest) ([]netip.Prefix, error) {
	if len(w.Demanded) > 0 {
		return c.demanded(w)
	}
	taken := make([]netip.Prefix, 0, len(w.Others))
	for _, h := range w.Others {
		taken = append(taken, h.Subnet)
	}
	var out []netip.Prefix
	for _, network := range c.Families() {
		p, err := c.assign(network, w, taken)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (c *Config) assign(network netip.Prefix, w SubnetRequest, taken []netip.Prefix) (netip.Prefix, error) {
	fits := func(p netip.Prefix) bool { return network.Overlaps(p) && c.Fits(p) }
	if i := slices.IndexFunc(w.Own, fits); i >= 0 {
		p := w.Own[i]
		if h, ok := w.holder(p); ok && w.Name >= h.Name {
			return netip.Prefix{}, conflict(p, h)
		}
		return p, nil
	}
	for _, p := range w.Previous {
		if _, held := w.holder(p); fits(p) && !held {
			return p, nil
		}
	}
	return c.choose(network, taken)
}

func (c *Config) demanded(w SubnetRequest) ([]netip.Prefix, error) {
	n := Node{Name: w.Name, PodCIDRs: w.Demanded}
	if err := n.CheckIn(c); err != nil {
		return nil, err
	}
	if len(w.Demanded) != len(c.Families()) {
		return nil, fmt.Errorf("%w: podCIDRs: %v is not one of each of %v", ErrInvalid, w.Demanded, c.Families())
	}
	var faults []error
	for _, p := range w.Demanded {
		if h, ok := w.holder(p); ok && (!slices.Contains(w.Own, p) || h.Name < w.Name) {
			faults = append(faults, conflict(p, h))
		}
	}
	return w.Demanded, errors.Join(faults...)
}

// holder returns the first node by name, except this one, whose subnet overlaps p.
func (w *SubnetRequest) holder(p netip.Prefix) (Holder, bool) {
	var found []Holder
	for _, h := range w.Others {
		if h.Name != w.Name && h.Subnet.IsValid() && h.Subnet.Overlaps(p) {
			found = append(found, h)
		}
	}
	if len(found) == 0 {
		return Holder{}, false
	}
	return slices.MinFunc(found, func(a, b Holder) int { return cmp.Compare(a.Name, b.Name) }), true
}

func conflict(p netip.Prefix, h Holder) error {
	name := h.Name
	if h.Address.IsValid() {
		name += " (" + h.Address.String() + ")"
	}
	return fmt.Errorf("pod network %s: %w: %s has %s", p, ErrConflict, name, h.Subnet)
}
