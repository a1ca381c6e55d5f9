package docs

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cnibox/cnibox/"

// apart has the packages that no plugin is linked from, since a reader of a role would have to know them, with what they are for. A package
// includes those below it.
func apart() map[string]string {
	return map[string]string{
		"netops/look":                 looks,
		"netops/internal/verdict":     looks,
		"netops/tunnel":               looks,
		"roles/cli":                   looks,
		"roles/see":                   looks,
		"roles/netpolicy/control":     looks,
		"netops/overlay":              cluster,
		"netops/podfilter":            cluster,
		"roles/cluster/policy":        cluster,
		"roles/cluster/ranges":        cluster,
		"roles/cluster/agent":         cluster,
		"roles/cluster/nodeipam":      cluster,
		"roles/cluster/process":       cluster,
		"store/cluster":               cluster,
		"roles/call/migrate":          "takes over from the reference plugins: a role reaches it through roles.Host",
		"test":                        "tests",
		"roles/rolestest":             "tests",
		"netops/netopstest":           "tests",
		"netops/internal/nstest":      "tests",
		"store/cluster/etcd/etcdtest": "tests",
	}
}

const (
	looks   = "looks at a node and is for commands"
	cluster = "knows other nodes and is for daemons"
)

// TestClosures prints how many lines of this module each role is compiled from, and refuses packages that a plugin does not need.
// `make count` prints them too.
func TestClosures(t *testing.T) {
	packages := productPackages(t)
	var paths []string
	for path := range packages {
		if kind, name, ok := strings.Cut(strings.TrimPrefix(path, "roles/"), "/"); ok && slices.Contains([]string{"iface", "ipam", "chained", "meta"}, kind) && !strings.Contains(name, "/") {
			paths = append(paths, path)
		}
	}
	if len(paths) < 20 {
		t.Fatalf("these are not all roles: %q", paths)
	}
	for _, path := range append(slices.Sorted(slices.Values(paths)), "roles/call/dispatch", "roles/call/node") {
		lines := packages[path].lines
		for _, dep := range packages[path].deps {
			lines += packages[dep].lines
			if why := whyApart(dep); why != "" && (why != cluster || !usesRegistry(path)) {
				t.Errorf("%s is compiled from %s, which %s", path, dep, why)
			}
		}
		t.Logf("closure: %7d lines of %s", lines, path)
	}
}

// usesRegistry reports whether the addresses or the networks of a role are in the registry of a cluster.
func usesRegistry(role string) bool {
	return slices.Contains([]string{"roles/ipam/clusterrange", "roles/ipam/cloud", "roles/meta/multi"}, role)
}

// whyApart returns what a package of apart is for, or "".
func whyApart(path string) string {
	for prefix, why := range apart() {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return why
		}
	}
	return ""
}

// TestFloors: the folders of roles stand on each other in the order of the table in docs/design.md. A package imports none of a later folder.
func TestFloors(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs/design.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| folder of `roles` |")
	floors := map[string]int{}
	for i, row := range strings.Split(table, "\n")[2:] {
		names, _, found := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		if !found {
			break
		}
		for _, name := range strings.Split(names, ",") {
			floors["roles/"+strings.Trim(name, " `")] = i + 1
		}
	}
	folder := func(path string) (string, bool) {
		path, is := strings.CutPrefix(path, "roles/")
		name, _, _ := strings.Cut(path, "/")
		return "roles/" + name, is
	}
	packages := productPackages(t)
	for path, p := range packages {
		of, is := folder(path)
		if !is {
			continue
		}
		if floors[of] == 0 {
			t.Errorf("docs/design.md does not have %s in its table", of)
		}
		for _, dep := range p.deps {
			if on, is := folder(dep); is && floors[on] > floors[of] {
				t.Errorf("%s imports %s, which stands on it", path, dep)
			}
		}
	}
}

// productPackage is a package of this module without its tests.
type productPackage struct {
	lines int
	deps  []string // of this module, direct and indirect
}

// productPackages reads all packages of this module by their paths.
func productPackages(t *testing.T) map[string]productPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-tags", "urfave_cli_no_docs", "-json=ImportPath,Dir,GoFiles,Deps", "./...")
	cmd.Dir = repository
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]productPackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir string
			GoFiles, Deps   []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		var one productPackage
		for _, f := range p.GoFiles {
			b, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			one.lines += strings.Count(string(b), "\n")
		}
		for _, dep := range p.Deps {
			if path, ok := strings.CutPrefix(dep, module); ok {
				one.deps = append(one.deps, path)
			}
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = one
	}
}

// TestOneRole links a program with one role, and prints how much machine code it has.
func TestOneRole(t *testing.T) {
	program := filepath.Join(t.TempDir(), "dummy")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "urfave_cli_no_docs", "-ldflags", "-s -w", "-o", program, "./test/cmd/onerole")
	cmd.Dir, cmd.Env = repository, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	call := exec.CommandContext(t.Context(), program)
	call.Env, call.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(`{"cniVersion": "1.1.0"}`)
	if out, err := call.Output(); err != nil || !strings.Contains(string(out), `"supportedVersions"`) {
		t.Errorf("VERSION: %v: %s", err, out)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Logf("closure: %7d bytes of machine code in a program with dummy alone", f.Section(".text").Size)
}
