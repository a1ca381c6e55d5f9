//go:build foreign

// Package foreign runs the test suites of the reference plugins with cnibox's plugins in their place.
package foreign

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSuites runs each suite that can judge a plugin that is executed. A spec may fail only if testdata/accepted.txt lists it with a
// reason, and such a spec must fail. Bandwidth's own suite is left out: it calls functions of the reference and reads its structures.
// The integration suite limits a bandwidth.
func TestSuites(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	suites := filepath.Join(root, "bin/suites")
	if _, err := os.Stat(suites); err != nil {
		t.Fatalf("%v: run make bin/suites/integration.test", err)
	}
	plugins := filepath.Join(suites, "src/bin") // where the integration suite looks
	if err := os.RemoveAll(plugins); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, ping := range []string{"ping", "ping6"} {
		if err := os.Symlink("/bin/busybox", filepath.Join(plugins, ping)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bandwidth", "bridge", "host-local", "loopback", "portmap", "ptp", "static", "tap"} {
		if err := os.Symlink(filepath.Join(root, "bin/cnibox"), filepath.Join(plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	accepted := readAccepted(t)
	for suite, dir := range map[string]string{
		"host-local": "plugins/ipam/host-local", "static": "plugins/ipam/static", "loopback": "plugins/main/loopback",
		"ptp": "plugins/main/ptp", "tap": "plugins/main/tap", "portmap": "plugins/meta/portmap", "integration": "integration",
	} {
		t.Run(suite, func(t *testing.T) {
			failed, passed := runSuite(t, suites, suite, dir, filepath.Join(plugins, suite))
			for spec, message := range failed {
				if !slices.Contains(accepted[suite], spec) {
					t.Error(message)
				}
			}
			for _, spec := range accepted[suite] {
				if failed[spec] == "" {
					t.Errorf("testdata/accepted.txt: the spec %q does not fail: remove the line", spec)
				}
			}
			t.Logf("%d specs passed, %d failed as listed", passed, len(accepted[suite]))
			if passed == 0 {
				t.Error("no spec passed")
			}
		})
	}
}

// version is the CNI version in the name of a spec.
var version = regexp.MustCompile(`\[\d\.\d\.\d\] `)

// runSuite returns the failed specs, without the version in the name, with their messages, and the number of those that passed. The suite runs in namespaces of its own,
// with empty directories for the files that it and the plugins keep.
func runSuite(t *testing.T, suites, suite, dir, plugin string) (failed map[string]string, passed int) {
	t.Helper()
	report := filepath.Join(suites, suite+".json")
	_ = os.Remove(report)
	const script = `set -e
for d in /run /tmp /var/lib/cni /var/lib/cnibox; do mkdir -p $d; mount -t tmpfs -o mode=0755 tmpfs $d; done
ip link set lo up
exec "$@"`
	cmd := exec.Command("unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
		filepath.Join(suites, suite+".test"), "--ginkgo.json-report="+report, "--ginkgo.timeout=5m")
	cmd.Dir = filepath.Join(suites, "src", dir)
	cmd.Env = append(os.Environ(), "CNIBOX_PLUGIN="+plugin, "CNI_PATH="+filepath.Dir(plugin), "PATH="+filepath.Dir(plugin)+":"+suites+":"+os.Getenv("PATH"),
		// Loopback's suite builds the plugin itself, and hands it no environment.
		"GOFLAGS=-trimpath -ldflags=-X=main.program="+plugin)
	out, runErr := cmd.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v, %v\n%s", runErr, err, out)
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &reports); err != nil {
		t.Fatal(err)
	}
	failed = map[string]string{}
	for _, r := range reports {
		for _, s := range r.SpecReports {
			switch s.State {
			case "passed":
				passed++
			case "skipped", "pending":
			default:
				name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), ": ")
				failed[version.ReplaceAllString(name, "")] = fmt.Sprintf("%s: %s: %.900s", name, s.State, s.Failure.Message)
			}
		}
	}
	return failed, passed
}

// readAccepted reads the specs of each suite that fail with cnibox for some version of the CNI specification: "SUITE: SPEC" a line,
// without the version, under a comment with the reason.
func readAccepted(t *testing.T) map[string][]string {
	t.Helper()
	f, err := os.Open("testdata/accepted.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	accepted := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if suite, spec, found := strings.Cut(lines.Text(), ": "); found && !strings.HasPrefix(suite, "#") {
			accepted[suite] = append(accepted[suite], spec)
		}
	}
	return accepted
}
