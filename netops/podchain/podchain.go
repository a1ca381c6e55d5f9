// Package podchain computes the chains of the pods that some policies select, from the chains of these policies. The name of a chain
// follows from its rules, so an ADD that knows the policies knows the name of the pod's chain.
package podchain

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// Deny is the chain that drops everything.
const Deny = podtable.Deny

// nameBytes is the length of the hash in a name.
const nameBytes = 12

// Name returns the name of an object that follows from its contents.
func Name(kind, contents string) string {
	sum := sha256.Sum256([]byte(contents))
	return kind + "_" + hex.EncodeToString(sum[:nameBytes])
}

// New returns a chain, whose name follows from its rules, and from the families of those that nft lists without one: any address of IPv4.
func New(kind string, rules []podtable.Rule) *podtable.Chain {
	var text strings.Builder
	for i := range rules {
		fmt.Fprintln(&text, &rules[i], rules[i].IsOf(false), rules[i].IsOf(true))
	}
	return &podtable.Chain{Name: Name(kind, text.String()), Rules: rules}
}

// ClusterChain is the chain of a cluster policy. If Passes is true, its name also follows from the verdict that leads to the
// next tier.
type ClusterChain struct {
	Name   string `json:"name"`
	Passes bool   `json:"passes,omitempty"`
}

// Named returns the name of the chain with a verdict that leads to the next tier.
func (c *ClusterChain) Named(pass string) string {
	if c.Passes {
		return Name("cluster", c.Name+"\n"+pass)
	}
	return c.Name
}

// Chosen is a policy that selects a pod in a direction: its name, and the name of its chain, which is "" if it allows
// nothing.
type Chosen struct{ Name, Chain string }

// Tiers are the policies that select a pod in one direction, each tier in the order of evaluation.
type Tiers struct {
	Admin []Chosen
	// Isolating are NetworkPolicies. A pod that has one has no Baseline.
	Isolating []Chosen
	Baseline  []Chosen
}

// rest returns the chain of the tiers behind Admin, or nil if they accept everything.
func (t *Tiers) rest() *podtable.Chain {
	switch {
	case len(t.Isolating) > 0:
		return New("pods", append(Jumps(t.Isolating), Isolated()...)) // jumps first, since most packets are theirs
	case len(t.Baseline) > 0:
		return New("pods", append(Jumps(t.Baseline), podtable.Rule{Verdict: "accept"}))
	}
	return nil
}

// Isolated returns what follows the NetworkPolicies that isolate a pod.
func Isolated() []podtable.Rule {
	return []podtable.Rule{
		{Self: true, Verdict: "accept"},
		{Self: true, Peer: podtable.Peer{V6: true}, Verdict: "accept"},
		{ToNode: true, Verdict: "accept"}, // NetworkPolicies do not apply to the pod's own node
		{OfNode: true, Verdict: "accept"},
		{Verdict: podtable.Denied},
	}
}

// Jumps returns a jump to each policy that has a chain.
func Jumps(all []Chosen) (rules []podtable.Rule) {
	for _, c := range all {
		if c.Chain != "" {
			rules = append(rules, podtable.Rule{Verdict: "jump " + c.Chain, Comment: c.Name})
		}
	}
	return rules
}

// Add appends a cluster policy, and returns the verdict that leads to the next tier. Those of the tier Admin come last, because
// the verdict follows from the other tiers.
func (t *Tiers) Add(name string, admin bool, c *ClusterChain) (pass string) {
	pass, tier := "accept", &t.Baseline
	if admin {
		pass, tier = t.pass(), &t.Admin
	}
	*tier = append(*tier, Chosen{name, c.Named(pass)})
	return pass
}

// pass returns the verdict that leads from the tier Admin to the next one.
func (t *Tiers) pass() string {
	if rest := t.rest(); rest != nil {
		return "goto " + rest.Name
	}
	return "accept"
}

// PodChains returns the chains of the pods that exactly these policies select. The first is the pods' own. There is none
// without policies.
func (t *Tiers) PodChains() []*podtable.Chain {
	var chains []*podtable.Chain
	rest := t.rest()
	if rest != nil {
		chains = append(chains, rest)
	}
	if len(t.Admin) == 0 {
		return chains
	}
	own := New("pods", append(Jumps(t.Admin), podtable.Rule{Verdict: t.pass()}))
	return append([]*podtable.Chain{own}, chains...)
}
