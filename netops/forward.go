package netops

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/netops/internal/iptables"
)

// Forward is a set of rules in the filter table of iptables. The rules accept what a
// network's containers send, the replies, and the packets to their published ports. If a
// rule or policy of that table drops forwarded packets, only a rule in the same table
// can accept them.
//
// The rules are in the chain CNI-FORWARD after the jump to the administrator's chain,
// like those of the reference plugin. `iptables -S` lists them. The comment of a rule
// identifies its owner, because two owners can have rules for the same address.
type Forward iptables.Forward

// Where returns Host.
func (f *Forward) Where() Place { return Host }

// IsShared reports whether attachments share the rules.
func (f *Forward) IsShared() bool { return f.Shared }

// String returns all fields that identify the rules, except the label.
func (f *Forward) String() string { return f.value().String() }

func (f *Forward) validate() error { return f.value().Validate() }

func (f *Forward) value() *iptables.Forward { return (*iptables.Forward)(f) }

func (f *Forward) plan(ctx context.Context, s *session) ([]Change, error) {
	missing, err := s.net.FilterTables().Missing(ctx, f.value())
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
	missing, err := s.net.FilterTables().Missing(ctx, f.value())
	if err != nil {
		return nil, err
	}
	d := differences{object: f}
	for _, text := range missing {
		d.add(text, "absent")
	}
	return d.list, nil
}

// apply adds the rules of a batch, and the recorded rules that are absent because
// another program flushed the chain: a flush usually affects all networks.
func (f *Forward) apply(ctx context.Context, run *applier, batch []Change) error {
	all := make([]*Forward, len(batch))
	for i, c := range batch {
		all[i] = c.Do.Object.(*Forward)
	}
	err := run.net.alone(ctx, func() error { return run.net.addForwards(ctx, all) })
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		run.done = append(run.done, batch...) // after a cancellation the rules may have been made
	}
	return describeStep(batch[0].Do, err)
}

func (f *Forward) batchKey(Verb) string { return "forward" }

func (f *Forward) undo(ctx context.Context, s *session, v Verb) error { return f.write(ctx, s.net, v) }

// addForwards adds the rules and the absent recorded rules. It reads each table once. The caller
// is alone.
func (n *Net) addForwards(ctx context.Context, all []*Forward) error {
	if n.recordedForwards != nil {
		recorded, err := n.recordedForwards(ctx)
		if err != nil {
			return fmt.Errorf("list recorded rules: %w", err)
		}
		all = append(all, recorded...)
	}
	values := make([]*iptables.Forward, len(all))
	for i, f := range all {
		values[i] = f.value()
	}
	return n.FilterTables().Add(ctx, values...)
}

// write adds the rules, or removes them with VerbDel.
func (f *Forward) write(ctx context.Context, n *Net, v Verb) error {
	if v == VerbDel {
		return n.FilterTables().Remove(ctx, f.value())
	}
	return n.FilterTables().Add(ctx, f.value())
}

// IPTables runs one of the programs iptables-legacy, ip6tables-legacy,
// iptables-legacy-restore and ip6tables-legacy-restore with arguments and
// standard input. It returns the program's standard output. The error wraps
// ErrNotSupported if the program is not installed.
type IPTables = iptables.Runner

// ForwardPolicy reports which firewalls decide what the host forwards for one address
// family.
type ForwardPolicy = iptables.Policy

// FilterTables gives access to the filter tables of iptables in the host's namespace, and to the
// chains of nftables that drop forwarded packets.
func (n *Net) FilterTables() *iptables.Tables {
	return &iptables.Tables{NFT: n.nft, Run: n.iptables}
}

// CheckChainName checks a name against the rules of iptables for chain names.
func CheckChainName(name string) error { return iptables.CheckChainName(name) }
