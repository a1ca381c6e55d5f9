package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// LostSets lists the names of all sets whose table does not exist. It lists none if the inet
// table exists: most nodes never need the bridge table, and every name makes the caller
// search all records.
func (c *Client) LostSets(ctx context.Context) ([]string, error) {
	conn, err := c.Conn()
	if err != nil {
		return nil, err
	}
	lost := map[Table]bool{}
	var names []string
	for _, s := range c.Schema().Sets() {
		if _, known := lost[s.Table]; !known {
			err := conn.Get(ctx, s.Table.Message(unix.NFT_MSG_GETTABLE, 0), func([]byte) {})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, err
			}
			if err == nil && s.Table.Family == unix.NFPROTO_INET {
				return nil, nil
			}
			lost[s.Table] = err != nil
		}
		if lost[s.Table] {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// Flushed reports which sets no rule uses any more, because another program flushed the table: `nft
// flush table` deletes all rules, and no set. It has the sets of the feature with the named one, or of
// all features if the name is empty.
func (c *Client) Flushed(ctx context.Context, set string) (map[string]bool, error) {
	features := c.Schema()
	if set != "" {
		features = slices.DeleteFunc(slices.Clone(features), func(f Feature) bool { return Schema{f}.set(set) == nil })
	}
	chains, err := c.flushedChains(ctx, features)
	if err != nil {
		return nil, err
	}
	flushed := map[string]bool{}
	for _, f := range features {
		for _, s := range f.Sets {
			flushed[s.Name] = f.isFlushed(chains)
		}
	}
	return flushed, nil
}

// flushedChains returns the base chains without rules of features, each as the names of its table
// and of itself. A feature is made with its rules, in one transaction, so only another program can
// have deleted those of cnibox. It does not read the chains of other programs: kube-proxy has
// thousands.
func (c *Client) flushedChains(ctx context.Context, features Schema) (flushed map[[2]string]bool, err error) {
	conn, err := c.Conn()
	if err != nil {
		return nil, err
	}
	flushed = map[[2]string]bool{}
	for _, f := range features {
		for _, ch := range f.Chains() {
			if ch.Kind == "" { // other chains and elements jump to it
				continue
			}
			var damaged error
			err := conn.Get(ctx, f.Table.ChainMessage(unix.NFT_MSG_GETCHAIN, 0, ch.Name), func(attrs []byte) {
				var rules []byte
				rules, damaged = nlconn.Find(attrs, unix.NFTA_CHAIN_USE) // no rule can jump to a base chain
				if nlconn.Net32(rules) == 0 {
					flushed[[2]string{f.Table.Name, ch.Name}] = true
				}
			})
			if err = errors.Join(err, damaged); err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, err
			}
		}
	}
	return flushed, nil
}

// isFlushed reports whether one of the feature's chains is among chains.
func (f *Feature) isFlushed(chains map[[2]string]bool) bool {
	return len(chains) > 0 && slices.ContainsFunc(f.Chains(), func(ch Chain) bool { return chains[[2]string{f.Table.Name, ch.Name}] })
}

// refill makes the rules of the feature's chains again, also of those to which elements refer.
func (c *Client) refill(ctx context.Context, f *Feature, elements []*Entry) error {
	chains := slices.Concat(f.Chains(), f.ondemand(elements))
	rules, err := f.ruleMessages(chains)
	if err != nil {
		return err
	}
	var msgs []nlconn.Message
	for _, ch := range chains {
		msgs = append(msgs, f.Table.RuleMessage(unix.NFT_MSG_DELRULE, 0, ch.Name))
	}
	err = c.conn.Commit(ctx, 0, append(msgs, rules...)...)
	return nlconn.Explain(err, fmt.Sprintf("make the rules of nftables table %s", f.Table))
}

// Restore adds the absent elements of recorded attachments, with the tables that they
// need, and the rules of flushed chains. It returns the number of elements that were without effect. The
// caller is alone.
func (c *Client) Restore(ctx context.Context) (int, error) {
	recorded, err := c.restored(ctx)
	if err != nil {
		return 0, err
	}
	flushed, err := c.flushedChains(ctx, c.Schema())
	if err != nil {
		return 0, err
	}
	restored := 0
	for _, f := range c.Schema() {
		var absent, present []*Entry
		for _, s := range f.Sets {
			wanted := slices.DeleteFunc(slices.Clone(recorded), func(n *Entry) bool { return n.Set != s })
			if len(wanted) == 0 {
				continue
			}
			have, err := c.Entries(ctx, s)
			if err != nil {
				return restored, err
			}
			present = append(present, have...)
			known, intervals := map[string]bool{}, []*Entry(nil)
			for _, n := range have {
				known[string(n.Key)+string(n.end)] = true
				if s.isInterval() {
					intervals = append(intervals, n)
				}
			}
			for _, n := range wanted {
				covers := func(o *Entry) bool { return o.covers(n) }
				if !known[string(n.Key)+string(n.end)] && !slices.ContainsFunc(intervals, covers) {
					absent = append(absent, n)
				}
			}
		}
		if len(present) > 0 && f.isFlushed(flushed) {
			if err := c.refill(ctx, &f, present); err != nil {
				return restored, err
			}
			restored += len(present)
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
