package netops

import "github.com/cnibox/cnibox/netops/internal/ruleset"

const (
	// RoutedMark is the bit of the packet mark and the connection mark that
	// routes traffic of several NICs through the node's first NIC.
	RoutedMark = ruleset.RoutedMark
	// UplinkSet is the set that holds the first NIC of a node with several NICs.
	UplinkSet = ruleset.UplinkSet
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
