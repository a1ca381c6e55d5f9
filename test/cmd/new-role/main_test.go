package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tags are the build tags of the Makefile.
const tags = "urfave_cli_no_docs"

// TestWrite: what is written for each kind of role is formatted and vetted, passes its suite, and agrees with the pages, without changes.
func TestWrite(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for _, c := range []struct {
		role
		line  string
		tests []string
	}{
		{
			role{Name: "sketch", Kind: "interface", Link: "tun"}, // every kernel has this kind
			"routed.Role},\n\t\t{Names: \"sketch\", Role: sketch.Role},\n\t\t{Names: \"sriov\", ",
			[]string{"TestGolden/addresses", "TestRole/dual/life"},
		},
		{
			role{Name: "route-sketch", Kind: "chained"},
			"routeoverride.Role},\n\t\t{Names: \"route-sketch\", Role: routesketch.Role},\n\t\t{Names: \"sbr\", ",
			[]string{"TestGolden/routes", "TestRole/dual/life", "TestRole/dual/tamper/route_gone"},
		},
		{
			role{Name: "a-sketch", Kind: "ipam"},
			"vlan.Role},\n\n\t\t{Names: \"a-sketch\", Role: asketch.Role},\n\t\t{Names: \"cloud-ipam ",
			[]string{"TestFaults", "TestUnderBridge/dual/life", "TestAlone/dual/life"},
		},
	} {
		t.Run(c.Name, func(t *testing.T) {
			root := repository(t)
			if err := c.write(root); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(root, table))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(b), c.line) {
				t.Errorf("%s:\n%s", table, b)
			}
			if formatted := output(t, root, "gofmt", "-l", table, c.dir()); formatted != "" {
				t.Errorf("not formatted: %s", formatted)
			}
			out := output(t, root, "go", "test", "-tags", tags, "-v", "-run", "^(FuzzConf|Test(Golden|Role|UnderBridge|Alone|Faults))$/^(addresses|check|faults|routes|dual|seed.*)$/^(life|del|gc|tamper)", "./"+c.dir())
			for _, want := range c.tests {
				if !strings.Contains(out, "--- PASS: "+want+" ") {
					t.Errorf("%s did not pass:\n%s", want, out)
				}
			}
			output(t, root, "go", "test", "-tags", tags, "-vet", "off", "-run", "^Test(Roles|Tree|PlainGo)$", "./test/suites/docs")
			if err := c.write(root); err == nil {
				t.Error("the package was written a second time")
			}
		})
	}
}

// TestFailed: if a step fails, nothing is changed.
func TestFailed(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	root := repository(t)
	if err := os.Remove(filepath.Join(root, "api/except.txt")); err != nil { // a step reads it
		t.Fatal(err)
	}
	before := listing(t, root)
	err := role{Name: "sketch", Kind: "interface", Link: "dummy"}.write(root)
	if err == nil || !strings.Contains(err.Error(), "except.txt") {
		t.Errorf("the error is %v", err)
	}
	if diff := cmp.Diff(before, listing(t, root)); diff != "" {
		t.Error(diff)
	}
}

// TestNames: a name is a CNI type that no other role has, and without its dashes the name of a package.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"": "lower-case", "Veth": "lower-case", "a_b": "lower-case", "a/b": "lower-case", "7veth": "lower-case", "-a": "lower-case", "a--b": "lower-case",
		"range": "lower-case", "type": "lower-case", "go-to": "lower-case", "flannel": "the role vxlan has", "host-local": "the role host-local has",
	} {
		err := role{Name: name, Kind: "chained"}.write(t.TempDir())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := (role{Name: "veth", Kind: "tun"}).write(t.TempDir()); err == nil || !strings.Contains(err.Error(), "use interface, ipam or chained") {
		t.Errorf("the kind tun: %v", err)
	}
}

// repository returns a copy of the repository.
func repository(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	if err := copyTree("../../..", to); err != nil {
		t.Fatal(err)
	}
	return to
}

// listing returns the names, sizes and times of all files of a directory.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err == nil {
			out = append(out, fs.FormatFileInfo(info)+" "+name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func output(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
