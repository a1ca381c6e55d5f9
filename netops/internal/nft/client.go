// Package nft is the codec of nftables and its transactions: a Client makes the
// tables of a Schema when the first element is added, and works on elements.
package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Tries bounds how often a call starts again after it lost a race: tables
// flushed by somebody, an element that came or went meanwhile.
const Tries = 8

// Client works on the elements of our nftables tables (see Schema) in the
// network namespace that it is first used in. Tables, chains, sets and rules
// are made with the first element and only then; reading makes nothing.
//
// Its socket is opened on first use. Closing it after a delete waits for the
// kernel's grace period (13 ms), so that is left to close.
type Client struct {
	// restore lists the elements that recorded attachments want. They are
	// added in the same transaction as tables that had to be made anew.
	restore func(context.Context) ([]*Element, error)
	// makeSchema makes known when it is needed, which in many processes is never.
	makeSchema func() Schema
	known      Schema
	conn       *Conn
}

// New opens nothing. The schema is asked for when it is needed. A nil restore
// is one that lists nothing.
func New(schema func() Schema, restore func(context.Context) ([]*Element, error)) *Client {
	return &Client{restore: restore, makeSchema: schema}
}

// Schema is what the client may make.
func (c *Client) Schema() Schema {
	if c.known == nil {
		c.known = c.makeSchema()
	}
	return c.known
}

// Close closes the socket; the next use would open another.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return nlconn.Explain(err, "close nftables socket")
}

// Conn is the client's socket, opened on first use.
func (c *Client) Conn() (*Conn, error) {
	if c.conn == nil {
		conn, err := Open()
		if err != nil {
			return nil, err
		}
		c.conn = conn
	}
	return c.conn, nil
}

// Get reads the element with e's key: its value and label. In a set of
// prefixes an element that covers e's key stands for it, since the set matches
// all of e then; its key is the one returned. An absent table or set means not
// found. What equals e's is given in e's own words.
func (c *Client) Get(ctx context.Context, e *Element) (have *Element, found bool, err error) {
	want, err := EntryOf(c.Schema(), e)
	if err != nil {
		return nil, false, err
	}
	n, err := c.holder(ctx, want)
	if err != nil || n == nil {
		return nil, false, err
	}
	have = n.element()
	have.Shared = e.Shared
	// One value has several texts ("6", "tcp"): callers compare with their own.
	if n.sameKey(want) {
		have.Key = e.Key
	}
	if bytes.Equal(n.data, want.data) {
		have.Value = e.Value
	}
	return have, true, nil
}

// holder is the entry with want's key, or one that covers it; nil if there is none.
func (c *Client) holder(ctx context.Context, want *Entry) (*Entry, error) {
	m, err := elementMessage(unix.NFT_MSG_GETSETELEM, 0, []*Entry{want.bare()})
	if err != nil {
		return nil, err
	}
	entries, err := c.read(ctx, want.Set, m)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, nlconn.Explain(err, fmt.Sprintf("read %s", want))
	}
	// In a set of prefixes the kernel answers with any element that holds the first key.
	for _, n := range entries {
		if n.covers(want) {
			return n, nil
		}
	}
	if !want.Set.isInterval() {
		return nil, nil
	}
	entries, err = c.entries(ctx, want.Set)
	if err != nil {
		return nil, err
	}
	for _, n := range entries {
		if n.covers(want) {
			return n, nil
		}
	}
	return nil, nil
}

// List reads all elements of a set, in the kernel's order; none if it is absent.
func (c *Client) List(ctx context.Context, set string) ([]*Element, error) {
	s := c.Schema().set(set)
	if s == nil {
		return nil, fmt.Errorf("nftables set %q: %w: there is no such set", set, nlconn.ErrInvalid)
	}
	entries, err := c.entries(ctx, s)
	if err != nil {
		return nil, err
	}
	elements := make([]*Element, len(entries))
	for i, n := range entries {
		elements[i] = n.element()
	}
	return elements, nil
}

func (c *Client) entries(ctx context.Context, s *Set) ([]*Entry, error) {
	m, err := s.dumpMessage()
	if err != nil {
		return nil, err
	}
	entries, err := c.read(ctx, s, m)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return entries, nlconn.Explain(err, fmt.Sprintf("list %s", s))
}

