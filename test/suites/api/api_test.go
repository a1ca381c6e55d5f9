// Package api lists what programs of other people read from cnibox or write for it, and compares the list with the files in api/.
package api

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/see/lint"
)

var update = flag.Bool("update", false, "write api/next.txt")

const files = "../../../api"

// TestAPI compares the program with api/. A line of a released version, vN.txt, must stay or have its reason in except.txt; the lines that
// no released version has are in next.txt.
func TestAPI(t *testing.T) {
	have := map[string]bool{}
	for line := range current(t) {
		have[line] = true
	}
	released, err := filepath.Glob(filepath.Join(files, "v*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	promised := map[string]string{}
	for _, file := range released {
		for line := range lines(t, file) {
			promised[line] = filepath.Base(file)
		}
	}
	excepted := lines(t, filepath.Join(files, "except.txt"))
	for _, line := range slices.Sorted(maps.Keys(promised)) {
		if !have[line] && !excepted[line] {
			t.Errorf("%s promises %q, which is gone: keep it, or add the line to api/except.txt below a comment with the reason", promised[line], line)
		}
		delete(have, line)
	}
	next := filepath.Join(files, "next.txt")
	want := strings.Join(slices.Sorted(maps.Keys(have)), "\n") + "\n"
	if *update {
		if err := os.WriteFile(next, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was := lines(t, next)
	for _, line := range slices.Sorted(maps.Keys(have)) {
		if !was[line] {
			t.Errorf("new: %s", line)
		}
	}
	for _, line := range slices.Sorted(maps.Keys(was)) {
		if !have[line] {
			t.Errorf("gone: %s", line)
		}
	}
	if t.Failed() {
		t.Log("what others read changed. If that is meant: make generate, and a line in CHANGELOG.md")
	}
}

// current returns the program's lines.
func current(t *testing.T) map[string]bool {
	out := map[string]bool{}
	for _, entry := range all.Table() {
		role := entry.Role()
		for _, key := range lint.Explain(&role) {
			out["configuration "+role.Name()+" "+key.Path+" "+key.Type] = true
		}
	}
	for _, line := range readCode(t) {
		out[line] = true
	}
	return out
}

// lines returns the lines of a file without comments and empty ones.
func lines(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range bytes.Lines(text) {
		if line := strings.TrimSpace(string(line)); line != "" && !strings.HasPrefix(line, "#") {
			out[line] = true
		}
	}
	return out
}
