package label_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// TestCheck: the keys and values that the API server refuses are refused.
func TestCheck(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, c := range []struct {
		key, value string
		ok         bool
	}{
		{"app", "web", true},
		{"app", "", true},
		{"example.com/app", "Web_1.0-a", true},
		{long, long, true},
		{"", "web", false},
		{"a b", "web", false},
		{"/app", "web", false},
		{"Example.com/app", "web", false},
		{"example.com/", "web", false},
		{"app", "a b", false},
		{"app", "-web", false},
		{"app", long + "a", false},
		{long + "a", "web", false},
	} {
		if err := label.Check(map[string]string{c.key: c.value}); (err == nil) != c.ok {
			t.Errorf("%q: %q: %v", c.key, c.value, err)
		}
	}
}
