package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// link links a package, with its symbols and without.
func link(t *testing.T, pkg string) (symbols, program string) {
	t.Helper()
	dir := t.TempDir()
	symbols, program = filepath.Join(dir, "symbols"), filepath.Join(dir, "program")
	for out, flags := range map[string]string{symbols: "-w", program: "-s -w"} {
		if said, err := exec.Command("go", "build", "-trimpath", "-ldflags", flags, "-o", out, pkg).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v: %s", err, said)
		}
	}
	return symbols, program
}

func says(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.Command(program).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

const pkg = "github.com/cnibox/cnibox/internal/initorder/testdata/prog"

func TestOrder(t *testing.T) {
	symbols, program := link(t, "./testdata/prog")
	if got := says(t, program); got != "a b main" {
		t.Errorf("as linked: %q", got)
	}
	for range 2 { // the second time there is nothing to do
		if err := reorder(symbols, program, strings.NewReader(pkg+"/b\n")); err != nil {
			t.Fatal(err)
		}
		if got := says(t, program); got != "b a main" {
			t.Errorf("with b first: %q", got)
		}
	}
}

// TestUnasked has the runtime's function return at once, and leaves a program without it and one of another machine alone.
func TestUnasked(t *testing.T) {
	symbols, program := link(t, "./testdata/prog")
	tab, err := readTable(symbols)
	if err != nil || tab.unasked.size == 0 {
		t.Fatalf("%s of this toolchain: %+v, %v", unasked, tab, err)
	}
	if err := reorder(symbols, program, strings.NewReader(pkg+"/b\n")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	head := func() []byte {
		b, err := tab.unasked.in(content)
		if err != nil {
			t.Fatal(err)
		}
		return b[:4]
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if ret := returns(want); len(ret) == 0 || !bytes.HasPrefix(head(), ret) {
		t.Errorf("the function begins with %x", head())
	}
	const machine = 18 // e_machine in ELF's header
	for is, begins := range map[elf.Machine]string{elf.EM_AARCH64: "\xc0\x03\x5f\xd6", elf.EM_RISCV: "\x00\x00\x00\x00"} {
		clear(head())
		binary.LittleEndian.PutUint16(content[machine:], uint16(is))
		if err := tab.leaveOut(content); err != nil || string(head()) != begins {
			t.Errorf("%v: %x, %v", is, head(), err)
		}
	}
	tab.unasked = symbol{}
	if err := tab.leaveOut(content); err != nil {
		t.Error(err)
	}
}

// What is refused is left as it was.
func TestRefused(t *testing.T) {
	symbols, program := link(t, "./testdata/prog")
	others, other := link(t, ".")
	noise := filepath.Join(t.TempDir(), "noise")
	if err := os.WriteFile(noise, []byte("\x7fELF but nothing else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ symbols, program, list, want string }{
		"no list":               {symbols, program, "", "empty"},
		"no symbols":            {program, program, "x", "no symbol"},
		"of another program":    {others, program, "x", "table"},
		"symbols of another":    {symbols, other, "x", "table"},
		"no program":            {symbols, noise, "x", "change"},
		"no file":               {symbols, filepath.Join(t.TempDir(), "none"), "x", "no such file"},
		"noise for the symbols": {noise, program, "x", "read the symbols"},
	} {
		before, _ := os.ReadFile(c.program)
		err := reorder(c.symbols, c.program, strings.NewReader(c.list))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if after, _ := os.ReadFile(c.program); string(after) != string(before) {
			t.Errorf("%s: the program was changed", name)
		}
	}
}
