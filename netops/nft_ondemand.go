package netops

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Some verdicts lead to chains whose content follows from their name. Such a
// chain is made with the first element that leads there, and stays as long as
// its table: nobody counts who needs it.

// ondemand is the chains that entries lead to and that f makes on demand, each
// once. An entry that leads to none of them is left to the kernel's judgement.
func (f *nftFeature) ondemand(entries []*entry) []nftChain {
	if f.chainOf == nil {
		return nil
	}
	var chains, fixed []nftChain
	for _, n := range entries {
		if len(n.set.data) == 0 || n.set.data[0] != verdict || len(n.data) <= 4 {
			continue
		}
		name := string(n.data[4:])
		known := func(c nftChain) bool { return c.name == name }
		if fixed == nil {
			fixed = f.chains()
		}
		if slices.ContainsFunc(chains, known) || slices.ContainsFunc(fixed, known) {
			continue
		}
		if c, ok := f.chainOf(name); ok {
			chains = append(chains, c)
		}
	}
	return chains
}

// chainMessages makes chains and then their rules.
func (f *nftFeature) chainMessages(chains []nftChain) ([]nlconn.Message, error) {
	var msgs []nlconn.Message
	for _, ch := range chains {
		m, err := ch.message(f.table)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	for _, ch := range chains {
		for _, r := range ch.rules {
			m, err := r.message(f.table, ch.name)
			if err != nil {
				return nil, err
			}
			msgs = append(msgs, m)
		}
	}
	return msgs, nil
}

// makeOndemand makes chains in a table that exists; those that exist are success.
func (c *nft) makeOndemand(ctx context.Context, f *nftFeature, chains []nftChain) error {
	for _, ch := range chains {
		msgs, err := f.chainMessages([]nftChain{ch})
		if err != nil {
			return err
		}
		if err := c.conn.commit(ctx, 0, msgs...); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}
