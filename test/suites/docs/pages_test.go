package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	// mention matches the name of a page in a message, a comment or a manifest.
	mention = regexp.MustCompile(`\bdocs/[a-z0-9-]+\.(?:md|svg|png)(?:#[a-z0-9-]+)?`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// TestLinks: every file and section exists to which a page links, or that a message, comment or manifest names.
func TestLinks(t *testing.T) {
	n := 0
	for _, file := range sources(t) {
		text := source(t, file)
		var targets []string
		if filepath.Ext(file) == ".md" {
			for _, link := range markdownLink.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
				if !strings.Contains(link[1], "://") {
					path, section, _ := strings.Cut(link[1], "#")
					if path == "" {
						path = filepath.Base(file)
					}
					targets = append(targets, filepath.Join(filepath.Dir(file), path)+"#"+section)
				}
			}
		}
		if file != "CHANGELOG.md" && file != "test/suites/docs/pages_test.go" { // pages of earlier versions
			targets = append(targets, mention.FindAllString(text, -1)...)
		}
		for _, target := range targets {
			n++
			path, section, _ := strings.Cut(target, "#")
			b, err := os.ReadFile(filepath.Join(repository, path))
			if _, missing := os.Stat(filepath.Join(repository, path)); missing != nil {
				t.Errorf("%s names %s: %v", file, target, err)
			} else if section != "" && !slices.Contains(sections(string(b)), section) {
				t.Errorf("%s names %s: the page has no such section", file, target)
			}
		}
	}
	if n < 300 {
		t.Errorf("%d links", n)
	}
}

// sections returns the names under which GitHub shows the headings of a page.
func sections(page string) (names []string) {
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(h[1], "$1")
		text = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(text), "")
		names = append(names, strings.ReplaceAll(text, " ", "-"))
	}
	return names
}

// sources returns the text files of the repository, without hidden directories and what make builds.
func sources(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(repository, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || name == "dist" || len(name) > 2 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.Type().IsRegular() && !slices.Contains([]string{".png", ".svg", ".sum"}, filepath.Ext(name)):
			files = append(files, name)
		}
		return nil
	})
	if err != nil || len(files) < 500 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	return files
}

func source(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// named matches tests that a page names with their package.
var named = regexp.MustCompile("((?:`Test[A-Za-z]+`(?:,| and)? )+)in ([a-z0-9/]+)")

var testName = regexp.MustCompile(`Test[A-Za-z]+`)

// TestNamedTests: a promise and a repaired vulnerability name tests that exist.
func TestNamedTests(t *testing.T) {
	for _, file := range []string{"docs/guarantees.md", "SECURITY.md"} {
		found := named.FindAllStringSubmatch(source(t, file), -1)
		if len(found) < 5 {
			t.Errorf("%s names tests in %d places", file, len(found))
		}
		for _, f := range found {
			files, err := filepath.Glob(filepath.Join(repository, f[2], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, file := range files {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(b)
			}
			for _, name := range testName.FindAllString(f[1], -1) {
				if !strings.Contains(all.String(), "func "+name+"(") {
					t.Errorf("%s names %s in %s, which is not there", file, name, f[2])
				}
			}
		}
	}
}
