package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The comments of the overlay's rules in iptables' FORWARD chain. The network
// follows.
const (
	commentFrom = "cnibox overlay from "
	commentTo   = "cnibox overlay to "
)

// ensureForward accepts packets from and to pods in iptables' FORWARD chain if
// that chain refuses packets, as flannel does. An accept in the overlay's own
// table would have no effect: a packet must pass every table.
func (f *Filter) ensureForward(ctx context.Context, want []NAT) error {
	var errs []error
	for i := range want {
		w := &want[i]
		if !w.Forward {
			continue
		}
		p, err := f.tables.Policy(ctx, w.Network.Addr().Is6())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if p.Refused {
			errs = append(errs, f.forward(ctx, w.Network, false))
		}
		if p.RefusedLegacy {
			errs = append(errs, f.forward(ctx, w.Network, true))
		}
	}
	return errors.Join(errs...)
}

// forward inserts the missing rules before all other rules.
func (f *Filter) forward(ctx context.Context, network netip.Prefix, legacy bool) error {
	return f.changeForward(ctx, network, legacy, func(st *iptables.State) []iptables.Op {
		var ops []iptables.Op
		for _, r := range []iptables.Rule{
			{Chain: iptables.ForwardChain, Dst: network, Comment: commentTo + network.String(), Target: iptables.TargetAccept},
			{Chain: iptables.ForwardChain, Src: network, Comment: commentFrom + network.String(), Target: iptables.TargetAccept},
		} {
			if !st.Holds(iptables.ForwardChain, func(h *iptables.HeldRule) bool { return h.Comment == r.Comment }) {
				ops = append(ops, iptables.Op{Kind: iptables.InsertRule, Chain: iptables.ForwardChain, Rule: r})
			}
		}
		return ops
	})
}

// removeForward deletes the overlay's rules of all networks.
func (f *Filter) removeForward(ctx context.Context) error {
	var errs []error
	for _, network := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		for _, legacy := range []bool{false, true} {
			family := filterFamily(network)
			if legacy && !iptables.IsLegacyLoaded(family, "filter") {
				continue
			}
			err := f.changeForward(ctx, network, legacy, ownRules)
			if legacy && errors.Is(err, nlconn.ErrNotSupported) {
				err = nil // iptables-legacy is not installed, so the table has no rules of cnibox
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ownRules returns the changes that delete the overlay's rules.
func ownRules(st *iptables.State) []iptables.Op {
	var ops []iptables.Op
	if c := st.Chains[iptables.ForwardChain]; c != nil {
		for _, h := range c.Rules {
			if strings.HasPrefix(h.Comment, commentFrom) || strings.HasPrefix(h.Comment, commentTo) {
				ops = append(ops, iptables.Op{Kind: iptables.DeleteRule, Chain: iptables.ForwardChain, Held: h})
			}
		}
	}
	return ops
}

// changeForward commits the changes that change returns. It calls change again if
// another program changes the table at the same time.
func (f *Filter) changeForward(ctx context.Context, network netip.Prefix, legacy bool, change func(*iptables.State) []iptables.Op) error {
	table := f.tables.Filter(filterFamily(network), legacy)
	for range iptables.Tries {
		st, err := table.Read(ctx)
		if err != nil {
			return err
		}
		ops := change(st)
		if len(ops) == 0 {
			return nil
		}
		what := fmt.Sprintf("change %d rules of iptables' %s chain", len(ops), iptables.ForwardChain)
		done := false
		err = netops.Probed(f.probe, func() string { return what }, func() (err error) {
			done, err = table.Commit(ctx, st, ops)
			return err
		})
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%w: iptables' filter table is being changed all the time", nlconn.ErrBusy)
}

// filterFamily returns a network's address family (NFPROTO_*).
func filterFamily(network netip.Prefix) byte {
	if network.Addr().Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
