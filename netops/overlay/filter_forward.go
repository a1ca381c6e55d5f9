package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// legacyInterval is the time between two looks at iptables-legacy's tables, which send no notifications.
const legacyInterval = 300 * time.Millisecond

// forwardChains returns iptables' FORWARD chains.
func forwardChains() (all []nft.Watched) {
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		all = append(all, nft.Watched{Table: nft.Table{Family: family, Name: "filter"}, Chain: iptables.ForwardChain})
	}
	return all
}

// watchLegacy announces changes of iptables-legacy's FORWARD chains.
func (f *Filter) watchLegacy(ctx context.Context) {
	tick := time.NewTicker(legacyInterval)
	defer tick.Stop()
	last := [2]int64{-1, -1}
	for {
		var now [2]int64
		for i, w := range forwardChains() {
			now[i] = iptables.LegacySize(w.Family)
		}
		if now != last {
			last = now
			f.disturbed(forwardChains()[0])
			f.monitor.Notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ensureForward makes all FORWARD chains of iptables accept packets from and to pods, also those that
// refuse nothing now: another program can set the policy DROP at any time. An accept in the
// overlay's own table would have no effect, because a packet must pass every table.
//
// The rules are behind those of other programs, so that these still decide about pods, as with flannel. An absent chain is not made,
// since it refuses nothing.
func (f *Filter) ensureForward(ctx context.Context, want []NAT) error {
	var networks [2]netip.Prefix
	for i := range want {
		if w := &want[i]; w.Forward {
			networks[familyIndex(w.Network)] = w.Network
		}
	}
	if f.forwardKnown && f.forwarded == networks {
		return f.blocked
	}
	blocked, err := f.changeForwards(ctx, networks)
	f.forwarded, f.forwardKnown, f.blocked = networks, err == nil, blocked
	return errors.Join(err, blocked)
}

// changeForwards makes the rules of the networks by family, and deletes all others of an overlay. blocked names the rules that
// refuse all packets before.
func (f *Filter) changeForwards(ctx context.Context, networks [2]netip.Prefix) (blocked, err error) {
	for i, w := range forwardChains() {
		program := [2]string{"iptables", "ip6tables"}[i]
		b, e := f.changeForward(ctx, f.tables.Filter(w.Family, false), networks[i], program)
		blocked, err = errors.Join(blocked, b), errors.Join(err, e)
		chain, e := iptables.ReadLegacyChain(w.Family)
		if e == nil && (networks[i].IsValid() && chain.Loaded || chain.HasOverlay()) {
			b, e = f.changeForward(ctx, f.tables.Filter(w.Family, true), networks[i], program+"-legacy")
			blocked = errors.Join(blocked, b)
		}
		if !errors.Is(e, nlconn.ErrNotSupported) || chain.Drops { // without iptables-legacy's program a table that refuses nothing is no fault
			err = errors.Join(err, e)
		}
	}
	return blocked, err
}

// changeForward makes the changes of one chain.
func (f *Filter) changeForward(ctx context.Context, table iptables.Table, network netip.Prefix, program string) (blocked, err error) {
	_, err = iptables.Change(ctx, probedTable{table, f.net}, []string{iptables.ForwardChain}, func(st *iptables.State) []iptables.Op {
		c := st.Chains[iptables.ForwardChain]
		if c == nil {
			return nil
		}
		ops, isBlocked := forwardOps(c, network)
		blocked = nil
		if isBlocked {
			n := c.Refusal() + 1
			blocked = fmt.Errorf("%s: rule %d of chain %s refuses all packets before those of %s are accepted: run '%s -D %s %d'", program, n, iptables.ForwardChain, network, program, iptables.ForwardChain, n)
		}
		return ops
	})
	return blocked, err
}

// probedTable is a table whose changes can be made to fail.
type probedTable struct {
	iptables.Table
	net *netops.Net
}

func (t probedTable) Commit(ctx context.Context, st *iptables.State, ops []iptables.Op) (done bool, err error) {
	what := func() string {
		return fmt.Sprintf("change %d rules of iptables' %s chain", len(ops), iptables.ForwardChain)
	}
	err = t.net.Probed(what, func() (err error) {
		done, err = t.Table.Commit(ctx, st, ops)
		return err
	})
	return done, err
}

// forwardOps returns the changes after which the chain has the rules of a network, of none for the zero Prefix.
// blocked reports whether the chain refuses packets before its rules of the network.
func forwardOps(c *iptables.Chain, network netip.Prefix) (ops []iptables.Op, blocked bool) {
	var missing []iptables.Rule
	if network.IsValid() {
		missing = []iptables.Rule{
			{Chain: iptables.ForwardChain, Src: network, Comment: iptables.OverlayFrom + network.String(), Target: iptables.TargetAccept},
			{Chain: iptables.ForwardChain, Dst: network, Comment: iptables.OverlayTo + network.String(), Target: iptables.TargetAccept},
		}
	}
	var surplus []iptables.Op
	refusal := c.Refusal()
	for at, h := range c.Rules {
		if !strings.HasPrefix(h.Comment, iptables.OverlayFrom) && !strings.HasPrefix(h.Comment, iptables.OverlayTo) {
			continue
		}
		if i := slices.IndexFunc(missing, func(r iptables.Rule) bool { return r.Comment == h.Comment }); i >= 0 {
			missing, blocked = slices.Delete(missing, i, i+1), blocked || at > refusal
		} else {
			surplus = append(surplus, iptables.Op{Kind: iptables.DeleteRule, Chain: iptables.ForwardChain, Held: h})
		}
	}
	for _, r := range missing {
		op := iptables.Op{Kind: iptables.AppendRule, Chain: iptables.ForwardChain, Rule: r}
		if refusal < len(c.Rules) {
			op.Kind, op.Held = iptables.InsertRule, c.Rules[refusal]
		}
		ops = append(ops, op)
	}
	return append(ops, surplus...), blocked
}
