package podtable

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Way is a way of packets to or from a pod that does not lead through the chains of its policies.
type Way struct {
	// Name is the comment of the rules that close it.
	Name string
	// Family and Hook are where these rules are.
	Family, Hook string
	// Attack says what a program in another pod does.
	Attack string
}

// The names of ways.
const (
	wayStray = "no-connection"
)

// Ways returns all ways. docs/policy.md has a table of them, and the tests in roles/netpolicy/keeper play each attack.
func Ways() []Way {
	return []Way{
		{wayStray, "inet", "forward", "sends packets that conntrack takes for no part of a connection"},
	}
}

// baseRule is a rule of a chain that every table has. way names the way that it closes, or is "".
type baseRule struct {
	way  string
	fill func(expressions)
}

// closing returns a rule that closes a way.
func closing(way string, fill func(expressions)) baseRule { return baseRule{way, fill} }

// message returns the request that appends the rule to a chain.
func (r *baseRule) message(t nft.Table, chain string) nlconn.Message {
	m := ruleMessage(t, chain, r.fill)
	if r.way != "" {
		m.Bytes(unix.NFTA_RULE_USERDATA, nft.LabelUserData(r.way))
	}
	return m
}
