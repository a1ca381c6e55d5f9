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

// stager writes files of a plugin directory under temporary names and renames
// them all at the end.
type stager struct {
	dir  string
	kind linkKind
	// source is the file that hard links and copies are made of: the new binary.
	source string
	// replaced tells that a new binary takes the name.
	replaced bool
	files    []staged
}

// binary stages the binary itself, unless the directory holds this very one.
func (s *stager) binary(d *pluginDir, executable string) error {
	target := filepath.Join(s.dir, binaryName)
	s.source = target
	have, err := os.Stat(target)
	if err == nil {
		if have.IsDir() {
			return errors.New("a directory stands in its place")
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
		return errors.New("a directory stands in its place")
	}
	temp, err := s.copy(executable)
	if err != nil {
		return err
	}
	s.source, s.replaced = temp, true
	s.files = append(s.files, staged{temp: temp, name: binaryName, done: "placed cnibox"})
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

// writable makes sure, before anything else, that the directory can be written.
func (s *stager) writable() error {
	f, err := os.CreateTemp(s.dir, ".cnibox-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// fresh tells that a name needs no work.
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
	done := fmt.Sprintf("linked %s → %s", f.name, binaryName)
	if s.kind == linkCopy {
		done = "copied " + f.name
	}
	if f.standing == foreign {
		done += ", replacing " + f.what
	}
	s.files = append(s.files, staged{temp: temp, name: f.name, done: done, replaces: f.standing == foreign})
	return nil
}

// hardLink follows the source if that is a symbolic link.
func hardLink(source, target string) error {
	return os.NewSyscallError("link", unix.Linkat(unix.AT_FDCWD, source, unix.AT_FDCWD, target, unix.AT_SYMLINK_FOLLOW))
}

// tempName finds a free temporary name.
func (s *stager) tempName(create func(string) error) (string, error) {
	for {
		t := filepath.Join(s.dir, ".cnibox-"+rand.Text())
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
	out, err := os.CreateTemp(s.dir, ".cnibox-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	// One write: the kernel keeps what comes in at once in large pieces, and a start maps a piece at a time.
	if _, err := out.Write(program); err != nil {
		return "", err
	}
	if err := out.Chmod(0o755); err != nil {
		return "", err
	}
	return out.Name(), out.Sync()
}

// commit gives every staged file its name, and says so.
func (s *stager) commit(p *Process) error {
	for len(s.files) > 0 {
		f := s.files[0]
		if f.replaces {
			if err := p.keepReplaced(s.dir, f.name); err != nil {
				return fmt.Errorf("keep %q: %w", f.name, err)
			}
		}
		if err := os.Rename(f.temp, filepath.Join(s.dir, f.name)); err != nil {
			return fmt.Errorf("place %q: %w", f.name, err)
		}
		// Renaming one hard link of a file over another does nothing and
		// leaves both (rename(2)).
		if err := os.Remove(f.temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.files = s.files[1:]
		fmt.Fprintln(p.Stdout, printable(f.done))
	}
	return nil
}

// clean removes what was not placed.
func (s *stager) clean() {
	for _, f := range s.files {
		_ = os.Remove(f.temp) // best effort: the error that brought us here counts
	}
}
