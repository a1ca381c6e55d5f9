package podfilter

import (
	"maps"
	"slices"
	"testing"
)

// TestSetChanges: a set notes the members that the kernel lacks or has too many, and not those that are as they were.
func TestSetChanges(t *testing.T) {
	s := NewSet("a_1", Addresses, false)
	for _, m := range []string{"a", "b", "b", "c"} {
		s.Add(m)
	}
	s.set()
	for _, m := range []string{"a", "b", "c"} {
		s.Remove(m)
	}
	for _, m := range []string{"a", "d", "e"} {
		s.Add(m)
	}
	s.Remove("e")
	if got := slices.Sorted(maps.Keys(s.changed)); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("changed: %q", got)
	}
	if got := slices.Sorted(maps.Keys(s.members)); !slices.Equal(got, []string{"a", "b", "d"}) {
		t.Errorf("members: %q", got)
	}
}
