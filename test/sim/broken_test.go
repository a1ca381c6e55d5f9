package sim_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// quick returns the patches of each simulation that it finds within few seeds.
func quick() []string { return []string{"claim-age.patch", "version.patch", "listing.patch"} }

// TestBroken breaks the program with each patch of testdata, in a copy. The simulation in the package that the patch
// names finds it. It runs in `make sim`, since it builds the program, and without FULL=1 for the quick patches.
func TestBroken(t *testing.T) {
	if os.Getenv("CNIBOX_SEEDS") == "" {
		t.Skip("run 'make sim'")
	}
	patches, err := filepath.Glob("testdata/*.patch")
	if err != nil || len(patches) < 12 {
		t.Fatal(patches, err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range patches {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			pkg, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), ":")
			_, file, _ := strings.Cut(string(text), "--- a/")
			file, _, _ = strings.Cut(file, "\n")
			replaced := overlay(t, root, file, string(text))
			if os.Getenv("CNIBOX_BROKEN") != "all" && !slices.Contains(quick(), filepath.Base(path)) {
				return // that it applies is enough here
			}
			run(t, root, "go", "test", "-vet", "off", "-overlay", replaced, "-count", "1", "-run", "^TestSim$", pkg)
		})
	}
}

// overlay applies a patch to a copy of a file, and returns an overlay of the go command with it.
func overlay(t *testing.T, root, file, patch string) string {
	t.Helper()
	dir := t.TempDir()
	broken := filepath.Join(dir, file)
	text, err := os.ReadFile(filepath.Join(root, file))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(broken), 0o700)
	}
	if err == nil {
		err = os.WriteFile(broken, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	apply := exec.Command("git", "apply", "--unsafe-paths", "-")
	apply.Dir, apply.Stdin = dir, strings.NewReader(patch)
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s", err, out)
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, file): broken}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a simulation, which must fail and print its seed.
func run(t *testing.T, root string, args ...string) {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Dir = root
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Repeat it with SEED=") {
		t.Errorf("the simulation does not find it: %v\n%s", err, out)
	}
}
