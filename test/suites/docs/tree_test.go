package docs

import (
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	repository = "../../.."
	treePage   = repository + "/CONTRIBUTING.md"
	// maxSummary bounds a line of the tree, in characters.
	maxSummary = 72
)

// topDirs has the text for each directory at the top of the repository.
func topDirs() map[string]string {
	return map[string]string{
		"api":      "what other programs read from cnibox or write for it, listed by test/suites/api",
		"docs":     "pages for operators and developers; cli.md and differences.md are generated",
		"examples": "network configurations and manifests, each also the input of a test",
		"internal": "small packages that stand on nothing else of this repository",
		"netops":   "",
		"roles":    "",
		"store":    "",
		"test":     "suites of the whole program and what tests share: see test/README.md",
	}
}

// TestTree: CONTRIBUTING.md shows the directories of the repository, each with the first sentence of its package's documentation.
func TestTree(t *testing.T) {
	b, err := os.ReadFile(treePage)
	if err != nil {
		t.Fatal(err)
	}
	want := replaceBlock(t, string(b), "<!-- tree:start -->", "<!-- tree:end -->", "\n"+drawTree(t)+"\n")
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatal("the tree in CONTRIBUTING.md is out of date: run 'make generate'")
	}
	if err := os.WriteFile(treePage, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func drawTree(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	line := func(depth int, name, text string) {
		name = strings.Repeat("  ", depth) + name
		fmt.Fprintf(&out, "    %s\n", strings.TrimRight(fmt.Sprintf("%-20s %s", name, text), " "))
	}
	line(0, "main.go", packageSummary(t, "."))
	known := topDirs()
	var draw func(dir string, depth int)
	draw = func(dir string, depth int) {
		below := directories(t, dir)
		text := known[dir]
		if text == "" {
			text = packageSummary(t, dir)
		}
		descend := depth == 0 && dir != "test"
		if text == "" && !descend { // a directory of directories
			text = strings.Join(below, ", ")
		}
		line(depth, path.Base(dir)+"/", text)
		if descend {
			for _, name := range below {
				draw(path.Join(dir, name), depth+1)
			}
		}
	}
	for _, room := range directories(t, ".") {
		if _, ok := known[room]; !ok {
			t.Errorf("%s/ is not in the table of rooms", room)
		}
		delete(known, room)
	}
	for room := range known {
		t.Errorf("%s/ is in the table of rooms, and does not exist", room)
	}
	known = topDirs()
	for _, room := range directories(t, ".") {
		draw(room, 0)
	}
	return out.String()
}

// directories lists the directories in one, without hidden ones, build results and test data. Below the top these are
// directories with Go code or a Go module at any depth.
func directories(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(repository, dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); e.IsDir() && !strings.HasPrefix(name, ".") && name != "testdata" && path.Join(dir, name) != "bin" && (dir == "." || hasGo(t, path.Join(dir, name))) {
			names = append(names, name)
		}
	}
	return names
}

func hasGo(t *testing.T, dir string) (found bool) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(repository, dir), func(file string, _ fs.DirEntry, err error) error {
		if path.Ext(file) == ".go" || path.Base(file) == "go.mod" {
			found = true
			return fs.SkipAll
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// packageSummary is the first sentence of a package's documentation without its first words, "Package name" or "Command name".
// It is empty for a directory without Go code.
func packageSummary(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if f.Doc == nil {
			continue
		}
		text := new(doc.Package).Synopsis(f.Doc.Text())
		if words := strings.SplitN(text, " ", 3); len(words) == 3 && (words[0] == "Package" || words[0] == "Command") {
			text = words[2]
		}
		return shorten(strings.TrimPrefix(strings.TrimSuffix(text, "."), "is "))
	}
	if len(files) > 0 {
		t.Errorf("the package in %s has no documentation", dir)
	}
	return ""
}

// shorten cuts a long sentence: at its first colon or semicolon, else behind a word.
func shorten(text string) string {
	if utf8.RuneCountInString(text) <= maxSummary {
		return text
	}
	if i := strings.IndexAny(text, ":;"); i > 0 && utf8.RuneCountInString(text[:i]) <= maxSummary {
		return text[:i]
	}
	cut := string([]rune(text)[:maxSummary])
	return cut[:strings.LastIndex(cut, " ")] + " …"
}
