package smallfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := Replace(path("plain"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink("plain", path("link")), unix.Mkfifo(path("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		read  func(string, int64) ([]byte, error)
		limit int64
		want  string
		err   error
	}{
		{name: "plain", read: Read, limit: 7, want: "content"},
		{name: "plain", read: Read, limit: 6, err: ErrTooLarge},
		{name: "link", read: Read, limit: 7, want: "content"},
		{name: "link", read: ReadOwn, limit: 7, err: unix.ELOOP},
		{name: "fifo", read: Read, limit: 7, err: errIrregular},
		{name: ".", read: Read, limit: 7, err: errIrregular},
		{name: "none", read: Read, limit: 7, err: fs.ErrNotExist},
	} {
		b, err := c.read(path(c.name), c.limit)
		if !errors.Is(err, c.err) || (c.err == nil && string(b) != c.want) {
			t.Errorf("read %s of at most %d bytes: %q, %v, want %q, %v", c.name, c.limit, b, err, c.want, c.err)
		}
	}
}

func TestReadTrusted(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "in", "sub"), 0o700),
		os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(dir, "in", "plain"), []byte("content"), 0o644),
		os.WriteFile(filepath.Join(dir, "in", "open"), nil, 0o600),
		os.Chmod(filepath.Join(dir, "in", "open"), 0o646),
		os.Symlink("../plain", filepath.Join(dir, "in", "sub", "link")),
		os.Symlink("../secret", filepath.Join(dir, "in", "out")),
		os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "in", "abs")),
		unix.Mkfifo(filepath.Join(dir, "in", "fifo"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, ok := range map[string]bool{
		"plain": true, "sub/link": true, "out": false, "abs": false, "../secret": false, "sub/../../secret": false, "/etc/passwd": false,
		"fifo": false, "sub": false, "none": false, "open": false, "plain\x00": false, "": false,
	} {
		b, err := ReadTrusted(root, name, 7)
		if (err == nil) != ok || ok && string(b) != "content" {
			t.Errorf("%q: %q, %v", name, b, err)
		}
	}
	if _, err := ReadTrusted(root, "plain", 6); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if _, err := ReadTrusted(root, "open", 6); !errors.Is(err, ErrWritable) {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, c := range []struct {
		uid, gid int
		mode     fs.FileMode
		err      error
	}{
		{0, 1000, 0o644, nil}, {0, 0, 0o664, nil}, {0, 1000, 0o664, ErrWritable}, {1000, 0, 0o644, ErrWritable},
	} {
		path := filepath.Join(dir, "in", "plain")
		if err := errors.Join(os.Chown(path, c.uid, c.gid), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadTrusted(root, "plain", 7); !errors.Is(err, c.err) {
			t.Errorf("user %d, group %d, mode %o: %v, want %v", c.uid, c.gid, c.mode, err, c.err)
		}
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		content string
		write   func(string, []byte, fs.FileMode) error
	}{{strings.Repeat("old", 100), Replace}, {"new", ReplaceSynced}} {
		if err := c.write(path, []byte(c.content), 0o640); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != 0o640 {
			t.Fatalf("mode %v, %v", fi.Mode(), err)
		}
		if b, err := Read(path, 1000); err != nil || string(b) != c.content {
			t.Fatalf("content %q, %v, want %q", b, err, c.content)
		}
	}
	// A directory cannot be replaced. The attempt leaves no file.
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "sub"), nil, 0o600); err == nil {
		t.Fatal("a directory was replaced")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("left: %v, %v", entries, err)
	}
}

// TestRewrite checks that the file keeps its mode and owner and that a link to it stays.
func TestRewrite(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	owner := os.Geteuid()
	if owner == 0 {
		owner = 1234 // only root can give files away
	}
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o640), os.Chown(file, owner, -1), os.Symlink("file", link)); err != nil {
		t.Fatal(err)
	}
	if err := Rewrite(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil || string(b) != "new" {
		t.Errorf("content %q, %v", b, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || int(st.Uid) != owner || st.Mode&0o777 != 0o640 {
		t.Errorf("owner %d, mode %o, %v, want %d and 640", st.Uid, st.Mode, err, owner)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", err)
	}
	if err := Rewrite(filepath.Join(dir, "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rewrite an absent file: %v", err)
	}
}
