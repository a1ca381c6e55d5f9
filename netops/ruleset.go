package netops

import "github.com/cnibox/cnibox/netops/internal/ruleset"

const (
	// RoutedMark is the bit of a packet's and of a connection's mark that has what
	// several NICs carry leave by the node's first one.
	RoutedMark = ruleset.RoutedMark
	// UplinkSet is the set of the first NICs of several.
	UplinkSet = ruleset.UplinkSet
)

// PortCondition is what a packet must be like for a port to be mapped: of Source,
// Destination and Input one is set.
type PortCondition = ruleset.PortCondition

// ConditionVerdict is the value of an element of portmap_if4 and its like: it
// leads to a chain, made with the element, that maps what meets all conditions.
// The error wraps ErrInvalid and names the condition that cannot be expressed.
func ConditionVerdict(v6 bool, conditions []PortCondition) (string, error) {
	return ruleset.ConditionVerdict(v6, conditions)
}

// MarkVerdict is the value of an element of portmap_mark4 and its like: it leads
// to a chain, made with the element, that sets one bit of the mark.
func MarkVerdict(bit int) (string, error) { return ruleset.MarkVerdict(bit) }
