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
	// exampleRow matches a line of docs/examples.md: file, link, plugins, purpose.
	exampleRow = regexp.MustCompile(`(?m)^\| \[([^\]]+)\]\(([^)]+)\) \| ([^|]*?) ?\| ([^|]+) \|$`)
	// pluginType matches a plugin's type in JSON, also in JSON within YAML.
	pluginType = regexp.MustCompile(`"type": *"([^"]+)"`)
	execStart  = regexp.MustCompile(`(?m)^ExecStart=/opt/cni/bin/(\S+)`)
)

// TestExamples: docs/examples.md has a line for every file of examples/, with the plugins that the file names.
func TestExamples(t *testing.T) {
	page, err := os.ReadFile(examplesPage)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, row := range exampleRow.FindAllStringSubmatch(string(page), -1) {
		name, link, plugins := row[1], row[2], row[3]
		if link != "../examples/"+name {
			t.Errorf("the link of %s is %s", name, link)
		}
		if _, twice := listed[name]; twice {
			t.Errorf("%s is listed twice", name)
		}
		listed[name] = plugins
	}
	for _, name := range exampleFiles(t) {
		plugins, ok := listed[name]
		delete(listed, name)
		if !ok {
			t.Errorf("docs/examples.md does not list %s", name)
			continue
		}
		if want := pluginsOf(t, name); plugins != want {
			t.Errorf("%s: docs/examples.md has the plugins %q, the file %q", name, plugins, want)
		}
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

// pluginsOf returns the plugins that a file names, in its order, each once. The types of a JSON schema and of a dashboard are no plugins.
func pluginsOf(t *testing.T, name string) string {
	t.Helper()
	if strings.HasSuffix(name, ".schema.json") || strings.HasPrefix(name, "prometheus/") {
		return ""
	}
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
