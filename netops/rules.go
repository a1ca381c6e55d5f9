package netops

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

const (
	// RoutedMark is the bit of the packet mark and the connection mark that
	// routes traffic of several NICs through the node's first NIC.
	RoutedMark = ruleset.RoutedMark
	// UplinkSet is the set that holds the first NIC of a node with several NICs.
	UplinkSet = ruleset.UplinkSet
	// EgressSet and EgressNearSet are the names of the sets for egressAddress. The digit of the
	// family follows.
	EgressSet     = ruleset.EgressSet
	EgressNearSet = ruleset.EgressNearSet
)

// PortCondition is a condition that a packet must meet for a port mapping.
// Exactly one of Source, Destination and Input is set.
type PortCondition = ruleset.PortCondition

// ConditionVerdict returns the value of an element of portmap_if4 and similar
// maps. The value jumps to a chain that is created with the element. The chain
// maps packets that meet all conditions. The error wraps ErrInvalid and names
// the condition that cannot be expressed.
func ConditionVerdict(v6 bool, conditions []PortCondition) (string, error) {
	return ruleset.ConditionVerdict(v6, conditions)
}

// MarkVerdict returns the value of an element of portmap_mark4 and similar maps.
// The value jumps to a chain that is created with the element and sets one bit
// of the mark.
func MarkVerdict(bit int) (string, error) { return ruleset.MarkVerdict(bit) }

// PortsOfAddress is the name of the map of one protocol's ports of single addresses,
// for the family "4" or "6".
func PortsOfAddress(protocol, family string) string { return ruleset.PortsOfAddress(protocol, family) }

// RemoveTables deletes cnibox's nftables tables that contain no element.
func (n *Net) RemoveTables(ctx context.Context) error { return n.nft.RemoveBase(ctx) }

// Labelled reads the elements of all cnibox's nftables sets, and the rules in
// iptables' filter tables, whose label begins with prefix. Shared is not set in
// any of them: only the code that chose the label knows whether it is a shared
// object's label.
func (n *Net) Labelled(ctx context.Context, prefix string) ([]Object, error) {
	var out []Object
	sets := n.nft.Schema().Sets()
	sorting.Func(sets, func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
	for _, set := range sets {
		all, err := n.nft.List(ctx, set.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if strings.HasPrefix(e.Label, prefix) {
				out = append(out, (*Element)(e))
			}
		}
	}
	forwards, err := n.FilterTables().Forwards(ctx, prefix)
	for _, f := range forwards {
		out = append(out, (*Forward)(f))
	}
	return out, err
}

// LostSets lists the names of cnibox's nftables sets whose table does not exist. It costs
// two requests.
func (n *Net) LostSets(ctx context.Context) ([]string, error) {
	lost, err := n.nft.LostSets(ctx)
	return lost, nlconn.Explain(err, "read nftables tables")
}

// FlushedSets lists the names of cnibox's nftables sets whose rules another program deleted, but
// not their table. It costs one request for each of cnibox's base chains.
func (n *Net) FlushedSets(ctx context.Context) (names []string, err error) {
	flushed, err := n.nft.Flushed(ctx, "")
	for name, is := range flushed {
		if is {
			names = append(names, name)
		}
	}
	sorting.Func(names, strings.Compare)
	return names, nlconn.Explain(err, "read nftables chains")
}

// RestoreRules makes the nftables elements and rules, and the rules in iptables' filter table, that are
// recorded and absent. It returns the number of elements.
func (n *Net) RestoreRules(ctx context.Context) (restored int, err error) {
	err = n.alone(ctx, func() error {
		restored, err = n.nft.Restore(ctx)
		return errors.Join(err, n.addForwards(ctx, nil))
	})
	return restored, err
}

// RulesMonitor notifies when another program changes the table of most of cnibox's
// elements. `nft flush ruleset` deletes it with all others.
type RulesMonitor = nft.Monitor

// OpenRulesMonitor starts a RulesMonitor in the namespace of the calling thread. It ignores
// the changes of n.
func (n *Net) OpenRulesMonitor() (*RulesMonitor, error) {
	return nft.OpenMonitor(n.nft, func(nft.Watched) {}, nft.Watched{Table: nft.Table{Family: unix.NFPROTO_INET, Name: ruleset.TableName}})
}
