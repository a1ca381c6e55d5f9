package nft

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
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

// Restore adds the absent elements of recorded attachments, with the tables that they
// need, and returns their number.
func (c *Client) Restore(ctx context.Context) (int, error) {
	recorded, err := c.restored(ctx)
	if err != nil {
		return 0, err
	}
	restored := 0
	for _, f := range c.Schema() {
		var absent []*Entry
		for _, s := range f.Sets {
			wanted := slices.DeleteFunc(slices.Clone(recorded), func(n *Entry) bool { return n.Set != s })
			if len(wanted) == 0 {
				continue
			}
			have, err := c.entries(ctx, s)
			if err != nil {
				return restored, err
			}
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
