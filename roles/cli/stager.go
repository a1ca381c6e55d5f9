package cli

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of temporary files.
const tempPrefix = ".cnibox-"

// stager writes files of a plugin directory with temporary names and renames all of them at the
// end.
type stager struct {
	dir  string
	kind linkKind
	// source is the new binary, the source of hard links and copies.
	source string
	// replaced is true if a new binary replaces the present one.
	replaced bool
	files    []staged
}

// binary stages the binary if the directory does not have it.
func (s *stager) binary(d *pluginDir, executable string) error {
	target := filepath.Join(s.dir, binaryName)
	s.source = target
	have, err := os.Stat(target)
	if err == nil {
		if have.IsDir() {
			return errors.New("a directory has this name")
		}
		self, err := os.Stat(executable)
		if err != nil {
			return err
		}
		same := os.SameFile(have, self)
		if !same && have.Size() == self.Size() && have.Mode().Perm()&0o111 == 0o111 {
			if same, err = sameContent(target, executable); err != nil {
				return err
			}
		}
		if same {
			return s.writable()
		}
	}
	if f, lookErr := d.look(binaryName); lookErr == nil && f.standing == blocked {
		return errors.New("a directory has this name")
	}
	temp, err := s.copy(executable)
	if err != nil {
		return err
	}
	s.source, s.replaced = temp, true
	s.files = append(s.files, staged{temp: temp, name: binaryName, done: change{Action: "placed", Name: binaryName}})
	return nil
}

// sameContent compares two files.
func sameContent(a, b string) (bool, error) {
	x, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer y.Close()
	bx, by := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, errX := io.ReadFull(x, bx)
		m, errY := io.ReadFull(y, by)
		if !bytes.Equal(bx[:n], by[:m]) {
			return false, nil
		}
		if errX != nil || errY != nil {
			return errors.Is(errX, io.EOF) || errors.Is(errX, io.ErrUnexpectedEOF), nil
		}
	}
}

// writable checks first that the directory can be written.
func (s *stager) writable() error {
	f, err := os.CreateTemp(s.dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// fresh reports whether a name is up to date.
func (s *stager) fresh(f pluginFile) bool {
	if f.standing != ours || f.link != s.kind || !f.current {
		return false
	}
	return s.kind == linkSymbolic || !s.replaced
}

// link stages one name.
func (s *stager) link(f pluginFile) error {
	var temp string
	var err error
	switch s.kind {
	case linkCopy:
		temp, err = s.copy(s.source)
	case linkHard:
		temp, err = s.tempName(func(t string) error { return hardLink(s.source, t) })
	default:
		temp, err = s.tempName(func(t string) error { return os.Symlink(binaryName, t) })
	}
	if err != nil {
		return err
	}
	done := change{Action: "linked", Name: f.name, Target: binaryName}
	if s.kind == linkCopy {
		done = change{Action: "copied", Name: f.name}
	}
	if f.standing == foreign {
		done.Replaces = f.what
	}
	s.files = append(s.files, staged{temp: temp, name: f.name, done: done})
	return nil
}

// hardLink makes a hard link. It follows a symbolic link at source.
func hardLink(source, target string) error {
	return os.NewSyscallError("link", unix.Linkat(unix.AT_FDCWD, source, unix.AT_FDCWD, target, unix.AT_SYMLINK_FOLLOW))
}

// tempName finds a free temporary name.
func (s *stager) tempName(create func(string) error) (string, error) {
	for {
		t := filepath.Join(s.dir, tempPrefix+rand.Text())
		if err := create(t); !errors.Is(err, fs.ErrExist) {
			return t, err
		}
	}
}

// copy writes a complete executable under a temporary name.
func (s *stager) copy(source string) (name string, err error) {
	program, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	out, err := os.CreateTemp(s.dir, tempPrefix+"*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	// One write call: the kernel caches the file in large pages then, and a start maps fewer of
	// them.
	if _, err := out.Write(program); err != nil {
		return "", err
	}
	if err := out.Chmod(0o755); err != nil {
		return "", err
	}
	return out.Name(), out.Sync()
}

// commit renames every staged file and prints the names.
func (s *stager) commit(p *Process) error {
	for len(s.files) > 0 {
		f := s.files[0]
		if f.done.Replaces != "" {
			if err := p.keepReplaced(s.dir, f.name); err != nil {
				return fmt.Errorf("keep %q: %w", f.name, err)
			}
		}
		if err := os.Rename(f.temp, filepath.Join(s.dir, f.name)); err != nil {
			return fmt.Errorf("place %q: %w", f.name, err)
		}
		// Renaming one hard link over another of the same file does nothing and keeps both
		// (rename(2)).
		if err := os.Remove(f.temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.files = s.files[1:]
		p.changed(f.done)
	}
	return nil
}

// clean removes temporary files.
func (s *stager) clean() {
	for _, f := range s.files {
		_ = os.Remove(f.temp) // best effort: the first error is reported
	}
}