// read sends a request for elements, again if changes interrupt the answer.
func (c *Client) read(ctx context.Context, s *Set, m nlconn.Message) ([]*Entry, error) {
	conn, err := c.Conn()
	if err != nil {
		return nil, err
	}
	var entries []*Entry
	var damaged error
	err = conn.List(ctx, m, func() { entries, damaged = nil, nil }, func(attrs []byte) {
		some, err := decodeEntries(s, attrs)
		entries, damaged = append(entries, some...), errors.Join(damaged, err)
	})
	if err != nil {
		return nil, err
	}
	return entries, damaged
}

// Add makes the elements, all or none, and on demand what they live in. An
// element that exists is fine if it is shared and has the value wanted, or has
// the same value and label (an attempt of our own, interrupted); else the error
// wraps ErrExists and names the holder. In a set of prefixes the same goes for
// an element that covers the wanted one.
func (c *Client) Add(ctx context.Context, els []*Element) error {
	wanted, err := c.wanted(els)
	if err != nil || len(wanted) == 0 {
		return err
	}
	missing := wanted
	for range Tries {
		err = c.commitEntries(ctx, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, missing)
		var failed error
		switch {
		case err == nil:
			return c.checkStored(ctx, wanted)
		case errors.Is(err, unix.ENOENT):
			missing, failed = c.makeBase(ctx, missing)
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTEMPTY):
			missing, failed = c.withoutHeld(ctx, missing)
		default:
			failed = nlconn.Explain(err, describe("add", missing))
		}
		if failed != nil {
			return failed
		}
	}
	return fmt.Errorf("%s: %w: its nftables table is being changed, or damaged (remove it with `nft delete table %s`): %w",
		describe("add", missing), nlconn.ErrBusy, wanted[0].Set.Table, err)
}

// wanted encodes els without repetitions. Two different elements of one key
// are an error.
func (c *Client) wanted(els []*Element) ([]*Entry, error) {
	byKey := map[string]*Entry{}
	var entries []*Entry
	for _, e := range els {
		n, err := EntryOf(c.Schema(), e)
		if err != nil {
			return nil, err
		}
		key := n.Set.Name + "\x00" + string(n.Key) + string(n.end)
		if other := byKey[key]; other != nil {
			if !n.allows(other) {
				return nil, fmt.Errorf("add %s: %w: asked for twice", n, nlconn.ErrExists)
			}
			continue
		}
		byKey[key] = n
		entries = append(entries, n)
	}
	// One message holds elements of one set.
	slices.SortStableFunc(entries, func(a, b *Entry) int { return compareSets(a.Set, b.Set) })
	return entries, nil
}

// withoutHeld is the entries that are still to be added, after the kernel
// IsRefused them all because some exist.
func (c *Client) withoutHeld(ctx context.Context, entries []*Entry) ([]*Entry, error) {
	var missing []*Entry
	for _, n := range entries {
		have, err := c.holder(ctx, n)
		switch {
		case err != nil:
			return nil, err
		case have != nil && !n.allows(have):
			return nil, heldError(n, have)
		case have != nil:
			continue
		}
		widened := false
		if n.Set.isInterval() {
			if widened, err = c.widen(ctx, n); err != nil {
				return nil, err
			}
		}
		if !widened {
			missing = append(missing, n)
		}
	}
	return missing, nil
}

func heldError(n, have *Entry) error {
	return fmt.Errorf("add %s: %w: %s is held by %q", n, nlconn.ErrExists, have, have.label)
}

// commitEntries makes one transaction of the entries.
func (c *Client) commitEntries(ctx context.Context, kind, flags uint16, entries []*Entry) error {
	conn, err := c.Conn()
	if err != nil {
		return err
	}
	msgs, err := ElementMessages(kind, flags, entries)
	if err != nil {
		return err
	}
	return conn.Commit(ctx, 0, msgs...)
}

// describe names the first of the entries that a call failed on.
func describe(verb string, entries []*Entry) string {
	if len(entries) == 0 {
		return verb + " nftables elements"
	}
	if len(entries) == 1 {
		return fmt.Sprintf("%s %s", verb, entries[0])
	}
	return fmt.Sprintf("%s %s and %d more", verb, entries[0], len(entries)-1)
}
