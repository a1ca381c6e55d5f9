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
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	for _, v := range []struct {
		v6   bool
		in   []PortCondition
		want string
	}{
		{false, []PortCondition{{Source: prefixes("10.1.2.3/8")}}, "goto portmap_if4/saddr/10.0.0.0/8"},
		{true, []PortCondition{{Destination: prefixes("fd00::/8"), Not: true}}, "goto portmap_if6/not/daddr/fd00__/8"},
		{false, []PortCondition{{Input: []string{"eth0"}}, {Input: []string{"br-x.*"}, Not: true}}, "goto portmap_if4/iif/eth0/not/iif/br-x./any"},
		{
			false,
			[]PortCondition{{Destination: prefixes("127.0.0.0/8", "192.0.2.1/32"), Not: true}, {Input: []string{"or", "any*", "not"}}, {Source: prefixes("10.0.0.0/8", "11.0.0.0/8")}},
			"goto portmap_if4/not/daddr/127.0.0.0/8/or/192.0.2.1/32/iif/or/or/any/any/or/not/saddr/10.0.0.0/8/or/11.0.0.0/8",
		},
	} {
		have, err := ConditionVerdict(v.v6, v.in)
		if err != nil || have != v.want {
			t.Errorf("%+v: %q, %v, want %q", v.in, have, err, v.want)
		}
		c, ok := portMapChain(strings.TrimPrefix(have, "goto "))
		if want := alternatives(v.in); !ok || len(c.Rules) != want {
			t.Errorf("%q makes a chain of %d rules, want %d", have, len(c.Rules), want)
		}
	}
	for _, v := range []struct {
		v6 bool
		in []PortCondition
	}{
		{true, []PortCondition{{Source: prefixes("10.0.0.0/8")}}},
		{false, []PortCondition{{Destination: prefixes("fd00::/8")}}},
		{false, []PortCondition{{}}},
		{false, []PortCondition{{Input: []string{"a b"}}}},
		{false, []PortCondition{{Input: []string{"*"}}}},
		{false, []PortCondition{{Input: []string{"sixteen-letters-"}}}},
		{false, slices.Repeat([]PortCondition{{Source: prefixes("10.0.0.0/8")}}, 20)},
		{false, slices.Repeat([]PortCondition{{Input: []string{"a", "b", "c"}}}, 4)}, // 81 rules
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
	for _, s := range []string{
		"portmap_if4/saddr/10.0.0.0/8", "portmap_if6/not/daddr/fd00__/8/iif/eth/any", "portmap_bit31", "portmap_if4/not", "portmap_if4/iif", "portmap_if4//", "portmap",
		"portmap_if4/saddr/10.0.0.0/8/or/11.0.0.0/8", "portmap_if4/iif/or/or/any/any/not/daddr/10.0.0.0/8/or/11.0.0.0/8", "portmap_if4/iif/a/or",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, ok := portMapChain(name)
		if !ok {
			return
		}
		if c.Name != name || len(c.Rules) < 1 || len(c.Rules) > maxAlternatives {
			t.Errorf("%q makes %+v", name, c)
		}
		for _, r := range c.Rules {
			r.Message(inetTable(), c.Name)
		}
	})
}
