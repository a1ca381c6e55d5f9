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

// FlushedSets lists the names of the sets that no rule uses any more, because another program
// flushed the table: `nft flush table` deletes all rules, and no set.
func (c *Client) FlushedSets(ctx context.Context) ([]string, error) {
	chains, err := c.flushedChains(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range c.Schema() {
		if f.isFlushed(chains) {
			for _, s := range f.Sets {
				names = append(names, s.Name)
			}
		}
	}
	return names, nil
}

// flushedChains returns the base chains without rules, each as the names of its table and of
// itself. A feature is made with its rules, in one transaction, so only another program can have
// deleted those of cnibox.
func (c *Client) flushedChains(ctx context.Context) (flushed map[[2]string]bool, err error) {
	conn, err := c.Conn()
	if err != nil {
		return nil, err
	}
	var damaged error
	reset := func() { flushed, damaged = map[[2]string]bool{}, nil }
	reset()
	m := Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC)
	err = conn.List(ctx, m, reset, func(attrs []byte) {
		var name [2]string
		isBase, used := false, false
		damaged = errors.Join(damaged, nlconn.EachAttr(attrs, func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_CHAIN_TABLE:
				name[0] = nlconn.Text(v)
			case unix.NFTA_CHAIN_NAME:
				name[1] = nlconn.Text(v)
			case unix.NFTA_CHAIN_HOOK:
				isBase = true
			case unix.NFTA_CHAIN_USE: // the number of its rules: no rule can jump to a base chain
				used = nlconn.Net32(v) > 0
			}
			return nil
		}))
		if isBase && !used {
			flushed[name] = true
		}
	})
	return flushed, errors.Join(err, damaged)
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
	flushed, err := c.flushedChains(ctx)
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
			have, err := c.entries(ctx, s)
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
