package ruleset

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

func TestConditions(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, v := range []struct {
		v6   bool
		in   []PortCondition
		want string
	}{
		{false, []PortCondition{{Source: prefix("10.1.2.3/8")}}, "goto portmap_if4/saddr/10.0.0.0/8"},
		{true, []PortCondition{{Destination: prefix("fd00::/8"), Not: true}}, "goto portmap_if6/not/daddr/fd00__/8"},
		{false, []PortCondition{{Input: "eth0"}, {Input: "br-x.*", Not: true}}, "goto portmap_if4/iif/eth0/not/iif/br-x./any"},
	} {
		have, err := ConditionVerdict(v.v6, v.in)
		if err != nil || have != v.want {
			t.Errorf("%+v: %q, %v, want %q", v.in, have, err, v.want)
		}
		if _, ok := portMapChain(strings.TrimPrefix(have, "goto ")); !ok {
			t.Errorf("%q makes no chain", have)
		}
	}
	for _, v := range []struct {
		v6 bool
		in []PortCondition
	}{
		{true, []PortCondition{{Source: prefix("10.0.0.0/8")}}},
		{false, []PortCondition{{Destination: prefix("fd00::/8")}}},
		{false, []PortCondition{{}}},
		{false, []PortCondition{{Input: "a b"}}},
		{false, []PortCondition{{Input: "*"}}},
		{false, []PortCondition{{Input: "sixteen-letters-"}}},
		{false, slices.Repeat([]PortCondition{{Source: prefix("10.0.0.0/8")}}, 20)},
	} {
		if have, err := ConditionVerdict(v.v6, v.in); !errors.Is(err, nlconn.ErrInvalid) {
			t.Errorf("%+v: %q, %v, want ErrInvalid", v.in, have, err)
		}
	}
	for _, bit := range []int{-1, 32} {
		if _, err := MarkVerdict(bit); !errors.Is(err, nlconn.ErrInvalid) {
			t.Errorf("bit %d: %v, want ErrInvalid", bit, err)
		}
	}
}

// FuzzPortMapChain decodes random chain names. The name of a chain may come from
// a state file.
func FuzzPortMapChain(f *testing.F) {
	for _, s := range []string{"portmap_if4/saddr/10.0.0.0/8", "portmap_if6/not/daddr/fd00__/8/iif/eth/any", "portmap_bit31", "portmap_if4/not", "portmap_if4/iif", "portmap_if4//", "portmap"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, ok := portMapChain(name)
		if !ok {
			return
		}
		if c.Name != name || len(c.Rules) != 1 {
			t.Errorf("%q makes %+v", name, c)
		}
		c.Rules[0].Message(inetTable(), c.Name)
	})
}
