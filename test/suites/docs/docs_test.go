// Package docs checks that the pages of the documentation agree with the code.
package docs

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
)

var update = flag.Bool("update", false, "rewrite the generated parts of docs/roles.md, docs/examples.md and CONTRIBUTING.md")

const rolesPage = "../../../docs/roles.md"

// TestRoles: the table of roles is generated from the code.
func TestRoles(t *testing.T) {
	rewrite(t, rolesPage, func(text string) string {
		return replaceBlock(t, text, "<!-- roles:start -->", "<!-- roles:end -->", rolesTable())
	})
}

// TestShownConflists: the conflists that docs/examples.md shows equal the files.
func TestShownConflists(t *testing.T) {
	rewrite(t, examplesPage, func(text string) string { return files(t, text) })
}

// rewrite checks that generate does not change a page, or with -update writes the result.
func rewrite(t *testing.T, path string, generate func(string) string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := generate(string(b))
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: run 'make generate'", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rolesTable is the table of every role of the binary.
func rolesTable() string {
	var b strings.Builder
	b.WriteString("| type | kind | what it does |\n|---|---|---|\n")
	for _, r := range all.Table().Roles() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(r.Names, "`, `"), r.Kind, r.Summary)
	}
	return b.String()
}

// replaceBlock replaces the text between two marks.
func replaceBlock(t *testing.T, text, start, end, with string) string {
	t.Helper()
	before, rest, ok := strings.Cut(text, start)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("the page has no %s … %s", start, end)
	}
	return before + start + "\n" + with + end + after
}

// shown matches a block that shows a file: a comment with the file's name, then the fenced contents.
var shown = regexp.MustCompile("(?s)<!-- file:(\\S+) -->\n```json\n.*?```\n")

// files fills in the contents of every file that the page shows.
func files(t *testing.T, text string) string {
	t.Helper()
	n := 0
	out := shown.ReplaceAllStringFunc(text, func(block string) string {
		n++
		name := shown.FindStringSubmatch(block)[1]
		b, err := os.ReadFile("../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("<!-- file:%s -->\n```json\n%s```\n", name, b)
	})
	if n == 0 {
		t.Error("docs/examples.md shows no conflist")
	}
	return out
}
