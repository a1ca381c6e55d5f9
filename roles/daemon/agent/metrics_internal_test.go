package agent

import (
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

const repository = "../../.."

// families returns the metrics of an agent.
func families(t *testing.T) []metrics.Family {
	t.Helper()
	a := &agent{host: &roles.Host{Program: "v1", Log: slog.New(slog.DiscardHandler), Store: store.New(store.Options{
		RunDir: t.TempDir(), BootID: "11111111-2222-3333-4444-555555555555",
	})}}
	a.current.Store(&agentState{})
	w := &metrics.Writer{}
	a.writeMetrics(t.Context(), w)
	return w.Families()
}

// TestMetricsDocumented: the table of docs/metrics.md has every metric.
func TestMetricsDocumented(t *testing.T) {
	table := "\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for _, f := range families(t) {
		table += "| `" + strings.Join([]string{f.Name + "`", f.Type, strings.Join(f.Labels, ", "), f.Help}, " | ") + " |\n"
	}
	const start, end = "<!-- metrics:start -->\n", "\n<!-- metrics:end -->"
	path := filepath.Join(repository, "docs/metrics.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), start)
	have, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s has no table", path)
	}
	if have == table {
		return
	}
	if flag.Lookup("update").Value.String() != "true" { // rolestest defines the flag
		t.Fatalf("%s differs from the code: run go test ./roles/daemon/agent -run TestMetricsDocumented -update", path)
	}
	if err := os.WriteFile(path, []byte(before+start+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMetricsOfExamples: the dashboard and the alerts name only metrics and labels that exist.
func TestMetricsOfExamples(t *testing.T) {
	labels := map[string][]string{}
	for _, f := range families(t) {
		labels[f.Name] = f.Labels
		if f.Type == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				labels[f.Name+suffix] = append([]string{"le"}, f.Labels...)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(repository, "examples/prometheus/*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("files %q, %v", files, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range regexp.MustCompile(`(cnibox_[a-z_]+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(string(text), -1) {
			known, ok := labels[m[1]]
			if !ok {
				t.Errorf("%s: metric %s does not exist", path, m[1])
			}
			for _, l := range regexp.MustCompile(`([a-z_]+)(?:=|!=|=~|!~)\\?["']`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(append(known, "instance", "job"), l[1]) {
					t.Errorf("%s: metric %s has no label %s", path, m[1], l[1])
				}
			}
			found++
		}
		if found == 0 {
			t.Errorf("%s names no metric", path)
		}
	}
}
