package plugindir

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestInstallFailsWhole: if the last name cannot be staged, no name changes.
func TestInstallFailsWhole(t *testing.T) {
	dir := t.TempDir()
	s := &stager{Dir: Open(dir, "/proc/self/exe"), kind: Symbolic}
	if err := s.binary(); err != nil {
		t.Fatal(err)
	}
	if err := s.link(File{Name: "a", Standing: Absent}); err != nil {
		t.Fatal(err)
	}
	s.clean()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestLook(t *testing.T) {
	dir := t.TempDir()
	d := Open(dir, "/proc/self/exe")
	path := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(path("empty"), nil, 0o755))
	must(os.WriteFile(path("text"), []byte("hello"), 0o755))
	must(os.WriteFile(path("short"), []byte("#"), 0o755))
	must(os.WriteFile(path("elf"), []byte("\x7fELF and nothing else"), 0o755))
	must(os.Mkdir(path("dir"), 0o755))
	must(os.Symlink("dir", path("todir")))
	must(os.Symlink("/proc/self/exe", path("toself")))
	must(os.Symlink("/gone/cnibox", path("dangling")))
	must(os.Symlink("/gone/other", path("stray")))
	must(os.Symlink("b", path("a")))
	must(os.Symlink("a", path("b")))
	if out, err := os.Create(path("copy")); err == nil {
		in, err := os.Open("/proc/self/exe")
		must(err)
		_, err = out.ReadFrom(in)
		must(errors.Join(err, in.Close(), out.Close()))
	}
	for name, want := range map[string]Standing{
		"none": Absent, "empty": Foreign, "text": Foreign, "short": Foreign, "elf": Foreign, "dir": Blocked,
		"todir": Foreign, "toself": Ours, "dangling": Ours, "stray": Foreign, "a": Foreign, "copy": Ours,
	} {
		f, err := d.Look(name)
		if err != nil || f.Standing != want {
			t.Errorf("look(%q) = %s (%s), %v; want %s", name, f.Standing, f.What, err, want)
		}
		if want == Foreign && f.What == "" {
			t.Errorf("look(%q) does not say what it is", name)
		}
	}
	if _, err := d.Look("none/below"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("look below nothing: %v", err)
	}
}

// TestGoProgram reads this test's own build information and that of small executables, and is not misled by similar texts.
func TestGoProgram(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	main, _ := goProgram(bytes.NewReader(self))
	if main != modulePath+"/roles/call/plugindir.test" {
		t.Errorf("main package %q", main)
	}
	record := buildInfo("path\texample.com/x\nmod\texample.com\tv1.2.3\n")
	for _, at := range []int{0, 16, 3*maxInfo - 40, 3 * maxInfo, 4*maxInfo - 8, 3<<20 - 32} {
		data := append(make([]byte, at), record...)
		if main, version := goProgram(executable(data)); main != "example.com/x" || version != "v1.2.3" {
			t.Errorf("record at %d: %q %q", at, main, version)
		}
	}
	for name, r := range map[string]io.ReaderAt{
		"nothing": bytes.NewReader(nil), "no executable": bytes.NewReader(record), "empty": executable(nil),
		"mark only": executable([]byte(infoStart)), "cut": executable(record[:60]), "no text": executable(buildInfo("\x00\x01mod\n")),
	} {
		if main, version := goProgram(r); main != "" || version != "" {
			t.Errorf("%s: %q %q", name, main, version)
		}
	}
}

// buildInfo is a text between the marks that the linker puts around build information.
func buildInfo(text string) []byte { return []byte(infoStart + text + infoEnd) }

// executable is an ELF file whose only segment has the given bytes as writable data.
func executable(data []byte) io.ReaderAt {
	const header, segment = 64, 56
	size := uint64(len(data))
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	var b bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Phoff: header, Ehsize: header, Phentsize: segment, Phnum: 1,
		},
		elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: header + segment,
			Vaddr: 1 << 20, Filesz: size, Memsz: size, Align: 16,
		},
		data,
	} {
		_ = binary.Write(&b, binary.LittleEndian, part) // a buffer takes all
	}
	return bytes.NewReader(b.Bytes())
}

func FuzzBuildInfo(f *testing.F) {
	f.Add(buildInfo("path\tx"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		goProgram(executable(data))
		goProgram(bytes.NewReader(data))
	})
}
