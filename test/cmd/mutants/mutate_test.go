package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMutate: comparisons are flipped, their numbers changed and statements dropped, but not those that make texts.
func TestMutate(t *testing.T) {
	const code = `package x

func f(a int) error {
	n := 0
	if a < 7 {
		n++
		g(a == 1)
	}
	_ = n
	switch {
	case a >= n:
		s.x, s.y = a, n
		return fmt.Errorf("x: %v", a == 2)
	}
	defer s.Close()
	s.log.Info("x", "y", a != 3)
	s.Close()
	return nil
}
`
	all, err := mutate("x.go", []byte(code))
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, m := range all {
		have = append(have, m.at+": "+m.change+": "+line(code[:m.from]+"«"+m.text+"»"+code[m.to:], m.from))
	}
	slices.Sort(have)
	want := []string{
		"x.go:11: `a >= n` became >: \tcase «a > n»:",
		"x.go:12: dropped `s.x, s.y = a, n`: \t\t«»",
		"x.go:5: `a < 7` became 8: \tif «a < 8» {",
		"x.go:5: `a < 7` became <=: \tif «a <= 7» {",
		"x.go:6: dropped `n++`: \t\t«»",
		"x.go:7: `a == 1` became !=: \t\tg(«a != 1»)",
		"x.go:7: `a == 1` became 2: \t\tg(«a == 2»)",
		"x.go:7: dropped `g(a == 1)`: \t\t«»",
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}
}

// TestPlant: several mutants of a file are planted, the last of those within each other.
func TestPlant(t *testing.T) {
	const code = "if a == 1 { b(c == 2); d() }"
	dir := t.TempDir()
	file := filepath.Join(dir, "x.go")
	if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	change := func(from, to string) mutant {
		at := strings.Index(code, from)
		return mutant{file: file, from: at, to: at + len(from), text: to}
	}
	o := options{dir: t.TempDir(), overlay: filepath.Join(dir, "overlay.json")}
	if err := o.plant(change("a == 1", "a != 1"), change("b(c == 2)", ""), change("d()", ""), change("c == 2", "c != 2")); err != nil {
		t.Fatal(err)
	}
	var overlay struct{ Replace map[string]string }
	text, err := os.ReadFile(o.overlay)
	if err == nil {
		err = json.Unmarshal(text, &overlay)
	}
	if err == nil {
		text, err = os.ReadFile(overlay.Replace[file])
	}
	if want := "if a != 1 { b(c != 2);  }"; err != nil || string(text) != want {
		t.Errorf("%q, want %q, %v", text, want, err)
	}
}

// line returns the line around a byte of a text.
func line(text string, at int) string {
	_, end, _ := strings.Cut(text[at:], "\n")
	begin := strings.LastIndexByte(text[:at], '\n') + 1
	return strings.TrimSuffix(text[begin:], "\n"+end)
}

// TestImporters: the tests of the package come first, then those of the packages that import it, and always the suites that build the
// program.
func TestImporters(t *testing.T) {
	tests := []string{"x_test.go"}
	tree := tree{module: "m", packages: []pkg{
		{ImportPath: "m/a", Imports: []string{"m/b"}, TestGoFiles: tests},
		{ImportPath: "m/b", Imports: []string{"m/c"}},
		{ImportPath: "m/c", TestGoFiles: tests},
		{ImportPath: "m/d", XTestImports: []string{"m/c"}, XTestGoFiles: tests},
		{ImportPath: "m/e", TestGoFiles: tests},
	}}
	want := []string{"m/c", "m/d", "m/a", "m/test/suites/process", "m/test/suites/nights"}
	if diff := cmp.Diff(want, tree.importers("m/c")); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}
}
