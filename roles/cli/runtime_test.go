package cli

import (
	"slices"
	"testing"
)

func TestDirectories(t *testing.T) {
	for _, c := range []struct {
		name, toml string
		want       []string
	}{
		{"none", "[network]\n#cni_plugin_dirs = [\"/a\"]\nother_cni_plugin_dirs = \"/b\"\n", nil},
		{"one line", "  cni_plugin_dirs=[ \"/a\", '/b b' ,]\n", []string{"/a", "/b b"}},
		{"several lines", "cni_plugin_dirs = [\n  \"/a\", # was \"/c\"\n  # \"/d\",\n  \"/b\"\n]\nx = [\"/e\"]\n", []string{"/a", "/b"}},
		{"a string", "cni_plugin_dirs = \"/a\"\n", []string{"/a"}},
		{"the last counts", "cni_plugin_dirs = [\"/a\"]\ncni_plugin_dirs = [\"/b\"]\n", []string{"/b"}},
		{"not closed", "cni_plugin_dirs = [\"/a\"", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := directories([]byte(c.toml), "cni_plugin_dirs"); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
