package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     string // the verdict, empty if all is well
		passed   int
	}{
		{name: "passes", in: "M ready 6.1 3\nM begin a\n--- PASS: TestA\nPASS\nM end a 0\nM begin b\n--- PASS: TestB\nM end b 0\nM done\n", passed: 2},
		{name: "fails", in: "M begin a\n--- FAIL: TestA\nM end a 1\nM begin b\n--- PASS: TestB\nM end b 0\nM done\n", want: `tests of "a": exit status 1`, passed: 1},
		{name: "output without a newline", in: "M begin a\n--- PASS: TestA\nwordsM end a 0\nM begin b\n--- PASS: TestB\nM end b 0\nM done\n", passed: 2},
		{name: "skips below a test", in: "M begin a\n    --- SKIP: TestA/x (0.00s)\n--- PASS: TestA\nM end a 0\nM begin b\n--- PASS: TestB\nM end b 0\nM done\n", want: "skipped: TestA/x (0.00s)", passed: 1},
		{name: "runs nothing", in: "M begin a\nPASS\nM end a 0\nM begin b\n--- PASS: TestB\nM end b 0\nM done\n", want: `tests of "a": none ran`, passed: 1},
		{name: "panics", in: "M begin a\n--- PASS: TestA\nM end a 0\nM begin b\n--- PASS: TestB\n", want: "tests of \"b\": did not end\nmachine stopped before its end", passed: 1},
		{name: "lacks a module", in: "M fault load module veth\nM begin a\n--- PASS: TestA\nM end a 0\nM begin b\n--- PASS: TestB\nM end b 0\nM done\n", want: "fault load module veth", passed: 2},
		{name: "a test forges the end", in: "M begin a\nend a 0\ndone\n", want: "did not end"},
		{name: "says nothing", in: "", want: "machine stopped before its end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReport("M", []suite{{pkg: "a"}, {pkg: "b"}})
			if err := r.read(strings.NewReader(tc.in), &bytes.Buffer{}); err != nil {
				t.Fatal(err)
			}
			err := r.verdict()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("verdict is %v, want %q", err, tc.want)
			}
			if r.passed != tc.passed {
				t.Errorf("%d suites passed, want %d", r.passed, tc.passed)
			}
		})
	}
}

// TestNameSuites: a package's own expression replaces -run, and an error in the arguments is reported before a machine boots.
func TestNameSuites(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    options
		want []suite
		err  string
	}{
		{name: "plain", o: options{pkgs: []string{"./a", "./b/c/"}}, want: []suite{{pkg: "a"}, {pkg: "b/c"}}},
		{
			name: "expressions", o: options{run: "TestX", pkgs: []string{"./a", "./b=TestY/p=q|TestZ/(r|s t)", "./c="}},
			want: []suite{{pkg: "a", run: "TestX"}, {pkg: "b", run: "TestY/p=q|TestZ/(r|s t)"}, {pkg: "c"}},
		},
		{name: "outside", o: options{pkgs: []string{"../a"}}, err: "give a directory of the repository"},
		{name: "many", o: options{pkgs: []string{"./..."}}, err: "give a directory of the repository"},
		{name: "twice", o: options{pkgs: []string{"./a=TestX", "a=TestY"}}, err: "is named twice"},
		{name: "no expression", o: options{pkgs: []string{"./a=Test("}}, err: "missing closing )"},
		{name: "two lines", o: options{pkgs: []string{"./a=Test\nx"}}, err: "more than one line"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := nameSuites(tc.o)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error is %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(suite{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestClosure(t *testing.T) {
	dep := []byte("kernel/net/nft-nat.ko.xz: kernel/net/nf_nat.ko.xz kernel/lib/crc.ko\nkernel/net/nf_nat.ko.xz: kernel/lib/crc.ko\nkernel/lib/crc.ko:\nkernel/x.ko:\n")
	got, err := closure(dep, []byte("kernel/drivers/virtio-pci.ko\n"), []string{"nft_nat", "crc", "virtio_pci", "nft_counter?"})
	want := []string{"kernel/lib/crc.ko", "kernel/net/nf_nat.ko.xz", "kernel/net/nft-nat.ko.xz"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("closure: %v\n%s", err, diff)
	}
	if _, err := closure(dep, nil, []string{"absent"}); err == nil {
		t.Error("an unknown module is no error")
	}
}

func TestModuleNames(t *testing.T) {
	got := moduleNames("# words\nfirst # second\n\nthird fourth\n")
	if diff := cmp.Diff([]string{"first", "third", "fourth"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestArchive unpacks the archive with another program, as the kernel would.
func TestArchive(t *testing.T) {
	var disk bytes.Buffer
	a := &archive{w: &disk, dirs: map[string]bool{}}
	a.data("a/b/one", 0o755, []byte("1"))
	a.data("a/three", 0o644, []byte("333"))
	a.data("a/four", 0o644, []byte("4444"))
	a.tree("t", ".", nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("busybox", "cpio", "-i", "-d")
	cmd.Dir, cmd.Stdin = t.TempDir(), &disk
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	list := exec.Command("sh", "-c", "cat a/b/one a/three a/four; test -x a/b/one; cmp t/vm_test.go "+absolute(t, "vm_test.go"))
	list.Dir = cmd.Dir
	if out, err := list.CombinedOutput(); err != nil || string(out) != "13334444" {
		t.Errorf("unpacked files: %v, %q", err, out)
	}
	a.file("x", "/nonexistent")
	if a.close() == nil {
		t.Error("a missing file is no error")
	}
}

func absolute(t *testing.T, file string) string {
	t.Helper()
	p, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
