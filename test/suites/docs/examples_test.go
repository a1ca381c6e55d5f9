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

const (
	examplesDir  = "../../../examples"
	examplesPage = "../../../docs/examples.md"
)

var (
	// exampleRow is a line of docs/examples.md: the file, its link, its plugins, what it is for.
	exampleRow = regexp.MustCompile(`(?m)^\| \[([^\]]+)\]\(([^)]+)\) \| ([^|]*?) ?\| ([^|]+) \|$`)
	// pluginType is a plugin in a configuration, whether JSON or JSON within YAML.
	pluginType = regexp.MustCompile(`"type": *"([^"]+)"`)
	execStart  = regexp.MustCompile(`(?m)^ExecStart=/opt/cni/bin/(\S+)`)
)

// TestExamples: docs/examples.md tells of every file of examples/ what it is for,
// and names the plugins that are in it.
func TestExamples(t *testing.T) {
	page, err := os.ReadFile(examplesPage)
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for _, row := range exampleRow.FindAllStringSubmatch(string(page), -1) {
		name, link, plugins := row[1], row[2], row[3]
		if link != "../examples/"+name {
			t.Errorf("%s leads to %s", name, link)
		}
		if _, twice := told[name]; twice {
			t.Errorf("%s is told twice", name)
		}
		told[name] = plugins
	}
	for _, name := range exampleFiles(t) {
		plugins, ok := told[name]
		delete(told, name)
		if !ok {
			t.Errorf("docs/examples.md does not tell what %s is for", name)
			continue
		}
		if want := pluginsOf(t, name); plugins != want {
			t.Errorf("%s: docs/examples.md has the plugins %q, the file %q", name, plugins, want)
		}
	}
	for name := range told {
		t.Errorf("docs/examples.md tells of %s, which is not there", name)
	}
}

// exampleFiles lists the files by their path below examples/.
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

// pluginsOf lists the plugins of a file in their order, each once.
func pluginsOf(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(examplesDir, name))
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, pattern := range []*regexp.Regexp{pluginType, execStart} {
		for _, found := range pattern.FindAllStringSubmatch(string(b), -1) {
			if !slices.Contains(types, found[1]) {
				types = append(types, found[1])
			}
		}
	}
	return strings.Join(types, ", ")
}
