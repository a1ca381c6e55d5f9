package cli

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestParallelInstalls: during many installations at once, with both kinds of link, every
// plugin always exists, because an installation replaces names by renames only.
func TestParallelInstalls(t *testing.T) {
	dir := t.TempDir()
	install := func(link string) error {
		var errs bytes.Buffer
		p := Process{
			Table: testTable(), Args: []string{"install", "--dir", dir, "--link", link},
			Stdout: new(bytes.Buffer), Stderr: &errs, Executable: "/proc/self/exe",
		}
		if code := Main(t.Context(), p); code != ExitOK {
			return fmt.Errorf("exit code %d: %s", code, errs.String())
		}
		return nil
	}
	if err := install("symlink"); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(watch), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_DELETE|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for i := range 16 {
		writers.Go(func() {
			for range 5 {
				if err := install([]string{"symlink", "hard"}[i%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	buf := make([]byte, 1<<20)
	n, err := events.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	renamed := 0
	for ev := buf[:n]; len(ev) > 0; {
		mask, length := binary.NativeEndian.Uint32(ev[4:]), binary.NativeEndian.Uint32(ev[12:])
		name := strings.TrimRight(string(ev[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length]), "\x00")
		ev = ev[unix.SizeofInotifyEvent+length:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			t.Fatal("too many events to tell")
		case mask&unix.IN_MOVED_TO != 0:
			renamed++
		case !strings.HasPrefix(name, "."):
			t.Errorf("%q was missing for a moment", name)
		}
	}
	if renamed == 0 {
		t.Error("nothing was renamed")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	if len(entries) != 5 {
		t.Errorf("%d entries, want cnibox and four links", len(entries))
	}
}

// TestInstallFailsWhole: if the last name cannot be staged, no name changes.
func TestInstallFailsWhole(t *testing.T) {
	dir := t.TempDir()
	s := &stager{dir: dir, kind: linkSymbolic}
	d := newPluginDir(dir, "/proc/self/exe")
	if err := s.binary(d, "/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	if err := s.link(pluginFile{name: "a", standing: absent}); err != nil {
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
	d := newPluginDir(dir, "/proc/self/exe")
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
	for name, want := range map[string]standing{
		"none": absent, "empty": foreign, "text": foreign, "short": foreign, "elf": foreign, "dir": blocked,
		"todir": foreign, "toself": ours, "dangling": ours, "stray": foreign, "a": foreign, "copy": ours,
	} {
		f, err := d.look(name)
		if err != nil || f.standing != want {
			t.Errorf("look(%q) = %s (%s), %v; want %s", name, f.standing, f.what, err, want)
		}
		if want == foreign && f.what == "" {
			t.Errorf("look(%q) does not say what it is", name)
		}
	}
	if _, err := d.look("none/below"); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	if main != modulePath+"/roles/cli.test" {
		t.Errorf("main package %q", main)
	}
	text := strings.Repeat("s", 16) + "path\texample.com/x\nmod\texample.com\tv1.2.3\n" + strings.Repeat("s", 16)
	record := append(buildInfo("\x06go1.26"), append([]byte{byte(len(text))}, text...)...)
	for _, at := range []int{0, 16, 1<<20 - 16, 1 << 20, 3<<20 - 32} {
		data := append(make([]byte, at), record...)
		if main, version := goProgram(executable(data)); main != "example.com/x" || version != "v1.2.3" {
			t.Errorf("record at %d: %q %q", at, main, version)
		}
	}
	for name, r := range map[string]io.ReaderAt{
		"nothing": bytes.NewReader(nil), "no executable": bytes.NewReader(record), "empty": executable(nil),
		"magic only": executable([]byte(buildMagic)), "not aligned": executable(append([]byte("x"), record...)),
		"cut": executable(record[:60]), "huge length": executable(buildInfo("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")),
	} {
		if main, version := goProgram(r); main != "" || version != "" {
			t.Errorf("%s: %q %q", name, main, version)
		}
	}
}

// buildMagic is the start of a Go program's build information, see package debug/buildinfo.
const buildMagic = "\xff Go buildinf:"

// buildInfo is build information that begins with the given text. Byte 15 announces texts behind a header of 32 bytes.
func buildInfo(text string) []byte {
	return append([]byte(buildMagic+"\x08\x02"+strings.Repeat("\x00", 16)), text...)
}

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
	f.Add(buildInfo("\x03go1\x21" + strings.Repeat("x", 40)))
	f.Fuzz(func(_ *testing.T, data []byte) {
		goProgram(executable(data))
		goProgram(bytes.NewReader(data))
	})
}

// TestInstallImage: --root writes below the image's root only, and follows no link out of it.
func TestInstallImage(t *testing.T) {
	image, outside := t.TempDir(), t.TempDir()
	conflist := filepath.Join(t.TempDir(), "10-net.conflist")
	if err := os.WriteFile(conflist, []byte(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"testbridge"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	install := func(args ...string) (int, string) {
		var errs bytes.Buffer
		p := Process{
			Table: testTable(), Args: append([]string{"install", "--root", image, "--conflist", conflist}, args...),
			Stdout: new(bytes.Buffer), Stderr: &errs, Executable: "/proc/self/exe",
		}
		return Main(t.Context(), p), errs.String()
	}
	if code, text := install(); code != ExitOK || text != "" {
		t.Fatalf("exit code %d: %s", code, text)
	}
	for _, f := range []string{"opt/cni/bin/cnibox", "opt/cni/bin/testbridge", "etc/cni/net.d/10-net.conflist"} {
		if _, err := os.Stat(filepath.Join(image, f)); err != nil {
			t.Error(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(image, "out")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--dir", "/out/bin"}, {"--conf-dir", "/out"}, {"--runtime", "podman"}} {
		if code, text := install(args...); code == ExitOK || !strings.Contains(text, "image") {
			t.Errorf("%q: exit code %d: %s", args, code, text)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside of the image: %v, %v", left, err)
	}
}
