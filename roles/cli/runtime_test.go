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

// TestContainerdTable: the keys of CNI are those of one table, whose name depends on the version of the configuration.
func TestContainerdTable(t *testing.T) {
	const (
		second   = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/two\"\n"
		third    = "  [plugins.'io.containerd.cri.v1.runtime'.cni] # pods\n  bin_dirs = [\n  '/a',\n'/b']\n  conf_dir = '/c'\n"
		verifier = "[plugins.'io.containerd.image-verifier.v1.bindir']\n  bin_dir = '/verifier'\n"
	)
	for _, c := range []struct {
		name, toml string
		want       []string
	}{
		{"version 1", "[plugins.cri.cni]\nbin_dir = \"/one\"\n[plugins.cri.registry]\n", []string{"/one"}},
		{"version 2", "version = 2\n" + verifier + second + verifier, []string{"/two"}},
		{"version 2 with the table of 3", "version = 2\n" + third, nil},
		{"version 3", "version = 3\n[plugins]\n" + verifier + third + verifier, []string{"/a", "/b"}},
		{"version 3 with the table of 2", "version = 3\n" + second, nil},
		{"version 3 with both tables", "version = 3\n" + third + second, []string{"/a", "/b"}},
		{"version 3 of containerd 2.0", "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".cni]\nbin_dir = \"/zero\"", []string{"/zero"}},
		{"version 4", "version = 4\n" + second + third, []string{"/a", "/b"}},
		{"no CNI", "version = 3\n" + verifier, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := directories(containerdTable([]byte(c.toml)), "bin_dirs?"); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
