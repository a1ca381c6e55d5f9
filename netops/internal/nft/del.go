package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Del deletes the elements. An absent element, set or table is not an error. An
// element that only covers a wanted one stays. A failed deletion does not stop
// the other deletions.
func (c *Client) Del(ctx context.Context, els []*Element) error {
	var plain []*Entry
	prefixes := map[*Set][]*Entry{}
	for _, e := range els {
		if f := c.Schema().former(e.Set); f != nil {
			if _, err := c.renewOutdated(ctx, f); err != nil {
				return err
			}
		}
		n, err := EntryOf(c.Schema(), &Element{Set: e.Set, Key: e.Key, Value: e.Value})
		if err != nil {
			return err
		}
		if n.Set.isInterval() {
			prefixes[n.Set] = append(prefixes[n.Set], n)
		} else {
			plain = append(plain, n.Bare())
		}
	}
	sorting.Stable(plain, func(a, b *Entry) int { return compareSets(a.Set, b.Set) })
	err := c.delPlain(ctx, plain)
	for _, of := range prefixes {
		err = errors.Join(err, c.delPrefixes(ctx, of))
	}
	return err
}

// delPlain deletes the entries in one transaction. If one of them is absent, the
// kernel refuses the transaction, and delPlain deletes the entries one by one.
func (c *Client) delPlain(ctx context.Context, entries []*Entry) error {
	if len(entries) == 0 {
		return nil
	}
	err := c.commitEntries(ctx, unix.NFT_MSG_DELSETELEM, 0, entries)
	if err == nil || errors.Is(err, unix.ENOENT) && len(entries) == 1 {
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return nlconn.Explain(err, describe("delete", entries))
	}
	var failed error
	for _, n := range entries {
		err := c.commitEntries(ctx, unix.NFT_MSG_DELSETELEM, 0, []*Entry{n})
		if !errors.Is(err, unix.ENOENT) {
			failed = errors.Join(failed, nlconn.Explain(err, fmt.Sprintf("delete %s", n)))
		}
	}
	return failed
}
