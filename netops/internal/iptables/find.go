package iptables

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Forwards reads cnibox's rules in iptables' filter tables whose label begins
// with prefix. It returns the fields that identify the rules. It does not report
// whether they are shared or complete.
func (t *Tables) Forwards(ctx context.Context, prefix string) ([]*Forward, error) {
	var all []*Forward
	for _, f := range []Forward{
		{Net: netip.MustParsePrefix("0.0.0.0/0")},
		{Net: netip.MustParsePrefix("::/0")},
		{Net: netip.MustParsePrefix("0.0.0.0/0"), Legacy: true},
		{Net: netip.MustParsePrefix("::/0"), Legacy: true},
	} {
		if f.Legacy && !IsLegacyLoaded(f.family(), "filter") {
			continue
		}
		st, err := t.Filter(f.family(), f.Legacy).Read(ctx, cniChain)
		if f.Legacy && errors.Is(err, nlconn.ErrNotSupported) {
			continue // iptables-legacy is not installed, so the table has no rules of cnibox
		}
		if err != nil {
			return nil, err
		}
		all = append(all, st.forwards(&f, prefix)...)
	}
	return all, nil
}

// forwards returns the owners of a table's rules, which the rules' comments name.
func (st *State) forwards(of *Forward, prefix string) []*Forward {
	admin := "CNI-ADMIN"
	for _, h := range st.Rules(cniChain) {
		if h.Jump != "" {
			admin = h.Target
			break
		}
	}
	seen := map[Forward]bool{}
	var all []*Forward
	for _, h := range st.Rules(cniChain) {
		f, ok := ownerOf(h.Comment)
		f.Admin, f.Legacy = admin, of.Legacy
		if !ok || f.family() != of.family() || !strings.HasPrefix(f.Label, prefix) || seen[f] || f.Validate() != nil {
			continue
		}
		seen[f] = true
		all = append(all, &f)
	}
	return all
}

// ownerOf is the inverse of Forward.comment.
func ownerOf(comment string) (f Forward, ok bool) {
	rule, label, _ := strings.Cut(comment, ": ")
	for _, what := range []string{ruleAnswers, rulePublished, ruleFrom} {
		rest, is := strings.CutPrefix(rule, "cnibox "+what+" ")
		if !is {
			continue
		}
		network, link, _ := strings.Cut(rest, " ")
		p, err := netip.ParsePrefix(network)
		return Forward{Net: p, Link: link, Label: nlconn.Printable(label)}, err == nil
	}
	return Forward{}, false
}
