package nft

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// LostSets lists the names of all sets whose table does not exist. It lists none if the inet
// table exists: most nodes never need the bridge table, and every name makes the caller
// search all records.
func (c *Client) LostSets(ctx context.Context) ([]string, error) {
	lost := map[Table]bool{}
	var names []string
	for _, s := range c.Schema().Sets() {
		if _, known := lost[s.Table]; !known {
			there, err := c.Exists(ctx, s.Table.Message(unix.NFT_MSG_GETTABLE, 0))
			if err != nil || there && s.Table.Family == unix.NFPROTO_INET {
				return nil, err
			}
			lost[s.Table] = !there
		}
		if lost[s.Table] {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// Flushed reports which sets no rule uses any more, because another program flushed the table: `nft
// flush table` deletes all rules, and no set. The result
// has the sets of the feature with the named one, or of all features if the name is empty.
func (c *Client) Flushed(ctx context.Context, set string) (map[string]bool, error) {
	flushed := map[string]bool{}
	for _, f := range c.Schema() {
		if set != "" && !slices.ContainsFunc(f.Sets, func(s *Set) bool { return s.Name == set }) {
			continue
		}
		is, err := c.isFlushed(ctx, &f)
		if err != nil {
			return nil, err
		}
		for _, s := range f.Sets {
			flushed[s.Name] = is
		}
	}
	return flushed, nil
}

// isFlushed reports whether the feature is in the kernel without all its rules, because another program
// flushed its table: a feature is made with its rules, in one transaction. It does not read the chains of other programs: kube-proxy has thousands.
func (c *Client) isFlushed(ctx context.Context, f *Feature) (flushed bool, err error) {
	for _, ch := range f.Chains() {
		if ch.Kind == "" { // other chains and elements jump to it
			continue
		}
		have, err := c.Chain(ctx, f.Table, ch.Name)
		if err != nil {
			return false, err
		}
		if have != nil && have.Uses == 0 { // no rule can jump to a base chain
			flushed = true
		}
	}
	return flushed, nil
}

// renewFlushed is renew for a feature that isFlushed.
func (c *Client) renewFlushed(ctx context.Context, f *Feature) (elements int, err error) {
	if is, err := c.isFlushed(ctx, f); err != nil || !is {
		return 0, err
	}
	err = c.Unchanged(ctx, func(generation uint32) error {
		is, err := c.isFlushed(ctx, f) // still, or another program may have deleted the table
		if err == nil && is {
			elements, err = c.renew(ctx, f, generation)
		}
		return err
	})
	return elements, nlconn.Explain(err, fmt.Sprintf("make the rules of nftables table %s", f.Table))
}

// renew makes the rules of the feature's chains again, also of those to which elements refer, and the
// sets that the table lacks. It returns the number of elements. If an nftables object changed since generation, the error is ERESTART.
func (c *Client) renew(ctx context.Context, f *Feature, generation uint32) (elements int, err error) {
	names, err := c.setsOf(ctx, f.Table)
	if err != nil {
		return 0, err
	}
	var present []*Entry
	var sets []nlconn.Message
	for i, s := range f.Sets {
		if !slices.Contains(names, s.Name) {
			sets = append(sets, s.message(uint32(i+1)))
			continue
		}
		have, err := c.Entries(ctx, s)
		if err != nil {
			return 0, err
		}
		present = append(present, have...)
	}
	chains := slices.Concat(f.Chains(), f.ondemand(present))
	msgs := sets
	for _, ch := range chains {
		msgs = append(msgs, f.Table.RuleMessage(unix.NFT_MSG_DELRULE, 0, ch.Name))
	}
	return len(present), c.Commit(ctx, generation, append(msgs, f.ruleMessages(chains)...)...)
}

// Restore adds the absent elements of recorded attachments, with the tables that they
// need, and the rules of flushed chains. It returns the number of elements that were without effect. The
// caller is alone.
func (c *Client) Restore(ctx context.Context) (int, error) {
	recorded, err := c.restored(ctx)
	if err != nil {
		return 0, err
	}
	restored := 0
	for _, f := range c.Schema() {
		renewed, err := c.renewFlushed(ctx, &f)
		if err != nil {
			return restored, err
		}
		restored += renewed
		var absent []*Entry
		for _, s := range f.Sets {
			lacking, err := c.lacking(ctx, ofSet(recorded, s))
			if err != nil {
				return restored, err
			}
			absent = append(absent, lacking...)
		}
		if len(absent) == 0 {
			continue
		}
		if _, err := c.makeFeature(ctx, &f, absent, nil); err != nil {
			return restored, err
		}
		restored += len(absent)
	}
	return restored, nil
}
