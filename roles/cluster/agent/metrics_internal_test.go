package agent

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/metrics"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/egress"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/store"
)

const repository = "../../.."

// families returns the metrics of an agent.
func families(t *testing.T) []metrics.Family {
	t.Helper()
	a := &agent{policies: &policy.Keeper{}, egress: egressPart{keeper: &egress.Keeper{}}, host: &roles.Host{Program: "v1", Log: slog.New(slog.DiscardHandler), Store: store.New(store.Options{
		RunDir: t.TempDir(), BootID: "11111111-2222-3333-4444-555555555555",
	})}}
	a.reporter.current.Store(&agentState{})
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
		t.Fatalf("%s differs from the code: run 'make generate'", path)
	}
	if err := os.WriteFile(path, []byte(before+start+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMetricsOfExamples: the alerts do what their tests say, and the dashboard and the alerts name only
// metrics and labels that exist. The dashboard's queries are valid.
func TestMetricsOfExamples(t *testing.T) {
	labels := map[string][]string{}
	for _, f := range families(t) {
		labels[f.Name] = append(f.Labels, "instance")
		if f.Type == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				labels[f.Name+suffix] = append(labels[f.Name], "le")
			}
		}
	}
	dir := filepath.Join(repository, "examples/prometheus")
	rules := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(rules, queries(t, filepath.Join(dir, "dashboard.json")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", rules, filepath.Join(dir, "alerts.yml")}, {"test", "rules", filepath.Join(dir, "alerts_test.yml")}} {
		out, err := exec.Command(filepath.Join(repository, "bin/prometheus/usr/bin/promtool"), args...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %q: %v (sh test/apt.sh unpacks it)\n%s", args, err, out)
		}
	}
	metric, label := regexp.MustCompile(`cnibox_[a-z_]+`), regexp.MustCompile(`([a-z_]+) ?[!=]~?"|by \(([a-z_, ]+)\)`)
	for _, path := range []string{rules, filepath.Join(dir, "alerts.yml")} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(text), "expr: ") {
			query, _, _ := strings.Cut(part, "for: ")
			var known []string
			for _, name := range metric.FindAllString(query, -1) {
				if labels[name] == nil {
					t.Errorf("%s: metric %s does not exist", path, name)
				}
				known = append(known, labels[name]...)
			}
			for _, m := range label.FindAllStringSubmatch(query, -1) {
				for one := range strings.SplitSeq(m[1]+m[2], ", ") {
					if !slices.Contains(known, one) {
						t.Errorf("%s: label %q does not exist: %s", path, one, query)
					}
				}
			}
		}
	}
}

// queries returns the dashboard's queries as rules for promtool.
func queries(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatal(err)
	}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range dashboard.Panels {
		for i, target := range p.Targets {
			query := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(target.Expr)
			rules += fmt.Sprintf("  - record: query%d_%d\n    expr: %s\n", len(rules), i, query)
		}
	}
	return []byte(rules)
}
