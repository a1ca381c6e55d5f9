package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	examplesDir  = "../../../examples"
	examplesPage = "../../../docs/examples.md"
)

// exampleRow matches a line of docs/examples.md: file, link, purpose.
var exampleRow = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(([^)]+)\): (.+)$`)

// TestExamples: docs/examples.md has a line for every file of examples/.
func TestExamples(t *testing.T) {
	page, err := os.ReadFile(examplesPage)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, row := range exampleRow.FindAllStringSubmatch(string(page), -1) {
		name, link := row[1], row[2]
		if link != "../examples/"+name {
			t.Errorf("the link of %s is %s", name, link)
		}
		if listed[name] {
			t.Errorf("%s is listed twice", name)
		}
		listed[name] = true
	}
	for _, name := range exampleFiles(t) {
		if !listed[name] {
			t.Errorf("docs/examples.md does not list %s", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/examples.md lists %s, which does not exist", name)
	}
}

// exampleFiles returns the paths of all files, relative to examples/.
func exampleFiles(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(examplesDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, strings.TrimPrefix(path, examplesDir+"/"))
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return names
}
