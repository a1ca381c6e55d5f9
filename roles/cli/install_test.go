package cli

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
