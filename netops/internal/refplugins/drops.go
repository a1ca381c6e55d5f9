package refplugins

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// DropRule is a rule that drops all forwarded packets of some addresses or devices.
type DropRule struct {
	// Chain is "inet filter forward". Handle identifies the rule in it.
	Chain  string
	Handle uint64
	// Source and Destination are the zero Prefix for any address.
	Source, Destination netip.Prefix
	// In and Out are "" for any device. "veth*" are all devices with this prefix.
	In, Out string
}

// String returns the rule's conditions.
func (d *DropRule) String() string {
	var w []string
	for _, c := range [][2]string{{"from", prefixText(d.Source)}, {"to", prefixText(d.Destination)}, {"in", d.In}, {"out", d.Out}} {
		if c[1] != "" {
			w = append(w, c[0], c[1])
		}
	}
	return d.Chain + ": " + strings.Join(append(w, "drop"), " ")
}

// IsRefusal reports whether the rule drops everything in iptables' FORWARD chain, like the chain's policy DROP.
func (d *DropRule) IsRefusal() bool {
	return d.IsAlways() && strings.HasSuffix(d.Chain, " filter "+iptables.ForwardChain)
}

// IsAlways reports whether the rule has no conditions.
func (d *DropRule) IsAlways() bool {
	return !d.Source.IsValid() && !d.Destination.IsValid() && d.In == "" && d.Out == ""
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// DropRules lists the rules of other programs that drop forwarded packets: in the nftables
// chains on the forward hook, and in those to which these jump. It leaves out rules with
// conditions other than addresses and devices.
func (n *Leftovers) DropRules(ctx context.Context) ([]DropRule, error) {
	chains, err := (&iptables.Tables{NFT: n.NFT}).ForwardChains(ctx)
	if err != nil {
		return nil, err
	}
	var all []DropRule
	for i := 0; i < len(chains); i++ {
		c := chains[i]
		if c.Table == n.Own {
			continue
		}
		rules, err := readRules(ctx, n.NFT, c.Table, c.Name)
		if err != nil {
			return nil, nlconn.Explain(err, "list nftables rules")
		}
		for _, r := range rules {
			jumped := iptables.BaseChain{Table: c.Table, Name: r.jump}
			known := slices.ContainsFunc(chains, func(k iptables.BaseChain) bool { return k.Table == jumped.Table && k.Name == jumped.Name })
			if r.jump != "" && !known {
				chains = append(chains, jumped)
			}
			if r.drops() {
				all = append(all, DropRule{c.String(), r.Handle, r.source, r.destination, r.in, r.out})
			}
		}
	}
	return all, nil
}

// drops reports whether the rule drops or rejects every packet of its addresses and devices.
func (r *rule) drops() bool {
	last := len(r.shape) - 1
	if last < 0 || r.narrow || r.Verdict != "drop" && !r.rejects && r.shape[last] != "reject" {
		return false
	}
	for _, name := range r.shape[:last] {
		if !slices.Contains([]string{"payload", "meta", "bitwise", "cmp", "comment", "log"}, name) {
			return false
		}
	}
	return true
}
