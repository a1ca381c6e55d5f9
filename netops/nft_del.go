package netops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// del deletes the elements; what is absent, table and all, is success. An
// element that only covers the wanted one stays. It goes on after an error.
func (c *nft) del(ctx context.Context, els []*Element) error {
	var plain, prefixes []*entry
	for _, e := range els {
		n, err := entryOf(c.sets, &Element{Set: e.Set, Key: e.Key, Value: e.Value})
		if err != nil {
			return err
		}
		if n.set.isInterval() {
			prefixes = append(prefixes, n)
		} else {
			plain = append(plain, n.bare())
		}
	}
	slices.SortStableFunc(plain, func(a, b *entry) int { return compareSets(a.set, b.set) })
	err := c.delPlain(ctx, plain)
	for _, n := range prefixes {
		err = errors.Join(err, c.delPrefix(ctx, n))
	}
	return err
}

// delPlain deletes in one transaction, which one absent element makes fail;
// then one by one.
func (c *nft) delPlain(ctx context.Context, entries []*entry) error {
	if len(entries) == 0 {
		return nil
	}
	err := c.commitEntries(ctx, unix.NFT_MSG_DELSETELEM, 0, entries)
	if !errors.Is(err, unix.ENOENT) {
		return kernelError(err, describe("delete", entries))
	}
	if len(entries) == 1 {
		return nil
	}
	var failed error
	for _, n := range entries {
		err := c.commitEntries(ctx, unix.NFT_MSG_DELSETELEM, 0, []*entry{n})
		if !errors.Is(err, unix.ENOENT) {
			failed = errors.Join(failed, kernelError(err, fmt.Sprintf("delete %s", n)))
		}
	}
	return failed
}

// delPrefix deletes exactly n. The kernel looks at the first key only and
// takes any element that holds it, so those that do are deleted together, and
// all but n made again in the same transaction.
func (c *nft) delPrefix(ctx context.Context, n *entry) error {
	for range nftTries {
		entries, err := c.entries(ctx, n.set)
		if err != nil {
			return err
		}
		first := &entry{set: n.set, key: n.key}
		keep := slices.DeleteFunc(entries, func(o *entry) bool { return !o.covers(first) })
		i := slices.IndexFunc(keep, n.sameKey)
		if i < 0 {
			return nil
		}
		keep = slices.Delete(keep, i, i+1)
		err = c.replace(ctx, n, keep)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			return kernelError(err, fmt.Sprintf("delete %s", n))
		}
	}
	return fmt.Errorf("delete %s: %w: its nftables table is being changed", n, ErrBusy)
}

// replace deletes n and the elements that also hold its first key, and makes
// the latter again.
func (c *nft) replace(ctx context.Context, n *entry, keep []*entry) error {
	conn, err := c.open()
	if err != nil {
		return err
	}
	var msgs []nftMessage
	for range len(keep) + 1 {
		m, err := elementMessage(unix.NFT_MSG_DELSETELEM, 0, []*entry{n.bare()})
		if err != nil {
			return err
		}
		msgs = append(msgs, m)
	}
	again, err := elementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, keep)
	if err != nil {
		return err
	}
	return conn.commit(ctx, 0, append(msgs, again...)...)
}
