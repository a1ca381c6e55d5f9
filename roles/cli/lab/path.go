package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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

// Become runs this program on the node of a name in place of this process. It returns only if it fails.
func (l *Lab) Become(name string, env, args []string) error {
	s, err := l.Load()
	if err != nil {
		return err
	}
	var names []string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		names = append(names, n.Name)
		if n.Name != name {
			continue
		}
		ns, err := l.open(n.Netns)
		if err != nil {
			return err
		}
		return errors.Join(l.Self.Become(ns, n.Name, append(env, l.env(n)...), args), ns.Close())
	}
	return fmt.Errorf("%w: no node %q: there are %s", ErrInvalid, name, strings.Join(names, ", "))
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
