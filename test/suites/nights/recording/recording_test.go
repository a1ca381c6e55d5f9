package recording

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
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

// TestIncomplete: a recording that lacks a question, has one too many, or is asked to send packets is an error that says so.
func TestIncomplete(t *testing.T) {
	const question = "in /run/netns/p1, way: To=198.51.100.7"
	for want, change := range map[string]func(r *Recording){
		"not recorded: " + question:       func(r *Recording) { delete(r.Records, question) },
		"not recorded: node.db":           func(r *Recording) { delete(r.Records, "node.db") },
		"recorded, and not asked: routes": func(r *Recording) { r.Commands = r.Commands[1:] },
		"":                                func(*Recording) {},
	} {
		r := nights(t)["forwarding"].Broken
		change(r)
		_, err := r.Play(t.Context())
		if text := fmt.Sprint(err); want != "" && !strings.Contains(text, want) || want == "" && err != nil {
			t.Errorf("want %q, have %s", want, text)
		}
	}
	r := nights(t)["forwarding"].Broken
	r.Commands = []Command{{Line: "cnibox path --probe p1 198.51.100.7"}}
	played, _ := r.Play(t.Context())
	if text := strings.Join(played[0].Prints, "\n"); !strings.Contains(text, "a recorded node receives no packets") {
		t.Error(text)
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

// TestShort: the nights that a short run plays on nodes, those with a section "short", prove all that the recordings need. They ask each kind
// of question, and give each kind of command that is not recorded. By each kind by which a night decides, so that its broken node has another
// answer than its neighbour, one of them decides, too.
func TestShort(t *testing.T) {
	all := nights(t)
	needs := map[string]map[string]bool{}
	short := map[string]bool{}
	for name, night := range all {
		a, err := txtar.ParseFile("../testdata/" + name + ".txtar")
		if err != nil {
			t.Fatal(err)
		}
		needs[name] = night.needs(a.Files)
		if slices.ContainsFunc(a.Files, func(f txtar.File) bool { return f.Name == "short" }) {
			maps.Copy(short, needs[name])
		}
	}
	for name, kinds := range needs {
		for need := range kinds {
			if !short[need] {
				t.Errorf("%s %s, and no short night does", name, need)
			}
		}
	}
}

// needs returns what a node proves about a night, as predicates.
func (n *Night) needs(sections []txtar.File) map[string]bool {
	all := map[string]bool{}
	for _, r := range n.all() {
		for question := range r.Records {
			all["asks about the "+kind(question)] = true
		}
	}
	if n.Broken != nil {
		for question, r := range n.Broken.Records {
			if h, is := n.Healthy.Records[question]; is && !reflect.DeepEqual(h, r) {
				all["is decided by the "+kind(question)] = true
			}
		}
	}
	for _, f := range sections {
		for _, part := range []string{"diff", "--probe", "--dns"} {
			if strings.HasPrefix(f.Name, "cnibox ") && strings.Contains(f.Name, part) {
				all["runs "+part] = true
			}
		}
	}
	return all
}

// kind returns the kind of a question: "sysctl", or "sysctl of a container".
func kind(question string) string {
	of := ""
	if rest, is := strings.CutPrefix(question, "in /"); is {
		_, question, _ = strings.Cut(rest, ", ")
		of = " of a container"
	}
	head, _, _ := strings.Cut(question, ":")
	return head + of
}
