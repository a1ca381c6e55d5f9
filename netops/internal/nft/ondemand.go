package nft

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// A verdict may refer to a chain whose rules follow from its name. Such a chain
// is made with the first element that refers to it. It stays as long as its
// table, because its users are not counted.

// ondemand returns the chains that entries refer to and that f makes on demand,
// each once. If an entry refers to an unknown chain, the kernel refuses the
// entry.
func (f *Feature) ondemand(entries []*Entry) []Chain {
	if f.ChainOf == nil {
		return nil
	}
	var chains, fixed []Chain
	for _, n := range entries {
		if len(n.Set.Data) == 0 || n.Set.Data[0] != Verdict || len(n.data) <= 4 {
			continue
		}
		name := string(n.data[4:])
		known := func(c Chain) bool { return c.Name == name }
		if fixed == nil {
			fixed = f.Chains()
		}
		if slices.ContainsFunc(chains, known) || slices.ContainsFunc(fixed, known) {
			continue
		}
		if c, ok := f.ChainOf(name); ok {
			chains = append(chains, c)
		}
	}
	return chains
}

// chainMessages returns the requests that make chains and then their rules.
func (f *Feature) chainMessages(chains []Chain) []nlconn.Message {
	var msgs []nlconn.Message
	for _, ch := range chains {
		msgs = append(msgs, ch.Message(f.Table))
	}
	return append(msgs, f.ruleMessages(chains)...)
}

// ruleMessages returns the requests that append the rules of chains.
func (f *Feature) ruleMessages(chains []Chain) (msgs []nlconn.Message) {
	for _, ch := range chains {
		for _, r := range ch.Rules {
			msgs = append(msgs, r.Message(f.Table, ch.Name))
		}
	}
	return msgs
}

// makeOndemand makes chains in an existing table. An existing chain is not an
// error.
func (c *Client) makeOndemand(ctx context.Context, f *Feature, chains []Chain) error {
	for _, ch := range chains {
		if err := c.Commit(ctx, 0, f.chainMessages([]Chain{ch})...); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}
