package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/iptables"
)

// What the overlay's rules in iptables' FORWARD chain are called, with the
// network behind.
const (
	overlayFrom = "cnibox overlay from "
	overlayTo   = "cnibox overlay to "
)

// ensureForward lets what comes from and goes to pods pass iptables' FORWARD
// chain where that refuses, as flannel does. An accept in our own table would
// not: a packet must pass every table.
func (f *OverlayFilter) ensureForward(ctx context.Context, want []OverlayNAT) error {
	var errs []error
	for i := range want {
		w := &want[i]
		if !w.Forward {
			continue
		}
		p, err := f.net.ForwardPolicy(ctx, w.Network.Addr().Is6())
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

// forward makes the rules that are missing, before all others.
func (f *OverlayFilter) forward(ctx context.Context, network netip.Prefix, legacy bool) error {
	return f.changeForward(ctx, network, legacy, func(st *iptables.State) []iptables.Op {
		var ops []iptables.Op
		for _, r := range []iptables.Rule{
			{Chain: iptables.ForwardChain, Dst: network, Comment: overlayTo + network.String(), Target: iptables.TargetAccept},
			{Chain: iptables.ForwardChain, Src: network, Comment: overlayFrom + network.String(), Target: iptables.TargetAccept},
		} {
			if !st.Holds(iptables.ForwardChain, func(h *iptables.HeldRule) bool { return h.Comment == r.Comment }) {
				ops = append(ops, iptables.Op{Kind: iptables.InsertRule, Chain: iptables.ForwardChain, Rule: r})
			}
		}
		return ops
	})
}

// removeForward deletes the rules of any network.
func (f *OverlayFilter) removeForward(ctx context.Context) error {
	var errs []error
	for _, network := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		for _, legacy := range []bool{false, true} {
			family := filterFamily(network)
			if legacy && !iptables.IsLegacyLoaded(family, "filter") {
				continue
			}
			err := f.changeForward(ctx, network, legacy, overlayRules)
			if legacy && errors.Is(err, ErrNotSupported) {
				err = nil // whoever loaded the table, it was not us
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// overlayRules is the deletion of the overlay's rules.
func overlayRules(st *iptables.State) []iptables.Op {
	var ops []iptables.Op
	if c := st.Chains[iptables.ForwardChain]; c != nil {
		for _, h := range c.Rules {
			if strings.HasPrefix(h.Comment, overlayFrom) || strings.HasPrefix(h.Comment, overlayTo) {
				ops = append(ops, iptables.Op{Kind: iptables.DeleteRule, Chain: iptables.ForwardChain, Held: h})
			}
		}
	}
	return ops
}

// changeForward makes changes, computed anew as long as others change the table
// meanwhile.
func (f *OverlayFilter) changeForward(ctx context.Context, network netip.Prefix, legacy bool, change func(*iptables.State) []iptables.Op) error {
	table := f.net.tables().Filter(filterFamily(network), legacy)
	for range iptables.Tries {
		st, err := table.Read(ctx, "")
		if err != nil {
			return err
		}
		ops := change(st)
		if len(ops) == 0 {
			return nil
		}
		what := fmt.Sprintf("change %d rules of iptables' %s chain", len(ops), iptables.ForwardChain)
		done := false
		err = probed(f.net.probe, func() string { return what }, func() (err error) {
			done, err = table.Commit(ctx, st, ops)
			return err
		})
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%w: iptables' filter table is being changed all the time", ErrBusy)
}

// filterFamily is a network's address family as netfilter's number.
func filterFamily(network netip.Prefix) byte {
	if network.Addr().Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
