package netops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// makeBase makes the features that the missing entries need and whatever else
// restored elements need, each in one transaction with its restored and missing
// entries: there is no moment at which the tables exist without them. Of many
// processes one makes a feature; the others find it made, which is success. It
// gives those of missing that are still to be added.
func (c *nft) makeBase(ctx context.Context, missing []*entry) ([]*entry, error) {
	restored, err := c.restored(ctx)
	if err != nil {
		return nil, err
	}
	var left []*entry
	for _, f := range c.schema() {
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

// restored is what recorded attachments want, each key once. An element that
// this version cannot encode is left out: another version recorded it.
func (c *nft) restored(ctx context.Context) ([]*entry, error) {
	if c.restore == nil {
		return nil, nil
	}
	els, err := c.restore(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the nftables elements of recorded attachments: %w", err)
	}
	seen := map[string]bool{}
	var entries []*entry
	for _, e := range els {
		n, err := entryOf(c.schema(), e)
		if err != nil {
			continue
		}
		if key := n.set.name + "\x00" + string(n.key) + string(n.end); !seen[key] {
			seen[key] = true
			entries = append(entries, n)
		}
	}
	slices.SortStableFunc(entries, func(a, b *entry) int { return compareSets(a.set, b.set) })
	return entries, nil
}

// makeFeature makes f with the restored and the asked entries. If that is not
// possible as a whole, made is false: then f exists, with what of restored
// goes into it and none of asked.
func (c *nft) makeFeature(ctx context.Context, f *nftFeature, restored, asked []*entry) (made bool, err error) {
	conn, err := c.open()
	if err != nil {
		return false, err
	}
	base, err := f.messages()
	if err != nil {
		return false, err
	}
	// What is recorded already, our own pending attachment's for one, is not asked for twice.
	asked = slices.DeleteFunc(slices.Clone(asked), func(n *entry) bool {
		return slices.ContainsFunc(restored, func(r *entry) bool {
			return r.set == n.set && r.covers(n) && n.allows(r)
		})
	})
	chains := f.ondemand(slices.Concat(restored, asked))
	elements, err := f.chainMessages(chains)
	if err != nil {
		return false, err
	}
	for _, entries := range [][]*entry{restored, asked} {
		m, err := elementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, entries)
		if err != nil {
			return false, err
		}
		elements = append(elements, m...)
	}
	err = conn.commit(ctx, 0, slices.Concat(base, elements)...)
	if err == nil {
		return true, nil
	}
	if refused(err) {
		// Either f exists, or entries do not go together: owners overlap, a chain is unknown.
		err = c.makeBare(ctx, f, base, chains, restored)
	}
	return false, nlconn.Explain(err, fmt.Sprintf("make nftables table %s", f.table))
}

// makeBare makes a feature, unless it exists, and adds chains and restored
// entries after that.
func (c *nft) makeBare(ctx context.Context, f *nftFeature, base []nlconn.Message, chains []nftChain, restored []*entry) error {
	err := c.conn.commit(ctx, 0, base...)
	if err != nil && !refused(err) {
		return err
	}
	if err := c.makeOndemand(ctx, f, chains); err != nil {
		return err
	}
	return c.addWhatFits(ctx, restored)
}

// addWhatFits adds entries, and where one of them is refused, all others.
func (c *nft) addWhatFits(ctx context.Context, entries []*entry) error {
	if len(entries) == 0 {
		return nil
	}
	err := c.commitEntries(ctx, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, entries)
	if !refused(err) {
		return err
	}
	for _, n := range entries {
		err := c.commitEntries(ctx, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, []*entry{n})
		if err != nil && !refused(err) {
			return err
		}
	}
	return nil
}

// refused tells whether something that exists, or is absent, stood in the way.
func refused(err error) bool { return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) }

// removeBase deletes those of our tables that hold no element any more, those
// of other versions included.
func (c *nft) removeBase(ctx context.Context) error {
	var failed error
	for i, f := range c.schema() {
		known := slices.ContainsFunc(c.schema()[:i], func(o nftFeature) bool { return o.table == f.table })
		if !known {
			failed = errors.Join(failed, nlconn.Explain(c.removeTable(ctx, f.table), fmt.Sprintf("remove nftables table %s", f.table)))
		}
	}
	return failed
}

// removeTable deletes t if it is empty.
func (c *nft) removeTable(ctx context.Context, t nftTable) error {
	conn, err := c.open()
	if err != nil {
		return err
	}
	for range nftTries {
		generation, err := conn.generation(ctx)
		if err != nil {
			return err
		}
		empty, err := c.isEmpty(ctx, t)
		if err != nil || !empty {
			return err
		}
		removed, err := c.removeUnchanged(ctx, t, generation)
		if err != nil || removed {
			return err
		}
	}
	return fmt.Errorf("%w: nftables is being changed", ErrBusy)
}

// removeUnchanged deletes t, if present, and nothing if anything in nftables
// has changed since generation.
func (c *nft) removeUnchanged(ctx context.Context, t nftTable, generation uint32) (bool, error) {
	m, err := t.message(unix.NFT_MSG_DELTABLE, 0)
	if err != nil {
		return false, err
	}
	err = c.conn.commit(ctx, generation, m)
	if errors.Is(err, unix.ERESTART) {
		return false, nil
	}
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return err == nil, err
}

// isEmpty tells whether no set of t has an element.
func (c *nft) isEmpty(ctx context.Context, t nftTable) (bool, error) {
	sets, err := c.setsOf(ctx, t)
	if err != nil {
		return false, err
	}
	for _, name := range sets {
		s := &nftSet{table: t, name: name}
		m, err := s.dumpMessage()
		if err != nil {
			return false, err
		}
		n := 0
		err = c.conn.query(ctx, m, func(attrs []byte) { n += countElements(attrs) })
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, nlconn.ErrInterrupted):
			// Changed meanwhile: the deletion will be refused.
		case err != nil:
			return false, err
		}
		if n > 0 {
			return false, nil
		}
	}
	return true, nil
}

// countElements is how many elements one message of a dump holds, at least 1
// if it cannot be read.
func countElements(attrs []byte) int {
	n := 0
	err := eachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return eachAttr(ad.Bytes(), func(*netlink.AttributeDecoder) error {
			n++
			return nil
		})
	})
	if err != nil {
		return n + 1
	}
	return n
}

// setsOf lists the names of t's sets.
func (c *nft) setsOf(ctx context.Context, t nftTable) ([]string, error) {
	m, err := message(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.family, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.NFTA_SET_TABLE, t.name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var names []string
	var damaged error
	err = c.conn.query(ctx, m, func(attrs []byte) {
		damaged = errors.Join(damaged, eachAttr(attrs, func(ad *netlink.AttributeDecoder) error {
			if ad.Type() == unix.NFTA_SET_NAME {
				names = append(names, ad.String())
			}
			return nil
		}))
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, nlconn.ErrInterrupted) {
		return names, damaged
	}
	return names, errors.Join(err, damaged)
}

// entries are those that belong to f's sets.
func (f *nftFeature) entries(all []*entry) []*entry {
	var own []*entry
	for _, n := range all {
		if slices.Contains(f.sets, n.set) {
			own = append(own, n)
		}
	}
	return own
}

// compareSets orders sets by table and name.
func compareSets(a, b *nftSet) int {
	return cmp.Or(cmp.Compare(a.table.family, b.table.family), cmp.Compare(a.name, b.name))
}
