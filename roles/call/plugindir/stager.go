package plugindir

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

// staged is a file with its temporary name.
type staged struct {
	temp, name string
	done       Change
}

// stager writes files of a plugin directory with temporary names and renames all of them at the
// end.
type stager struct {
	*Dir
	kind LinkKind
	// source is the new binary, the source of hard links and copies.
	source string
	// replaced is true if a new binary replaces the present one.
	replaced bool
	files    []staged
}

// binary stages the binary if the directory does not have it.
func (s *stager) binary() error {
	target := filepath.Join(s.path, Binary)
	s.source = target
	have, err := os.Stat(target)
	if err == nil {
		if have.IsDir() {
			return errors.New("a directory has this name")
		}
		self, err := os.Stat(s.executable)
		if err != nil {
			return err
		}
		same := os.SameFile(have, self)
		if !same && have.Size() == self.Size() && have.Mode().Perm()&0o111 == 0o111 {
			if same, err = sameContent(target, s.executable); err != nil {
				return err
			}
		}
		if same {
			return s.writable()
		}
	}
	if f, lookErr := s.Look(Binary); lookErr == nil && f.Standing == Blocked {
		return errors.New("a directory has this name")
	}
	temp, err := s.copy(s.executable)
	if err != nil {
		return err
	}
	s.source, s.replaced = temp, true
	s.files = append(s.files, staged{temp: temp, name: Binary, done: Change{Action: "placed", Name: Binary}})
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
	f, err := os.CreateTemp(s.path, tempPrefix+"*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// fresh reports whether a name is up to date.
func (s *stager) fresh(f File) bool {
	if f.Standing != Ours || f.link != s.kind || !f.current {
		return false
	}
	return s.kind == Symbolic || !s.replaced
}

// link stages one name.
func (s *stager) link(f File) error {
	var temp string
	var err error
	switch s.kind {
	case Copy:
		temp, err = s.copy(s.source)
	case Hard:
		temp, err = s.tempName(func(t string) error { return hardLink(s.source, t) })
	default:
		temp, err = s.tempName(func(t string) error { return os.Symlink(Binary, t) })
	}
	if err != nil {
		return err
	}
	done := Change{Action: "linked", Name: f.Name, Target: Binary}
	if s.kind == Copy {
		done = Change{Action: "copied", Name: f.Name}
	}
	if f.Standing == Foreign {
		done.Replaces = f.What
	}
	s.files = append(s.files, staged{temp: temp, name: f.Name, done: done})
	return nil
}

// hardLink makes a hard link. It follows a symbolic link at source.
func hardLink(source, target string) error {
	return os.NewSyscallError("link", unix.Linkat(unix.AT_FDCWD, source, unix.AT_FDCWD, target, unix.AT_SYMLINK_FOLLOW))
}

// tempName finds a free temporary name.
func (s *stager) tempName(create func(string) error) (string, error) {
	for {
		t := filepath.Join(s.path, tempPrefix+rand.Text())
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
	out, err := os.CreateTemp(s.path, tempPrefix+"*")
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

// commit renames every staged file and reports it.
func (s *stager) commit(report func(Change)) error {
	for len(s.files) > 0 {
		f := s.files[0]
		if f.done.Replaces != "" {
			if err := s.keepReplaced(f.name); err != nil {
				return fmt.Errorf("keep %q: %w", f.name, err)
			}
		}
		if err := os.Rename(f.temp, filepath.Join(s.path, f.name)); err != nil {
			return fmt.Errorf("place %q: %w", f.name, err)
		}
		// Renaming one hard link over another of the same file does nothing and keeps both
		// (rename(2)).
		if err := os.Remove(f.temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.files = s.files[1:]
		report(f.done)
	}
	return nil
}

// clean removes temporary files.
func (s *stager) clean() {
	for _, f := range s.files {
		_ = os.Remove(f.temp) // best effort: the first error is reported
	}
}
