package netops

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/iptables"
)

// Forward are rules in iptables' filter table that have the host forward what a
// network's containers send, the answers, and what comes to their published
// ports: a chain or policy of that table that drops is passed by nothing else.
// They stand in the chain CNI-FORWARD behind a jump to the administrator's, as
// the reference plugin's do, and `iptables -S` lists them. They go by their
// comments, so one owner's are told from the next's for the same address.
type Forward iptables.Forward

// Where is the host's namespace.
func (f *Forward) Where() Place { return Host }

// IsShared tells whether attachments share the rules.
func (f *Forward) IsShared() bool { return f.Shared }

func (f *Forward) object() {}

// String tells the network, and what else than the label tells rules apart.
func (f *Forward) String() string { return f.value().String() }

func (f *Forward) validate() error { return f.value().Validate() }

func (f *Forward) value() *iptables.Forward { return (*iptables.Forward)(f) }

func (f *Forward) plan(ctx context.Context, s *session) ([]Change, error) {
	missing, err := s.net.tables().Missing(ctx, f.value())
	if err != nil {
		return nil, err
	}
	switch {
	case !f.Shared:
		return []Change{{Do: Step{VerbAdd, f}, Undo: &Step{VerbDel, f}}}, nil
	case len(missing) == 0:
		return nil, nil
	}
	return []Change{{Do: Step{VerbAdd, f}}}, nil
}

func (f *Forward) verify(ctx context.Context, s *session) ([]Difference, error) {
	missing, err := s.net.tables().Missing(ctx, f.value())
	if err != nil {
		return nil, err
	}
	d := differences{object: f}
	for _, text := range missing {
		d.add(text, "absent")
	}
	return d.list, nil
}

// forward makes one step.
func (a *applier) forward(ctx context.Context, c Change) error {
	err := c.Do.Object.(*Forward).run(ctx, a.net, c.Do.Verb)
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		a.done = append(a.done, c) // in doubt it was made
	}
	if err == nil {
		err = a.net.restoreForwards(ctx)
	}
	if err != nil {
		return describeStep(c.Do, err)
	}
	return nil
}

// restoreForwards makes recorded rules that are not there: somebody flushed the
// chain. Rules are added seldom, and one network's loss is mostly everybody's.
func (n *Net) restoreForwards(ctx context.Context) error {
	if n.recordedForwards == nil {
		return nil
	}
	recorded, err := n.recordedForwards(ctx)
	if err != nil {
		return fmt.Errorf("list recorded rules: %w", err)
	}
	for _, f := range recorded {
		if err := f.run(ctx, n, VerbAdd); err != nil {
			return err
		}
	}
	return nil
}

// run makes a step.
func (f *Forward) run(ctx context.Context, n *Net, v Verb) error {
	if v == VerbDel {
		return n.tables().Remove(ctx, f.value())
	}
	return n.tables().Add(ctx, f.value())
}

// tables are iptables' tables of the host's namespace.
func (n *Net) tables() *iptables.Tables { return &iptables.Tables{NFT: n.nft, Run: n.iptables} }

// IPTables runs one of the programs iptables-legacy, ip6tables-legacy,
// iptables-legacy-restore and ip6tables-legacy-restore with arguments and
// standard input, and gives its standard output. The error wraps ErrNotSupported
// where the program is not installed.
type IPTables = iptables.Runner

// ForwardPolicy tells who decides over what the host forwards of one address family.
type ForwardPolicy = iptables.Policy

// ForwardPolicy reads who refuses to forward packets of an address family.
func (n *Net) ForwardPolicy(ctx context.Context, is6 bool) (ForwardPolicy, error) {
	return n.tables().Policy(ctx, is6)
}

// ForwardDrops names nftables' chains that drop by policy what the host forwards
// ("inet filter forward"), but for iptables' own: only their owner can have them
// let a packet pass.
func (n *Net) ForwardDrops(ctx context.Context) ([]string, error) {
	return n.tables().ForwardDrops(ctx)
}

// CheckChainName applies iptables' rules for the names of chains.
func CheckChainName(name string) error { return iptables.CheckChainName(name) }
