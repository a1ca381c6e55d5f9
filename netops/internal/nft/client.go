// Package nft encodes and decodes nftables messages and runs nftables
// transactions. A Client adds, reads and deletes elements; it makes the tables of
// a Schema with the first element.
package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Tries limits how often a call starts again after a concurrent change: another
// program flushed the tables, or an element was added or deleted.
const Tries = 8

// Client works on the elements of cnibox's nftables tables (see Schema) in the
// network namespace of its first use. Tables, chains, sets and rules are made
// when the first element is added. Reading makes nothing.
//
// The socket is opened on first use. Closing it after a deletion waits for the
// kernel's grace period (13 ms), so only Close closes it.
type Client struct {
	// restore lists the elements of recorded attachments. They are added in the
	// same transaction as a table that must be made again.
	restore func(context.Context) ([]*Element, error)
	// makeSchema returns the schema. It is called on first use, because many
	// processes never need the schema.
	makeSchema func() Schema
	// Alone runs a function while no other process deletes elements that restore
	// returned. Restore is called within it.
	Alone func(ctx context.Context, restore func() error) error
	known Schema
	conn  *nlconn.Conn
	// Spent is that of the socket. It may be nil.
	Spent *atomic.Int64
}

// New returns a Client and opens nothing. It calls schema only when the schema is
// needed. A nil restore means that there are no recorded elements.
func New(schema func() Schema, restore func(context.Context) ([]*Element, error)) *Client {
	alone := func(_ context.Context, restore func() error) error { return restore() }
	return &Client{restore: restore, makeSchema: schema, Alone: alone}
}

// Schema returns the features that the client may make.
func (c *Client) Schema() Schema {
	if c.known == nil {
		c.known = c.makeSchema()
	}
	return c.known
}

// Get reads the value and label of the element with e's key. In a set of prefixes
// it also accepts an element that covers e's key, because the set then matches
// all of e; it returns that element's key. An absent table or set means not
// found. A key or value that equals e's is returned in e's text form.
func (c *Client) Get(ctx context.Context, e *Element) (have *Element, found bool, err error) {
	want, err := EntryOf(c.Schema(), e)
	if err != nil {
		return nil, false, err
	}
	n, err := c.Holder(ctx, want)
	if err != nil || n == nil {
		return nil, false, err
	}
	have = n.element()
	have.Shared = e.Shared
	// One value has several texts ("6", "tcp"). Callers compare the result with
	// their own text.
	if n.sameKey(want) {
		have.Key = e.Key
	}
	if bytes.Equal(n.data, want.data) {
		have.Value = e.Value
	}
	return have, true, nil
}

// Held returns those of some entries whose elements in the kernel have the same label. A transaction with an earlier generation is refused if one
// of them can be another owner's by then.
func (c *Client) Held(ctx context.Context, all []*Entry) (held []*Entry, err error) {
	for _, n := range all {
		have, err := c.Holder(ctx, n)
		if err != nil {
			return nil, err
		}
		if have != nil && have.Label() == n.Label() {
			held = append(held, have.Bare())
		}
	}
	return held, nil
}

// Holder returns the entry that has want's key or covers it, or nil.
func (c *Client) Holder(ctx context.Context, want *Entry) (*Entry, error) {
	entries, found, err := Get(ctx, c, elementMessage(unix.NFT_MSG_GETSETELEM, 0, []*Entry{want.Bare()}), func(attrs []byte) ([]*Entry, error) {
		return decodeEntries(want.Set, attrs)
	})
	if err != nil || !found {
		return nil, nlconn.Explain(err, fmt.Sprintf("read %s", want))
	}
	// In a set of prefixes the kernel answers with any element that contains the
	// first key.
	for _, n := range entries {
		if n.covers(want) {
			return n, nil
		}
	}
	if !want.Set.isInterval() {
		return nil, nil
	}
	entries, err = c.Entries(ctx, want.Set)
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

// List reads all elements of a set in the kernel's order. It returns none if the
// set is absent.
func (c *Client) List(ctx context.Context, set string) ([]*Element, error) {
	s := c.Schema().set(set)
	if s == nil {
		return nil, fmt.Errorf("nftables set %q: %w: there is no such set", set, nlconn.ErrInvalid)
	}
	return c.ListSet(ctx, s)
}

// ListSet is List for a set that may belong to another program.
func (c *Client) ListSet(ctx context.Context, s *Set) ([]*Element, error) {
	entries, err := c.Entries(ctx, s)
	if err != nil {
		return nil, err
	}
	elements := make([]*Element, len(entries))
	for i, n := range entries {
		elements[i] = n.element()
	}
	return elements, nil
}

// Entries reads all elements of a set in the kernel's form. It returns none if the set is absent.
func (c *Client) Entries(ctx context.Context, s *Set) ([]*Entry, error) {
	some, err := List(ctx, c, s.dumpMessage(), func(attrs []byte) ([]*Entry, bool, error) {
		entries, err := decodeEntries(s, attrs)
		return entries, true, err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return slices.Concat(some...), nlconn.Explain(err, fmt.Sprintf("list %s", s))
}

// Add adds the elements in one transaction, all or none. It makes the tables,
// sets and chains that they need. An existing element is accepted if the wanted
// element is shared and both have the same value, or if both have the same value
// and label, which means that an earlier try was interrupted. Otherwise the error
// wraps ErrExists and names the owner. In a set of prefixes the same rules apply
// to an existing element that covers the wanted one.
func (c *Client) Add(ctx context.Context, els []*Element) error {
	wanted, err := c.encodeAll(els)
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
			failed = c.Alone(ctx, func() (err error) {
				missing, err = c.makeBase(ctx, missing)
				return err
			})
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

// wanted encodes els and omits repetitions. Two different elements with one key
// are an error.
func (c *Client) encodeAll(els []*Element) ([]*Entry, error) {
	byKey := map[string]*Entry{}
	var entries []*Entry
	for _, e := range els {
		n, err := EntryOf(c.Schema(), e)
		if err != nil {
			return nil, err
		}
		if other := byKey[n.ID()]; other != nil {
			if !n.allows(other) {
				return nil, fmt.Errorf("add %s: %w: requested twice", n, nlconn.ErrExists)
			}
			continue
		}
		byKey[n.ID()] = n
		entries = append(entries, n)
	}
	// One message holds the elements of one set.
	sorting.Stable(entries, func(a, b *Entry) int { return compareSets(a.Set, b.Set) })
	return entries, nil
}

// withoutHeld returns the entries that must still be added after the kernel
// refused them all because some exist.
func (c *Client) withoutHeld(ctx context.Context, entries []*Entry) ([]*Entry, error) {
	var missing []*Entry
	for _, n := range entries {
		have, err := c.Holder(ctx, n)
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

// commitEntries sends the entries in one transaction.
func (c *Client) commitEntries(ctx context.Context, kind, flags uint16, entries []*Entry) error {
	return c.Commit(ctx, 0, ElementMessages(kind, flags, entries)...)
}

// describe returns the verb and the first of the entries, for an error message.
func describe(verb string, entries []*Entry) string {
	if len(entries) == 0 {
		return verb + " nftables elements"
	}
	if len(entries) == 1 {
		return fmt.Sprintf("%s %s", verb, entries[0])
	}
	return fmt.Sprintf("%s %s and %d more", verb, entries[0], len(entries)-1)
}
