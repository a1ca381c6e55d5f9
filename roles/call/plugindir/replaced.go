package plugindir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ReplacedDir is the directory for files that install --force replaces, inside the plugin
// directory. It is on the same filesystem, so keeping a file is a link and restoring it a rename.
// Runtimes search for files with a plugin's name only.
const ReplacedDir = ".cnibox-replaced"

// tempReplaced begins the names of files that are not yet kept.
const tempReplaced = ".new-"

// keepReplaced keeps a third-party file before this program replaces it. It does not overwrite a file
// that was kept before, and does not keep a file that another installation has replaced meanwhile.
func (d *Dir) keepReplaced(name string) error {
	kept := filepath.Join(d.path, ReplacedDir)
	if err := os.Mkdir(kept, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	temp := tempReplaced + rand.Text()
	err := os.Link(filepath.Join(d.path, name), filepath.Join(kept, temp))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := Open(kept, d.executable).Look(temp)
	if err != nil || f.Standing == Ours {
		return errors.Join(err, os.Remove(filepath.Join(kept, temp)))
	}
	return os.Rename(filepath.Join(kept, temp), filepath.Join(kept, name))
}

// WasReplaced reports whether another program's file took the place of one of this program: it is newer than this program's
// binary in the directory, or an earlier file of the name was kept. An older file was there before this program.
func (d *Dir) WasReplaced(name string) bool {
	if ours, err := d.Look(Binary); err != nil || ours.Standing != Ours {
		return false
	}
	if _, err := os.Lstat(filepath.Join(d.path, ReplacedDir, name)); err == nil {
		return true
	}
	return birth(filepath.Join(d.path, name)) > birth(filepath.Join(d.path, Binary))
}

// birth returns when a file was made, in nanoseconds. It is 0 on a file system that does not note it. A change of the mode or of the
// owner does not change it.
func birth(path string) int64 {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st); err != nil {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// Remove removes files of this program. If one had replaced a file, a rename restores that file, so
// that the name always exists.
func (d *Dir) Remove(names []string, report func(Change)) error {
	for _, name := range names {
		err := os.Rename(filepath.Join(d.path, ReplacedDir, name), filepath.Join(d.path, name))
		if err == nil {
			report(Change{Action: "restored", Name: name})
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("restore file: %w", err)
		}
		if err := os.Remove(filepath.Join(d.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove file: %w", err)
		}
		report(Change{Action: "removed", Name: name})
	}
	d.removeReplacedDir()
	return nil
}

// removeReplacedDir removes the directory of kept files if it is empty, and what a killed installation
// left in it.
func (d *Dir) removeReplacedDir() {
	kept := filepath.Join(d.path, ReplacedDir)
	entries, _ := os.ReadDir(kept) // usually it does not exist
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempReplaced) {
			_ = os.Remove(filepath.Join(kept, e.Name())) // otherwise the directory stays
		}
	}
	_ = os.Remove(kept) // the kernel removes only an empty directory
}

// IsLeftover reports whether a killed installation left the file.
func (f *File) IsLeftover() bool {
	return f.Standing == Foreign && strings.HasPrefix(f.Name, tempPrefix)
}

// Files lists the files of this program, with the binary at the end.
func (d *Dir) Files() (names []string, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	binary := false
	for _, e := range entries {
		f, err := d.Look(e.Name())
		switch {
		case err != nil:
			return nil, fmt.Errorf("look at %q: %w", e.Name(), err)
		case f.Standing != Ours && !f.IsLeftover():
		case e.Name() == Binary:
			binary = true
		default:
			names = append(names, e.Name())
		}
	}
	if binary {
		names = append(names, Binary)
	}
	return names, nil
}
