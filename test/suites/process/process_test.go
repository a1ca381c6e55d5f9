// Package process tests the built binary through its links, as runtimes and people use it. Everything that touches the network runs
// in network and mount namespaces of its own.
package process

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/store"
)

// buildTags and ldFlags are those of the product, as in the Makefile.
const (
	buildTags = "urfave_cli_no_docs"
	ldFlags   = "-s -w"
)

// version is what a binary built without version control prints.
const version = "(devel)"

// binDir holds the built binary and a link for every role.
var binDir string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "cnibox-process-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binDir = dir
	if err := makeBinary(filepath.Join(dir, "cnibox")); err != nil {
		return 0, err
	}
	for _, name := range names() {
		if err := os.Symlink("cnibox", filepath.Join(dir, name)); err != nil {
			return 0, err
		}
	}
	return m.Run(), nil
}

// makeBinary builds the binary. On a machine without Go, CNIBOX_TEST_BINARY names one that was built with the same options.
func makeBinary(file string) error {
	if built := os.Getenv("CNIBOX_TEST_BINARY"); built != "" {
		return os.Symlink(built, file)
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", buildTags, "-ldflags", ldFlags, "-o", file, "../../..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// names lists every name of every role.
func names() (out []string) {
	for _, r := range all.Table().Roles() {
		out = append(out, r.Names...)
	}
	return out
}

func TestTable(t *testing.T) {
	if err := all.Table().Validate(); err != nil {
		t.Fatal(err)
	}
	if len(names()) < 3 {
		t.Fatalf("roles %q", names())
	}
	s := store.New(store.Options{RunDir: filepath.Join(t.TempDir(), "none"), BootID: "11111111-2222-3333-4444-555555555555"})
	for _, name := range names() {
		if err := s.CountCall(t.Context(), name, string(roles.Status), 0, 0); err != nil {
			t.Error(err) // the name is too long for a slot
		}
	}
}

// call runs a link with an environment and nothing on standard input.
func call(t *testing.T, name string, env ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, name))
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s%s", name, err, &out, &errs)
	}
	return out.String(), errs.String()
}

func TestEveryRoleTellsWhatItIs(t *testing.T) {
	for _, r := range all.Table().Roles() {
		if r.New == nil {
			continue
		}
		for _, name := range r.Names {
			reference := r.Reference
			if reference == "" {
				reference = version
			}
			stdout, stderr := call(t, name)
			if want := fmt.Sprintf("CNI %s plugin %s\ncnibox %s\n", name, reference, version); stdout != "" || stderr != want {
				t.Errorf("%s: stdout %q, stderr %q, want %q", name, stdout, stderr, want)
			}
		}
	}
}

func TestEveryRoleAnswersVersion(t *testing.T) {
	for _, r := range all.Table().Roles() {
		if r.New == nil {
			continue
		}
		stdout, stderr := call(t, r.Name(), "CNI_COMMAND=VERSION")
		var v struct {
			CNIVersion        string
			SupportedVersions []string
		}
		if err := json.Unmarshal([]byte(stdout), &v); err != nil {
			t.Fatal(err)
		}
		if stderr != "" || v.CNIVersion != roles.ResultVersion || strings.Join(v.SupportedVersions, " ") != "0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0" {
			t.Errorf("%s: %+v, stderr %q", r.Name(), v, stderr)
		}
	}
}

// TestVersionIsRecorded: the binary of `make build` prints the version that the go command recorded in it. A build with
// `go install` records the version of the module.
func TestVersionIsRecorded(t *testing.T) {
	const file = "../../../bin/cnibox"
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: make build makes it", err)
	}
	out, err := exec.CommandContext(t.Context(), file, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if info.Main.Version == "" || !strings.HasPrefix(string(out), "cnibox "+info.Main.Version+" (") {
		t.Errorf("the file records the version %q and prints %q", info.Main.Version, out)
	}
}

// TestScripts runs testdata/*.txtar.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("BIN", binDir)
			e.Setenv("PATH", binDir+":"+os.Getenv("PATH"))
			e.Setenv("CNI_PATH", binDir)
			e.Setenv("CNIBOX_RUN_DIR", filepath.Join(e.WorkDir, "run"))
			e.Setenv("CNIBOX_STATE_DIR", filepath.Join(e.WorkDir, "lib"))
			return nil
		},
	})
}
