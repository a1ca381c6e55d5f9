package azureview_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cloud/azureview"
	"github.com/cnibox/cnibox/store"
)

// writerEnv makes a process of the test binary attach and detach, and write the
// views, until it is killed. Its value is the node's directory.
const writerEnv = "AZUREVIEW_WRITER"

func runWriter(dir string) int {
	ctx := context.Background()
	h, done, err := node.Open(ctx, node.Options{
		RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "lib"), CacheDirs: []string{filepath.Join(dir, "none")}, Role: "azure-vnet", Program: "v1",
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer done()
	t := new(testing.T)
	for i := 0; ; i++ {
		id := fmt.Sprintf("%08d", os.Getpid()*10+rand.IntN(10))
		err := h.Store.Update(ctx, func(tx *store.Tx) error {
			if i%3 == 2 {
				return tx.DeleteAttachment(store.Key{Network: "azure", ContainerID: id, IfName: "eth0"})
			}
			return tx.PutAttachment(attached(t, "azure", id, "10.240.0.94/16"))
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		both, end := azureview.Batch(ctx, h)
		azureview.Write(both, h, new(azureview.Conf), azureview.Addresses)
		azureview.Write(both, h, new(azureview.Conf), azureview.Network)
		end()
		fmt.Println(i)
	}
}

// Sixteen writers at a time are killed midway, again and again. What a reader finds
// is always whole, and never older than what it found before.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	h, log := open(t, dir)
	change(t, h, func(tx *store.Tx) error { return nil })
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Addresses)
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv("CNIBOX_SOAK")); err == nil {
		rounds = n
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var reader sync.WaitGroup
	reader.Go(func() {
		for last := map[azureview.File]uint64{}; ctx.Err() == nil; {
			for _, f := range []azureview.File{azureview.Network, azureview.Addresses} {
				now := decode[stamped](t, read(t, h, f)).Cnibox.Number
				if now < last[f] {
					t.Errorf("%s: revision %d came after %d", f, now, last[f])
				}
				last[f] = now
			}
		}
	})
	for range rounds {
		var writers sync.WaitGroup
		for i := range 16 {
			writers.Go(func() { killAfter(t, dir, i%8+1) })
		}
		writers.Wait()
	}
	stop()
	reader.Wait()
	change(t, h, func(*store.Tx) error { return nil })
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Addresses)
	got, _ := shown(t, h)
	want, _ := stored(t, h)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("shown %q, want %q", got, want)
	}
	if left := names(t, h.Store.RunDir(), "."); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log)
	}
}

// stamped is what both files tell of the state that they show.
type stamped struct {
	Cnibox struct {
		File   time.Time
		Number uint64
	}
}

// killAfter runs a writer, and kills it as soon as it has said that it changed
// something so often.
func killAfter(t *testing.T, dir string, times int) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), writerEnv+"="+dir)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return
	}
	lines := bufio.NewScanner(out)
	for range times {
		lines.Scan()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	// A loaded machine may keep one of sixteen waiting for longer than its patience.
	for line := range strings.Lines(said.String()) {
		if !strings.Contains(line, "are behind") || !strings.Contains(line, "busy: waited") {
			t.Errorf("writer: %s", line)
		}
	}
}

// names are the names in a directory that begin with a prefix.
func names(t testing.TB, dir, prefix string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			all = append(all, e.Name())
		}
	}
	return all
}

// Of sixteen writers that wait, one writes for all.
func TestCoalescing(t *testing.T) {
	dir := t.TempDir()
	first, _ := open(t, dir)
	change(t, first, func(*store.Tx) error { return nil })
	lock, err := first.Store.LockShared(t.Context(), "azureview"+first.Store.RunDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	renamed := watch(t, first.Store.RunDir())
	var writers sync.WaitGroup
	for i := range 16 {
		h, _ := open(t, dir)
		change(t, h, func(tx *store.Tx) error {
			return tx.PutAttachment(attached(t, "azure", fmt.Sprintf("%08d", i), "10.240.0.94/16"))
		})
		writers.Go(func() { azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network) })
	}
	lock.Unlock()
	writers.Wait()
	if n := renamed(); n != 1 {
		t.Errorf("written %d times, want once", n)
	}
	for _, x := range decode[networkFile](t, read(t, first, azureview.Network)).Network.ExternalInterfaces {
		if n := len(x.Networks["azure"].Endpoints); n != 16 {
			t.Errorf("%d endpoints, want 16", n)
		}
	}
}

