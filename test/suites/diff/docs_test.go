package diff

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/differences.md")

const docsFile = "../../../docs/differences.md"

const docsIntro = `# cnibox beside the reference plugins

Read this page before you replace the reference plugins: it lists every difference in behaviour. Every role accepts the configuration of the reference plugin (v1.10.0). Where v1.9.1 behaves otherwise than v1.10.0, the text names it.

` + "`make test-diff`" + ` makes the same calls to both sides, and compares results, errors, interfaces, addresses, routes, rules, settings, tables and leases. This page is
generated from its list, which has the reasons: ` + "`test/suites/diff/intended_test.go`" + `. It fails for a difference that is not in the list, and for an entry
that does not occur.

` + "`make test-suites`" + ` runs the test suites of all reference plugins, each with its own plugin and with cnibox's. A spec that fails with cnibox's only is one of these
differences: ` + "`test/suites/foreign/testdata/accepted.txt`" + ` names it for each.

The differences from other projects' plugins are on the page of their subject: [sriov-cni](sriov.md#differences-from-sriov-cni),
[ovs-cni](ovs.md#differences-from-ovs-cni) and [route-override-cni](multi.md#routes-of-an-interface).

## Intended differences
`

const docsClaims = `
## Where the reference plugins fail

Each line is a test that makes the same calls to both sides.

| reference plugins | cnibox |
|---|---|
`

// document is docs/differences.md.
func document() string {
	var b strings.Builder
	b.WriteString(docsIntro)
	for _, e := range intendedDifferences() {
		fmt.Fprintf(&b, "\n### %s\n\nReference: %s\\\ncnibox: %s\n", e.title, e.reference, e.ours)
	}
	b.WriteString(docsClaims)
	type row struct{ plugins, reference, ours string }
	var rows []*row
	for _, c := range allClaims() {
		if c.said {
			continue
		}
		plugin, _, _ := strings.Cut(c.name, "/")
		i := slices.IndexFunc(rows, func(r *row) bool { return r.reference == c.reference && r.ours == c.ours })
		switch {
		case i < 0:
			rows = append(rows, &row{plugin, c.reference, c.ours})
		case !strings.Contains(rows[i].plugins, plugin):
			rows[i].plugins += ", " + plugin
		}
	}
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s: %s | %s |\n", r.plugins, r.reference, r.ours)
	}
	return b.String()
}

func TestDocument(t *testing.T) {
	want := document()
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("run 'make generate':\n%s", diff)
	}
}

// TestTables finds cases and claims of the same name, and patterns that select none.
func TestTables(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCases() {
		if seen[c.name] {
			t.Errorf("two cases are named %q", c.name)
		}
		seen[c.name] = true
		c.plan()
		if _, err := c.configuration(); err != nil {
			t.Error(err)
		}
	}
	for _, e := range intendedDifferences() {
		for _, p := range e.seen {
			for glob := range strings.FieldsSeq(p.cases) {
				used := false
				for name := range seen {
					used = used || matches(glob, name)
				}
				if !used {
					t.Errorf("intended difference %q: no case is named %q", e.title, glob)
				}
			}
		}
	}
}

func TestCompare(t *testing.T) {
	reference := facts{"ADD: host link a": present, "ADD: host link a mtu": "1500", "ADD: host sysctl ipv4/conf/a/tag": "0", "ADD: x": "1", "ADD: y": "1", "ADD: z": "1"}
	ours := facts{"ADD: x": "1", "ADD: y": "2", "ADD: host link ab": present}
	want := []difference{
		{"ADD: host link a", present, absent},
		{"ADD: host link ab", absent, present},
		{"ADD: y", "1", "2"},
		{"ADD: z", "1", absent},
	}
	if diff := cmp.Diff(want, compare(reference, ours), cmp.AllowUnexported(difference{})); diff != "" {
		t.Error(diff)
	}
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		glob, text string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "a/b c", true},
		{"a*c", "abc", true},
		{"a*c", "ac", true},
		{"a*c", "acb", false},
		{"*b*b*", "abcb", true},
		{"*b*b*", "abc", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"[a]", "a", false},
		{"[*]", "[0]", true},
	} {
		if got := matches(tc.glob, tc.text); got != tc.want {
			t.Errorf("matches(%q, %q) = %v", tc.glob, tc.text, got)
		}
	}
}
