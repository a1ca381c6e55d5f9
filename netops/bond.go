package netops

import (
	"fmt"
	"math"
	"strconv"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Bond holds the settings of a link of Kind "bond". Its links are those whose Master it is. A link must be down when it joins; the bond sets
// it up, and gives it the bond's MTU and, depending on the mode, MAC. A link that leaves gets its own again, and is down.
type Bond = rtnl.Bond

// validateBond checks the settings of a bond.
func (l *Link) validateBond() error {
	b := l.Bond
	switch {
	case b == nil:
		return nil
	case l.Kind != rtnl.KindBond:
		return fmt.Errorf("settings of a bond on a link of kind %q: %w", l.Kind, ErrInvalid)
	case b.FailOverMAC > 2:
		return fmt.Errorf("fail_over_mac %d: %w", b.FailOverMAC, ErrInvalid)
	}
	if _, known := rtnl.HashPolicyValue(b.XmitHashPolicy); b.XmitHashPolicy != "" && !known {
		return fmt.Errorf("xmit_hash_policy %q: %w", b.XmitHashPolicy, ErrInvalid)
	}
	return rtnl.CheckRange("miimon", int(b.MIIMon), 0, math.MaxInt32)
}

// bondWords formats the settings as ip-link(8) does.
func bondWords(b *Bond) []string {
	w := words{"miimon", strconv.FormatUint(uint64(b.MIIMon), 10)}
	w.number("fail_over_mac", int(b.FailOverMAC))
	w.value("all_slaves_active", digit(b.AllSlavesActive))
	w.value("tlb_dynamic_lb", digit(b.TLBDynamicLB))
	w.value("xmit_hash_policy", b.XmitHashPolicy)
	return w
}

// digit formats a setting that is on or off. It returns "" for one that is left to the kernel.
func digit(on *bool) string {
	switch {
	case on == nil:
		return ""
	case *on:
		return "1"
	}
	return "0"
}

// verifyBond compares the settings. What b leaves to the kernel is not compared.
func verifyBond(b, have *Bond, d *differences) {
	d.compare("miimon", strconv.FormatUint(uint64(b.MIIMon), 10), strconv.FormatUint(uint64(have.MIIMon), 10))
	d.compare("fail_over_mac", strconv.Itoa(int(b.FailOverMAC)), strconv.Itoa(int(have.FailOverMAC)))
	for _, s := range []struct{ name, want, have string }{
		{"all_slaves_active", digit(b.AllSlavesActive), digit(have.AllSlavesActive)},
		{"tlb_dynamic_lb", digit(b.TLBDynamicLB), digit(have.TLBDynamicLB)},
		{"xmit_hash_policy", b.XmitHashPolicy, have.XmitHashPolicy},
	} {
		if s.want != "" {
			d.compare(s.name, s.want, s.have)
		}
	}
}
