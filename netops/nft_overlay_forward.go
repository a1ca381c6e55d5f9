package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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
	return f.changeForward(ctx, network, legacy, func(st *filterState) []filterOp {
		var ops []filterOp
		for _, r := range []filterRule{
			{chain: hookChain, dst: network, comment: overlayTo + network.String(), target: targetAccept},
			{chain: hookChain, src: network, comment: overlayFrom + network.String(), target: targetAccept},
		} {
			if !st.holds(hookChain, func(h *heldRule) bool { return h.comment == r.comment }) {
				ops = append(ops, filterOp{kind: insertRule, chain: hookChain, rule: r})
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
			family := (&Forward{Net: network}).family()
			if legacy && !isLegacyLoaded(family, "filter") {
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
func overlayRules(st *filterState) []filterOp {
	var ops []filterOp
	if c := st.chains[hookChain]; c != nil {
		for _, h := range c.rules {
			if strings.HasPrefix(h.comment, overlayFrom) || strings.HasPrefix(h.comment, overlayTo) {
				ops = append(ops, filterOp{kind: deleteRule, chain: hookChain, held: h})
			}
		}
	}
	return ops
}

// changeForward makes changes, computed anew as long as others change the table
// meanwhile.
func (f *OverlayFilter) changeForward(ctx context.Context, network netip.Prefix, legacy bool, change func(*filterState) []filterOp) error {
	table := f.net.filterTable(&Forward{Net: network, Legacy: legacy})
	for range forwardTries {
		st, err := table.read(ctx, "")
		if err != nil {
			return err
		}
		ops := change(st)
		if len(ops) == 0 {
			return nil
		}
		what := fmt.Sprintf("change %d rules of iptables' %s chain", len(ops), hookChain)
		done := false
		err = probed(f.net.probe, func() string { return what }, func() (err error) {
			done, err = table.commit(ctx, st, ops)
			return err
		})
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%w: iptables' filter table is being changed all the time", ErrBusy)
}
