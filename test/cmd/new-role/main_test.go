package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite: the written package builds and passes its suite without changes.
func TestWrite(t *testing.T) {
	root := copyTree(t)
	r := role{Name: "sketch", Kind: "tun"} // every kernel has this kind
	if err := r.write(root); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, table))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "routed.Role},\n\t\t{Names: \"sketch\", Role: sketch.Role},\n\t\t{Names: \"tap\", ") {
		t.Errorf("%s:\n%s", table, b)
	}
	if formatted := run(t, root, "gofmt", "-l", table, r.dir()); formatted != "" {
		t.Errorf("not formatted: %s", formatted)
	}
	run(t, root, "go", "vet", "-tags", tags, "./roles/all", "./"+r.dir())
	out := run(t, root, "go", "test", "-tags", tags, "-vet", "off", "-v", "-run", "^Test(Golden|Role)$/^(addresses|check|faults|dual)$/^(life|del|gc|tamper)", "./"+r.dir())
	for _, want := range []string{"--- PASS: TestGolden/addresses", "--- PASS: TestRole/dual/life"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if err := r.write(root); err == nil {
		t.Error("the package was written a second time")
	}
}

// TestNames: a name is a CNI type and the name of a package.
func TestNames(t *testing.T) {
	for _, name := range []string{"", "Veth", "my-role", "a/b", "7veth"} {
		if err := (role{Name: name}).write(t.TempDir()); err == nil || !strings.Contains(err.Error(), "lower-case") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// copyTree copies the repository, without its history and build results.
func copyTree(t *testing.T) string {
	t.Helper()
	root, to := "../../..", t.TempDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == ".git" || e.Name() == "bin" {
			continue
		}
		if out, err := exec.Command("cp", "-r", filepath.Join(root, e.Name()), to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return to
}

func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