// What is asked for within Together is written at its end, both files of one state, and
// each once.
func TestTogether(t *testing.T) {
	h, _ := open(t, t.TempDir())
	change(t, h, func(tx *store.Tx) error { return tx.PutAttachment(attached(t, "azure", "12345678", "10.240.0.94/16")) })
	renamed := watch(t, h.Store.RunDir())
	outer, endOuter := azureview.Batch(t.Context(), h)
	inner, endInner := azureview.Batch(outer, h)
	azureview.Write(inner, h, new(azureview.Conf), azureview.Addresses)
	azureview.Write(outer, h, new(azureview.Conf), azureview.Addresses)
	azureview.Write(inner, h, new(azureview.Conf), azureview.Network)
	endInner()
	if n := renamed(); n != 0 {
		t.Errorf("%d files were written before the end", n)
	}
	endOuter()
	if n := renamed(); n != 2 {
		t.Errorf("%d files were written, want both once", n)
	}
	one, other := *decode[stamped](t, read(t, h, azureview.Network)), *decode[stamped](t, read(t, h, azureview.Addresses))
	if one != other || one.Cnibox.Number == 0 {
		t.Errorf("the files are of the revisions %+v and %+v", one, other)
	}
}

// watch counts the files that were renamed into a directory.
func watch(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func() (n int) {
		buf := make([]byte, 64<<10)
		size, err := unix.Read(fd, buf)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		for at := 0; at < size; n++ { // inotify(7): wd, mask, cookie, len, name
			at += unix.SizeofInotifyEvent + int(buf[at+12]) + int(buf[at+13])<<8
		}
		return n
	}
}

// Of each way in which a file cannot be written it is told, and nothing else
// happens: neither to what is there, nor to the call.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		// prepare is given the node's directory and returns stateDir.
		prepare func(t *testing.T, dir string) string
		want    string
	}{
		{name: "link", want: "a symbolic link is in its path", prepare: func(t *testing.T, dir string) string {
			return filepath.Join(link(t, dir), "deep")
		}},
		{name: "last link", want: "a symbolic link is in its path", prepare: link},
		{name: "anybody's", want: "others than root could put files there", prepare: func(t *testing.T, dir string) string {
			if err := os.Chmod(filepath.Join(dir, "deep"), 0o1777); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "deep")
		}},
		{name: "none", want: "no such file", prepare: func(_ *testing.T, dir string) string { return filepath.Join(dir, "none") }},
		{name: "read-only", want: "read-only file system", prepare: func(t *testing.T, dir string) string {
			return mount(t, filepath.Join(dir, "deep"), unix.MS_RDONLY, "mode=0755")
		}},
		{name: "full", want: "no space left", prepare: func(t *testing.T, dir string) string {
			at := mount(t, filepath.Join(dir, "deep"), 0, "mode=0755,size=64k")
			if err := os.WriteFile(filepath.Join(at, string(azureview.Network)), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			return at
		}},
		{name: "directory", want: "file exists|is a directory", prepare: func(t *testing.T, dir string) string {
			if err := os.Mkdir(filepath.Join(dir, "deep", string(azureview.Network)), 0o700); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "deep")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "deep"), 0o755); err != nil {
				t.Fatal(err)
			}
			h, log := open(t, dir)
			change(t, h, func(tx *store.Tx) error {
				var errs []error
				for i := range 100 { // more than 64 kB
					errs = append(errs, tx.PutAttachment(attached(t, "azure", fmt.Sprintf("%08d", i), "10.240.0.94/16")))
				}
				return errors.Join(errs...)
			})
			at := c.prepare(t, dir)
			before := tree(t, dir)
			azureview.Write(t.Context(), h, &azureview.Conf{StateDir: at}, azureview.Network)
			told := false
			for want := range strings.SplitSeq(c.want, "|") {
				told = told || strings.Contains(log.String(), want)
			}
			if !told {
				t.Errorf("logged %q, want %q", log, c.want)
			}
			if after := tree(t, dir); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// link makes a link to a directory of root's own.
func link(t *testing.T, dir string) string {
	t.Helper()
	at := filepath.Join(dir, "link")
	if err := os.Symlink("deep", at); err != nil {
		t.Fatal(err)
	}
	return at
}

