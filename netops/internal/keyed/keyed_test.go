package keyed

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func text[K comparable, H, W any](c Change[K, H, W]) string {
	return fmt.Sprintf("%c%v %v>%v", "+~-"[c.Kind], c.Key, c.Have, c.Want)
}

// TestDiff compares all kinds of differences, at the keys of both sides and at some.
func TestDiff(t *testing.T) {
	all := map[string]int{"a": 1, "b": 2, "c": 3}
	for name, c := range map[string]struct {
		have, want map[string]int
		keys       string // of Diff
		maps, diff string
	}{
		"equal":    {have: all, want: all, keys: "abcd"},
		"both nil": {keys: "ab"},
		"all new":  {want: all, keys: "ca", maps: "+a 0>1, +b 0>2, +c 0>3", diff: "+c 0>3, +a 0>1"},
		"all gone": {have: all, keys: "ca", maps: "-a 1>0, -b 2>0, -c 3>0", diff: "-c 3>0, -a 1>0"},
		"each kind": {
			have: all, want: map[string]int{"b": 2, "c": 4, "d": 5}, keys: "dcbax",
			maps: "+d 0>5, -a 1>0, ~c 3>4", diff: "+d 0>5, ~c 3>4, -a 1>0",
		},
		"zero is an object": {have: map[string]int{"a": 0}, want: map[string]int{"b": 0}, keys: "ab", maps: "+b 0>0, -a 0>0", diff: "-a 0>0, +b 0>0"},
	} {
		var got []string
		for d := range Maps(c.have, c.want, Same) {
			got = append(got, text(d))
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != c.maps {
			t.Errorf("%s: Maps: %q, want %q", name, got, c.maps)
		}
		if Any(Maps(c.have, c.want, Same)) != (c.maps != "") {
			t.Errorf("%s: Any is wrong", name)
		}
		got = nil
		for d := range Diff(slices.Values(strings.Split(c.keys, "")), Of(c.have), Of(c.want), Same) {
			got = append(got, text(d))
		}
		if got := strings.Join(got, ", "); got != c.diff {
			t.Errorf("%s: Diff: %q, want %q", name, got, c.diff)
		}
	}
}

// TestKeys: each key once, those that are wanted first, and a removal from either side meanwhile does no harm.
func TestKeys(t *testing.T) {
	have, want := map[int]string{1: "", 2: "", 3: ""}, map[int]bool{3: true, 4: true}
	got := slices.Collect(Keys(have, want))
	first, rest := got[:2], got[2:]
	slices.Sort(first)
	slices.Sort(rest)
	if !slices.Equal(first, []int{3, 4}) || !slices.Equal(rest, []int{1, 2}) {
		t.Errorf("%v", got)
	}
	for key := range Keys(have, want) {
		if key == 3 {
			break
		}
	}
	for c := range Maps(have, want, func(string, bool) bool { return true }) {
		if c.Kind == Remove {
			delete(have, c.Key)
		} else {
			have[c.Key] = ""
		}
	}
	if keys := slices.Sorted(maps.Keys(have)); !slices.Equal(keys, []int{3, 4}) {
		t.Errorf("after all changes: %v", keys)
	}
}

// TestStop: the caller may stop at each difference.
func TestStop(t *testing.T) {
	have, want := map[int]int{1: 1, 2: 2}, map[int]int{2: 3, 4: 4}
	for stop := 1; stop <= 3; stop++ {
		seen := 0
		for range Maps(have, want, Same) {
			if seen++; seen == stop {
				break
			}
		}
		if seen != stop {
			t.Errorf("%d of %d differences", seen, stop)
		}
	}
}

// TestIndex: of objects with one key the first counts.
func TestIndex(t *testing.T) {
	keys, byKey := Index([]string{"banana", "apple", "blueberry", "cherry", "avocado"}, func(s string) byte { return s[0] })
	if !slices.Equal(keys, []byte("bac")) || !maps.Equal(byKey, map[byte]string{'a': "apple", 'b': "banana", 'c': "cherry"}) {
		t.Errorf("%q %q", keys, byKey)
	}
}
