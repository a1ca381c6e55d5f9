package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// replacedDir is the directory for files that install --force replaces, inside the plugin
// directory. It is on the same filesystem, so keeping a file is a link and restoring it a rename.
// Runtimes search for files with a plugin's name only.
const (
	replacedDir = ".cnibox-replaced"
	// tempReplaced begins the names of files that are not yet kept.
	tempReplaced = ".new-"
)

// keepReplaced keeps a third-party file before this program replaces it. It does not overwrite a file
// that was kept before, and does not keep a file that another installation has replaced meanwhile.
func (p *Process) keepReplaced(dir, name string) error {
	kept := filepath.Join(dir, replacedDir)
	if err := os.Mkdir(kept, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	temp := tempReplaced + rand.Text()
	err := os.Link(filepath.Join(dir, name), filepath.Join(kept, temp))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := newPluginDir(kept, p.Executable).look(temp)
	if err != nil || f.standing == ours {
		return errors.Join(err, os.Remove(filepath.Join(kept, temp)))
	}
	return os.Rename(filepath.Join(kept, temp), filepath.Join(kept, name))
}

// remove removes this program's file. If it had replaced a file, a rename restores that file, so
// that the name always exists.
func (p *Process) remove(dir, name string) error {
	err := os.Rename(filepath.Join(dir, replacedDir, name), filepath.Join(dir, name))
	switch {
	case err == nil:
		p.changed(change{Action: "restored", Name: name})
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return withHint(fmt.Errorf("restore file: %w", err), "run it as root")
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return withHint(fmt.Errorf("remove file: %w", err), "run it as root")
	}
	p.changed(change{Action: "removed", Name: name})
	return nil
}

// removeReplacedDir removes the directory of kept files if it is empty, and what a killed install
// left in it.
func removeReplacedDir(dir string) {
	kept := filepath.Join(dir, replacedDir)
	entries, _ := os.ReadDir(kept) // usually it does not exist
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempReplaced) {
			_ = os.Remove(filepath.Join(kept, e.Name())) // otherwise the directory stays
		}
	}
	_ = os.Remove(kept) // the kernel removes only an empty directory
}
