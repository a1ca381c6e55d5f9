//go:build foreign

// Package foreign runs the test suites of the reference plugins and of ovs-cni with cnibox's plugins in their place.
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

	"github.com/cnibox/cnibox/test/ovs"
)

// suites are those that can judge a plugin that is executed, with their directories in the reference's tree. The other packages with tests,
// host-local's backends and pkg/..., test functions of the reference's own, and sample does nothing.
var suites = map[string]string{ //nolint:gochecknoglobals // a constant
	"dhcp": "plugins/ipam/dhcp", "host-local": "plugins/ipam/host-local", "static": "plugins/ipam/static",
	"bridge": "plugins/main/bridge", "dummy": "plugins/main/dummy", "host-device": "plugins/main/host-device", "ipvlan": "plugins/main/ipvlan",
	"loopback": "plugins/main/loopback", "macvlan": "plugins/main/macvlan", "ptp": "plugins/main/ptp", "tap": "plugins/main/tap", "vlan": "plugins/main/vlan",
	"bandwidth": "plugins/meta/bandwidth", "firewall": "plugins/meta/firewall", "portmap": "plugins/meta/portmap", "sbr": "plugins/meta/sbr",
	"tuning": "plugins/meta/tuning", "vrf": "plugins/meta/vrf", "integration": "integration",
}

// withModules are the suites that need devices of kinds which the kernel of the test machines lacks. They run in the virtual machine.
var withModules = []string{"dummy", "host-device", "ipvlan", "macvlan", "sbr", "tuning", "vlan", "vrf"} //nolint:gochecknoglobals // a constant

// TestSuites runs each suite with the reference's plugins and with cnibox's.
func TestSuites(t *testing.T) {
	root := repository(t, "bin/suites/integration.test", "bin/peers/bridge")
	for name, dir := range suites {
		if slices.Contains(withModules, name) != (os.Getenv("CNIBOX_TEST_VM") != "") {
			continue
		}
		suite{name: name, built: filepath.Join(root, "bin/suites"), dir: dir, plugin: name}.judge(t, root)
	}
}

// TestOVSSuites runs the suites of ovs-cni with its plugin and with cnibox's. Those of the mirror plugins call them after the judged plugin. Its
// other suites are not here: pkg/utils tests functions of its own, and tests needs a cluster with its image.
func TestOVSSuites(t *testing.T) {
	root := repository(t, "bin/ovs-suites/ovs-mirror-consumer.test", "bin/peers/ovs-cni")
	for _, name := range []string{"plugin", "mirror-producer", "mirror-consumer"} {
		suite{name: "ovs-" + name, built: filepath.Join(root, "bin/ovs-suites"), dir: "pkg/" + name, plugin: "ovs-cni", ovs: true}.judge(t, root)
	}
}

// repository returns the directory with go.mod. The named files must be there.
func repository(t *testing.T, needs ...string) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range needs {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			t.Fatalf("%v: run make %s", err, need)
		}
	}
	return root
}

// suite is a test suite of one package.
type suite struct {
	// name is its name in testdata/accepted.txt. The file NAME.test in the directory built is its program.
	name, built string
	// dir is its directory in the sources, built/src.
	dir string
	// plugin is the file name of the plugin that it judges.
	plugin string
	// ovs means that it needs Open vSwitch.
	ovs bool
}

