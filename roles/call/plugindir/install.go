package plugindir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/internal/smallfile"
)

// Change is what happened to a name.
type Change struct {
	// Action is placed, linked, copied, kept, removed or restored.
	Action, Name string
	// Target is the target of a link. Replaces describes a replaced file. Reason is why a file is kept.
	Target, Replaces, Reason string
}

// ErrBlocked means that a directory has the name of a plugin.
var ErrBlocked = errors.New("a directory")

// UpToDate is the reason why Install keeps a file of this program.
const UpToDate = "it is up to date"

// Installed is the result of Install.
type Installed struct {
	// Kept is the number of other programs' files that stay.
	Kept int
	// Replaced is true if another program's file was replaced.
	Replaced bool
}

// Install first checks all names, then writes the files with temporary names, and then renames them. The
// directory is made if it does not exist. With force another program's file is replaced and kept aside.
func (d *Dir) Install(names []string, kind LinkKind, force bool, report func(Change)) (is Installed, err error) {
	if err := os.MkdirAll(d.path, 0o755); err != nil { //nolint:gosec // runtimes may run as another user
		return is, fmt.Errorf("make directory: %w", err)
	}
	fi, err := os.Stat(d.path)
	if err == nil {
		err = smallfile.Trusted(d.path, fi)
	}
	if err != nil {
		return is, fmt.Errorf("plugins run as root: %w", err)
	}
	files := make([]File, 0, len(names))
	for _, n := range names {
		f, err := d.Look(n)
		if err != nil {
			return is, fmt.Errorf("look at %q: %w", n, err)
		}
		if f.Standing == Blocked {
			return is, fmt.Errorf("%q is %w", filepath.Join(d.path, n), ErrBlocked)
		}
		files = append(files, f)
	}
	s := &stager{Dir: d, kind: kind}
	defer s.clean()
	if err := s.binary(); err != nil {
		return is, fmt.Errorf("place binary in %q: %w", d.path, err)
	}
	var kept []Change
	for _, f := range files {
		switch {
		case f.Standing == Foreign && !force:
			is.Kept++
			kept = append(kept, Change{Action: "kept", Name: f.Name, Reason: f.What + " (use --force)"})
		case s.fresh(f):
			kept = append(kept, Change{Action: "kept", Name: f.Name, Reason: UpToDate})
		default:
			if err := s.link(f); err != nil {
				return is, fmt.Errorf("link %q: %w", f.Name, err)
			}
		}
	}
	is.Replaced = slices.ContainsFunc(s.files, func(f staged) bool { return f.done.Replaces != "" })
	if err := s.commit(report); err != nil {
		return is, err
	}
	for _, c := range kept {
		report(c)
	}
	return is, nil
}
