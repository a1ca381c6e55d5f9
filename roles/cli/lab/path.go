package lab

import (
	"context"
	"errors"
	"net/netip"
)

// NodeAt returns the node with an address that the other nodes reach. It returns nil if
// there is no lab, or if the network namespace of this process is not one of its nodes:
// the address then belongs to a machine elsewhere.
func (l *Lab) NodeAt(a netip.Addr) (*Node, error) {
	s, err := l.Load()
	if errors.Is(err, ErrDown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found *Node
	here := false
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Address.Addr() == a {
			found = n
		}
		ns, err := l.open(n.Netns)
		if err != nil {
			continue // an incomplete lab
		}
		own, err := l.Net.IsHost(ns)
		_ = ns.Close() // it was only compared
		if err != nil {
			return nil, err
		}
		here = here || own
	}
	if !here {
		return nil, nil
	}
	return found, nil
}

// Run runs this program on a node and returns its output, also after a failure.
func (l *Lab) Run(ctx context.Context, n *Node, args ...string) ([]byte, error) {
	ns, err := l.open(n.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return l.Self.Output(ctx, ns, l.env(n), args)
}