// judge runs the suite with the reference's plugins and with cnibox's. A spec that passes with the reference's may fail with
// cnibox's only if testdata/accepted.txt lists it with a reason, and such a spec must fail. A spec that fails when the reference's own
// plugin is executed, and not called as a function, judges nothing.
func (s suite) judge(t *testing.T, root string) {
	peers, err := os.ReadDir(filepath.Join(root, "bin/peers"))
	if err != nil {
		t.Fatal(err)
	}
	accepted := readAccepted(t)[s.name]
	t.Run(s.name, func(t *testing.T) {
		var reference, ours map[string]string
		t.Run("reference", func(t *testing.T) {
			reference = s.run(t, plugins(t, s.built, peers, func(name string) string { return filepath.Join(root, "bin/peers", name) }))
		})
		t.Run("cnibox", func(t *testing.T) {
			ours = s.run(t, plugins(t, s.built, peers, func(string) string { return filepath.Join(root, "bin/cnibox") }))
		})
		judged := 0
		fails := map[string]bool{} // by spec, of those that judge
		for name, message := range reference {
			if message != "" {
				t.Logf("judges nothing: %s: %s", name, message)
				continue
			}
			judged++
			spec := version.ReplaceAllString(name, "$1")
			fails[spec] = fails[spec] || ours[name] != ""
			if ours[name] != "" && !slices.Contains(accepted, spec) {
				t.Errorf("%s: %s", name, ours[name])
			}
		}
		for _, spec := range accepted {
			if failed, judges := fails[spec]; judges && !failed {
				t.Errorf("testdata/accepted.txt: the spec %q does not fail: remove the line", spec)
			}
		}
		t.Logf("%d of %d specs pass with the reference's plugins, and %d with cnibox's", judged, len(reference), passed(ours))
		if judged == 0 {
			t.Error("no spec judges cnibox")
		}
	})
}

// plugins makes the directory where the suites look for plugins. Each has the name of one of the reference's and is what file returns.
func plugins(t *testing.T, suites string, peers []os.DirEntry, file func(name string) string) string {
	t.Helper()
	dir := filepath.Join(suites, "src/bin") // where the integration suite looks
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"ping": "/bin/busybox", "ping6": "/bin/busybox"}
	for _, p := range peers {
		links[p.Name()] = file(p.Name())
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func passed(specs map[string]string) (n int) {
	for _, message := range specs {
		if message == "" {
			n++
		}
	}
	return n
}

// version is the CNI version in the name of a spec.
var version = regexp.MustCompile(`\[\d\.\d\.\d\] | \d\.\d\.\d(:)`)

// run returns the message of each spec that ran, which is empty if it passed. The suite runs in namespaces of its own, with empty
// directories for the files that it and the plugins keep. One that needs Open vSwitch runs in the test's network namespace, in which that is.
func (s suite) run(t *testing.T, plugins string) map[string]string {
	t.Helper()
	report, plugin := filepath.Join(s.built, s.name+".json"), filepath.Join(plugins, s.plugin)
	_ = os.Remove(report)
	options, database := []string{"--net"}, ""
	if s.ovs {
		o := ovs.Start(t)
		o.WriteVsctl(t, filepath.Join(plugins, "ovs-vsctl"))
		options, database = nil, filepath.Dir(o.Socket)
	}
	const script = `set -e
mount -t tmpfs -o mode=0755 tmpfs /run
if [ "$1" ]; then
	mkdir /run/openvswitch
	mount --bind "$1" /run/openvswitch
fi
shift
for d in /tmp /var/lib/cni /var/lib/cnibox; do mkdir -p $d; mount -t tmpfs -o mode=0755 tmpfs $d; done
ip link set lo up
exec "$@"`
	cmd := exec.Command("unshare", append(options, "--mount", "--propagation", "private", "sh", "-c", script, "sh", database,
		filepath.Join(s.built, s.name+".test"), "--ginkgo.json-report="+report, "--ginkgo.timeout=5m")...)
	cmd.Dir = filepath.Join(s.built, "src", s.dir)
	cmd.Env = append(os.Environ(), "CNIBOX_PLUGIN="+plugin, "CNI_PATH="+plugins, "PATH="+plugins+":"+s.built+":"+os.Getenv("PATH"),
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
	specs := map[string]string{}
	for _, r := range reports {
		for _, s := range r.SpecReports {
			switch name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), ": "); {
			case s.State == "skipped", s.State == "pending", s.State == "passed" && name == "": // what prepares a suite has no name
			case s.State == "passed":
				specs[name] += ""
			default:
				specs[name] += fmt.Sprintf("%s: %.900s", s.State, s.Failure.Message)
			}
		}
	}
	return specs
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
