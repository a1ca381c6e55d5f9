package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The kernel stores a set of prefixes in its pipapo set type. Pipapo accepts a
// new prefix that contains an existing one, unless both have the same first or
// the same last address. It refuses a new prefix within an existing one. It reads
// and deletes by the first address only, and uses any element that contains that
// address.

// widen adds n if elements within n prevent a plain addition. It deletes them in
// the same transaction, because n matches everything that they match. It fails if
// such elements exist and n is not shared or is an element of a map. done is
// false if there are no such elements (any more) or if they are changing.
func (c *Client) widen(ctx context.Context, n *Entry) (done bool, err error) {
	entries, err := c.Entries(ctx, n.Set)
	if err != nil {
		return false, err
	}
	first, last := &Entry{Set: n.Set, Key: n.Key}, &Entry{Set: n.Set, Key: n.last()}
	entries = slices.DeleteFunc(entries, func(o *Entry) bool { return !o.covers(first) && !o.covers(last) })
	if len(entries) == 0 {
		return false, nil
	}
	var msgs []nlconn.Message
	for _, o := range entries {
		if !n.shared || n.data != nil || !n.covers(o) {
			return false, heldError(n, o)
		}
		msgs = append(msgs, elementMessage(unix.NFT_MSG_DELSETELEM, 0, []*Entry{o.Bare()}))
	}
	msgs = append(msgs, elementMessage(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, []*Entry{n}))
	err = c.Commit(ctx, 0, msgs...)
	if IsRefused(err) {
		return false, nil
	}
	return err == nil, nlconn.Explain(err, fmt.Sprintf("add %s", n))
}

// delPrefixes deletes exactly the wanted entries of one set. It deletes the
// entries whose first key is in no other element in one transaction, because the
// kernel copies the whole set for each commit.
func (c *Client) delPrefixes(ctx context.Context, wanted []*Entry) error {
	for range Tries {
		entries, err := c.Entries(ctx, wanted[0].Set)
		if err != nil {
			return err
		}
		alone, others := split(entries, wanted)
		if len(alone) > 1 {
			err = c.commitEntries(ctx, unix.NFT_MSG_DELSETELEM, 0, alone)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return nlconn.Explain(err, describe("delete", alone))
			}
			alone = nil
		}
		for _, n := range append(alone, others...) {
			err = errors.Join(err, c.delPrefix(ctx, n))
		}
		return err
	}
	return fmt.Errorf("%s: %w: its nftables table is being changed", describe("delete", wanted), nlconn.ErrBusy)
}

// split divides the wanted entries of a set. alone has the entries whose first
// key is in no other entry; others has the rest. An entry that covers a key
// begins at or before it in key order, so a walk in that order keeps only a few
// entries open.
func split(entries, wanted []*Entry) (alone, others []*Entry) {
	want := map[string]bool{}
	for _, n := range wanted {
		want[string(n.Key)+string(n.last())] = true
	}
	entries = sorting.Sorted(entries, func(a, b *Entry) int { return bytes.Compare(a.Key, b.Key) })
	var open []*Entry
	for i, n := range entries {
		open = slices.DeleteFunc(open, func(o *Entry) bool { return bytes.Compare(o.last(), n.Key) < 0 })
		open = append(open, n)
		if !want[string(n.Key)+string(n.last())] {
			continue
		}
		first := &Entry{Set: n.Set, Key: n.Key}
		holds := func(o *Entry) bool { return o != n && o.covers(first) }
		next := i+1 < len(entries) && bytes.Equal(entries[i+1].Key, n.Key)
		if next || slices.ContainsFunc(open, holds) {
			others = append(others, n)
		} else {
			alone = append(alone, n.Bare())
		}
	}
	return alone, others
}

// delPrefix deletes exactly n. The kernel deletes any element that contains n's
// first key. Therefore delPrefix deletes all such elements and adds all except n
// again in the same transaction.
func (c *Client) delPrefix(ctx context.Context, n *Entry) error {
	for range Tries {
		entries, err := c.Entries(ctx, n.Set)
		if err != nil {
			return err
		}
		first := &Entry{Set: n.Set, Key: n.Key}
		keep := slices.DeleteFunc(entries, func(o *Entry) bool { return !o.covers(first) })
		i := slices.IndexFunc(keep, n.sameKey)
		if i < 0 {
			return nil
		}
		keep = slices.Delete(keep, i, i+1)
		err = c.replace(ctx, n, keep)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			return nlconn.Explain(err, fmt.Sprintf("delete %s", n))
		}
	}
	return fmt.Errorf("delete %s: %w: its nftables table is being changed", n, nlconn.ErrBusy)
}

// replace deletes n and the elements in keep, which also contain n's first key.
// Then it adds keep again.
func (c *Client) replace(ctx context.Context, n *Entry, keep []*Entry) error {
	var msgs []nlconn.Message
	for range len(keep) + 1 {
		msgs = append(msgs, elementMessage(unix.NFT_MSG_DELSETELEM, 0, []*Entry{n.Bare()}))
	}
	msgs = append(msgs, ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, keep)...)
	return c.Commit(ctx, 0, msgs...)
}
