package recording

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestRecordedNights plays every recording, without a node.
func TestRecordedNights(t *testing.T) {
	for name, night := range nights(t) {
		t.Run(name, func(t *testing.T) {
			for _, r := range night.all() {
				played, err := r.Play(t.Context())
				if err != nil {
					t.Error(err)
				}
				for _, difference := range r.Differences(&Recording{played, r.Records}) {
					t.Error(difference)
				}
			}
		})
	}
}

// nights returns the recordings of all nights by name.
func nights(t *testing.T) map[string]*Night {
	t.Helper()
	files, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no nights", err)
	}
	all := map[string]*Night{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		all[name], err = Read("../testdata/recorded/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestShort: the nights that a short run plays on nodes, those with a section "short", ask each kind of question that a recording has. By each
// kind by which a night decides, so that its broken node has another answer than its neighbour, one of them decides, too.
func TestShort(t *testing.T) {
	all := nights(t)
	asked, decisive := map[string]bool{}, map[string]bool{}
	for name, night := range all {
		a, err := txtar.ParseFile("../testdata/" + name + ".txtar")
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(a.Files, func(f txtar.File) bool { return f.Name == "short" }) {
			maps.Copy(asked, night.Asked())
			maps.Copy(decisive, night.Decisive())
		}
	}
	for name, night := range all {
		for kind := range night.Asked() {
			if !asked[kind] {
				t.Errorf("%s: no short night asks: %s", name, kind)
			}
		}
		for kind := range night.Decisive() {
			if !decisive[kind] {
				t.Errorf("%s: no short night decides by: %s", name, kind)
			}
		}
	}
}