func mount(t *testing.T, at string, flags uintptr, options string) string {
	t.Helper()
	if err := unix.Mount("none", at, "tmpfs", flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

// tree lists what is below a directory but for the state itself.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == "run" || e.Name() == "lib") {
			return fs.SkipDir
		}
		var content []byte
		if e.Type().IsRegular() {
			content, err = os.ReadFile(path)
		}
		fmt.Fprintln(&all, path, e.Type(), string(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// A file's name, and the name under which it is made, may be links that somebody
// put there: what they lead to stays as it is.
func TestPlanted(t *testing.T) {
	dir := t.TempDir()
	h, log := open(t, dir)
	change(t, h, func(tx *store.Tx) error { return nil })
	victim := filepath.Join(dir, "victim")
	path := filepath.Join(h.Store.RunDir(), string(azureview.Network))
	if err := errors.Join(
		os.WriteFile(victim, []byte("precious"), 0o600),
		os.Symlink(victim, path),
		os.Symlink(victim, filepath.Join(h.Store.RunDir(), "."+string(azureview.Network)+".new")),
	); err != nil {
		t.Fatal(err)
	}
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("what the links lead to is %q, %v", b, err)
	}
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode() != 0o644 {
		t.Errorf("the file is %v, %v; want a regular one of mode 0644", fi.Mode(), err)
	}
	decode[networkFile](t, read(t, h, azureview.Network))
	if log.Len() > 0 {
		t.Errorf("logged: %s", log)
	}
}

func TestOff(t *testing.T) {
	h, _ := open(t, t.TempDir())
	change(t, h, func(tx *store.Tx) error { return nil })
	off := false
	azureview.Write(t.Context(), h, &azureview.Conf{StateFiles: &off}, azureview.Network)
	if all := names(t, h.Store.RunDir(), "azure"); len(all) > 0 {
		t.Errorf("written: %q", all)
	}
}

// A DEL is called with a configuration that ADD would refuse: no file is written
// where the process happens to stand.
func TestRelative(t *testing.T) {
	h, _ := open(t, t.TempDir())
	t.Chdir(t.TempDir())
	change(t, h, func(tx *store.Tx) error { return tx.PutAttachment(attached(t, "azure", "12345678", "10.240.0.94/16")) })
	azureview.Write(t.Context(), h, &azureview.Conf{StateDir: "."}, azureview.Network)
	if all := names(t, ".", "azure"); len(all) > 0 {
		t.Errorf("written: %q", all)
	}
	decode[networkFile](t, read(t, h, azureview.Network))
}

// A file that is not ours, or that somebody cut short, is written anew, although
// nothing changed since.
func TestTampered(t *testing.T) {
	h, _ := open(t, t.TempDir())
	change(t, h, func(tx *store.Tx) error { return tx.PutAttachment(attached(t, "azure", "12345678", "10.240.0.94/16")) })
	azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
	path := filepath.Join(h.Store.RunDir(), string(azureview.Network))
	whole := read(t, h, azureview.Network)
	for _, content := range []string{"", "{}", string(whole[:len(whole)-1]), string(whole) + "\n", strings.Repeat("\x00", 5000), strings.Repeat("{", 99999)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		azureview.Write(t.Context(), h, new(azureview.Conf), azureview.Network)
		if got := decode[networkFile](t, read(t, h, azureview.Network)); len(got.Network.ExternalInterfaces["eth0"].Networks["azure"].Endpoints) != 1 {
			t.Errorf("after %.40q: %+v", content, got)
		}
	}
}

// A writer that was stopped holds up no call for long, and its file is not written
// beside it.
func TestStopped(t *testing.T) {
	h, log := open(t, t.TempDir())
	change(t, h, func(tx *store.Tx) error { return nil })
	lock, err := h.Store.LockShared(t.Context(), "azureview"+h.Store.RunDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	done, cancel := context.WithCancel(t.Context())
	cancel() // the call's own deadline has passed
	azureview.Write(done, h, new(azureview.Conf), azureview.Network)
	if all := names(t, h.Store.RunDir(), "azure"); len(all) > 0 || !strings.Contains(log.String(), "busy") {
		t.Errorf("wrote %q and logged %q", all, log)
	}
}

func TestJudge(t *testing.T) {
	var f roles.Faults
	(&azureview.Conf{StateDir: "run"}).Check(&f)
	if err := f.Err(); err == nil || !strings.Contains(err.Error(), "stateDir") {
		t.Errorf("judged: %v", err)
	}
	f = roles.Faults{}
	(&azureview.Conf{StateDir: "/run"}).Check(&f)
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}

// TestImportAgain: after an interrupted migration azure's plugin may give an address to another container.
func TestImportAgain(t *testing.T) {
	dir := t.TempDir()
	h, _ := open(t, dir)
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(file azureview.File, text string) {
		if err := os.WriteFile(filepath.Join(dir, "run", string(file)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(azureview.Network, `{"Network":{"ExternalInterfaces":{"eth0":{"Networks":{"azure":{}}}}}}`)
	for _, id := range []string{"a", "b"} {
		write(azureview.Addresses, `{"IPAM":{"AddressSpaces":{"local":{"Pools":{"p":{"Addresses":{"10.240.0.40":{"ID":"`+id+`","InUse":true}}}}}}}}`)
		s, err := azureview.ReadPluginState(t.Context(), h)
		if err == nil {
			err = s.Import(t.Context(), h)
		}
		if err != nil {
			t.Fatal(err)
		}
		change(t, h, func(tx *store.Tx) error {
			own, err := tx.LeasesOf(store.Key{Network: "azure", ContainerID: id, IfName: "eth0"})
			if len(own) != 1 {
				t.Errorf("leases of %s: %v", id, own)
			}
			return err
		})
	}
}
