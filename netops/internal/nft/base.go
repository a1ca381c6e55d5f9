package nft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// makeBase makes the features that the missing entries and the elements of
// recorded attachments need. It makes each feature in one transaction with its
// entries, so a table never exists without them. If several processes make a
// feature at once, one succeeds; for the others it exists already, which is not
// an error. makeBase returns the missing entries that must still be added. The caller is
// alone, and may have waited for another process that made the features.
func (c *Client) makeBase(ctx context.Context, missing []*Entry) ([]*Entry, error) {
	err := c.commitEntries(ctx, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, missing)
	switch {
	case err == nil:
		return nil, nil
	case !errors.Is(err, unix.ENOENT):
		return missing, nil
	}
	restored, err := c.restored(ctx)
	if err != nil {
		return nil, err
	}
	var left []*Entry
	for _, f := range c.Schema() {
		own, asked := f.entries(restored), f.entries(missing)
		if len(own)+len(asked) == 0 {
			continue
		}
		made, err := c.makeFeature(ctx, &f, own, asked)
		if err != nil {
			return nil, err
		}
		if !made {
			left = append(left, asked...)
		}
	}
	return left, nil
}

// restored returns the entries of recorded attachments, each key once. It omits
// an element that this version cannot encode: another version recorded it.
func (c *Client) restored(ctx context.Context) ([]*Entry, error) {
	if c.restore == nil {
		return nil, nil
	}
	els, err := c.restore(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the nftables elements of recorded attachments: %w", err)
	}
	seen := map[string]bool{}
	var entries []*Entry
	for _, e := range els {
		n, err := EntryOf(c.Schema(), e)
		if err != nil {
			continue
		}
		if !seen[n.ID()] {
			seen[n.ID()] = true
			entries = append(entries, n)
		}
	}
	sorting.Stable(entries, func(a, b *Entry) int { return compareSets(a.Set, b.Set) })
	return entries, nil
}

// makeFeature makes f with the restored and the asked entries in one transaction.
// If the kernel refuses the transaction, made is false: then f exists with the
// restored entries that the kernel accepts, and without the asked entries.
func (c *Client) makeFeature(ctx context.Context, f *Feature, restored, asked []*Entry) (made bool, err error) {
	base := f.Messages()
	// Do not add an asked entry that is already recorded, for example in this
	// attachment's own pending record.
	asked = slices.DeleteFunc(slices.Clone(asked), func(n *Entry) bool {
		return slices.ContainsFunc(restored, func(r *Entry) bool {
			return r.Set == n.Set && r.covers(n) && n.allows(r)
		})
	})
	chains := f.ondemand(slices.Concat(restored, asked))
	elements := f.chainMessages(chains)
	for _, entries := range [][]*Entry{restored, asked} {
		elements = append(elements, ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, entries)...)
	}
	err = c.Commit(ctx, 0, slices.Concat(base, elements)...)
	if err == nil {
		return true, nil
	}
	if IsRefused(err) {
		// Either f exists already, or the entries conflict: owners overlap, or a
		// chain is unknown.
		err = c.makeEmptyFeature(ctx, f, base, chains, restored)
	}
	return false, nlconn.Explain(err, fmt.Sprintf("make nftables table %s", f.Table))
}

// makeEmptyFeature makes a feature unless it exists, and renews one of an older
// version. Then it adds the chains and the restored entries.
func (c *Client) makeEmptyFeature(ctx context.Context, f *Feature, base []nlconn.Message, chains []Chain, restored []*Entry) error {
	err := c.Commit(ctx, 0, base...)
	if IsRefused(err) {
		_, err = c.renewFlushed(ctx, f)
	}
	if err != nil {
		return err
	}
	if err := c.makeOndemand(ctx, f, chains); err != nil {
		return err
	}
	return c.commitOrEach(ctx, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, restored, IsRefused, "add")
}

// IsRefused reports whether the kernel refused a request because an object exists
// or is absent.
func IsRefused(err error) bool { return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) }

// RemoveBase deletes cnibox's tables that have no elements, including the tables
// that another version made.
func (c *Client) RemoveBase(ctx context.Context) error {
	var failed error
	for i, f := range c.Schema() {
		known := slices.ContainsFunc(c.Schema()[:i], func(o Feature) bool { return o.Table == f.Table })
		if !known {
			failed = errors.Join(failed, nlconn.Explain(c.removeTable(ctx, f.Table), fmt.Sprintf("remove nftables table %s", f.Table)))
		}
	}
	return failed
}

// removeTable deletes t if it has no elements.
func (c *Client) removeTable(ctx context.Context, t Table) error {
	return c.Unchanged(ctx, func(generation uint32) error {
		if generation == 0 { // without nftables
			return nil
		}
		empty, err := c.IsEmpty(ctx, t)
		if err != nil || !empty {
			return err
		}
		err = c.Commit(ctx, generation, t.Message(unix.NFT_MSG_DELTABLE, 0))
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
}

// IsEmpty reports whether all sets of t are empty. If the table is changed meanwhile, the answer
// may be wrong.
func (c *Client) IsEmpty(ctx context.Context, t Table) (bool, error) {
	sets, err := c.setsOf(ctx, t)
	if err != nil {
		return false, err
	}
	for _, s := range sets {
		elements, err := Elements(ctx, c, t, s)
		if err != nil && !errors.Is(err, unix.ENOENT) || len(elements) > 0 {
			return false, err
		}
	}
	return true, nil
}

// setsOf lists the names of t's sets.
func (c *Client) setsOf(ctx context.Context, t Table) ([]string, error) {
	m := Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.Family)
	m.Text(unix.NFTA_SET_TABLE, t.Name)
	sets, err := List(ctx, c, m, func(attrs []byte) (string, bool, error) {
		name, err := nlconn.Find(attrs, unix.NFTA_SET_NAME)
		return nlconn.Text(name), true, err
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return sets, err
}

// entries returns the entries of all that belong to f's sets.
func (f *Feature) entries(all []*Entry) []*Entry {
	var own []*Entry
	for _, n := range all {
		if slices.Contains(f.Sets, n.Set) {
			own = append(own, n)
		}
	}
	return own
}

// compareSets orders sets by table and name.
func compareSets(a, b *Set) int {
	return cmp.Or(cmp.Compare(a.Table.Family, b.Table.Family), cmp.Compare(a.Name, b.Name))
}
