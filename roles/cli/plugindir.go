package cli

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// binaryName is the name of the binary in a plugin directory.
	binaryName = "cnibox"
	// modulePath identifies any version of this program by its build information.
	modulePath = "github.com/cnibox/cnibox"
)

// linkKind is the kind of link from a role's name to the binary.
type linkKind string

const (
	linkSymbolic linkKind = "symlink"
	linkHard     linkKind = "hard"
	linkCopy     linkKind = "copy"
)

// standing is the owner of a file in the plugin directory.
type standing string

const (
	absent  standing = "absent"
	ours    standing = "ours"
	foreign standing = "foreign"
	// blocked is a directory, which a rename cannot replace.
	blocked standing = "blocked"
)

// pluginFile is one name in a plugin directory.
type pluginFile struct {
	name     string
	standing standing
	link     linkKind // for a file of this program
	current  bool     // links to the present binary
	what     string   // for people
}

// pluginDir inspects a plugin directory without executing a file of it.
type pluginDir struct {
	path string
	// self are the files that are certainly this program.
	self []fs.FileInfo
}

// newPluginDir returns a pluginDir that knows the running binary and the one in the directory.
func newPluginDir(path, executable string) *pluginDir {
	d := &pluginDir{path: path}
	for _, f := range []string{executable, filepath.Join(path, binaryName)} {
		if fi, err := os.Stat(f); err == nil && fi.Mode().IsRegular() {
			d.self = append(d.self, fi)
		}
	}
	return d
}

func (d *pluginDir) isSelf(fi fs.FileInfo) bool {
	for _, s := range d.self {
		if os.SameFile(s, fi) {
			return true
		}
	}
	return false
}

// look inspects a name. It repeats if another installation changes the name at the same time.
func (d *pluginDir) look(name string) (pluginFile, error) {
	for {
		f, err := d.lookOnce(name)
		if !errors.Is(err, errChanged) {
			return f, err
		}
	}
}

// errChanged means that a name was a symbolic link and changed meanwhile.
var errChanged = errors.New("changed while being read")

func (d *pluginDir) lookOnce(name string) (pluginFile, error) {
	f := pluginFile{name: name, standing: foreign}
	path := filepath.Join(d.path, name)
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.standing = absent
		return f, nil
	case err != nil:
		return f, err
	case fi.IsDir():
		f.standing, f.what = blocked, "a directory"
		return f, nil
	case fi.Mode()&fs.ModeSymlink != 0:
		return d.lookLink(f, path)
	case !fi.Mode().IsRegular():
		f.what = "no regular file (" + fi.Mode().Type().String() + ")"
		return f, nil
	case d.isSelf(fi):
		f.standing, f.link, f.current = ours, linkHard, true
		return f, nil
	}
	what, isOurs, err := identify(path)
	f.what = what
	if isOurs {
		f.standing, f.link = ours, linkCopy
	}
	return f, err
}

// lookLink inspects the target of a symbolic link.
func (d *pluginDir) lookLink(f pluginFile, path string) (pluginFile, error) {
	target, err := os.Readlink(path)
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist):
		return f, errChanged
	case err != nil:
		return f, err
	}
	f.what = fmt.Sprintf("a symbolic link to %q", target)
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && filepath.Base(target) == binaryName:
		f.standing, f.link = ours, linkSymbolic
		return f, nil
	case err != nil:
		f.what += ", whose target does not exist"
		return f, nil
	case d.isSelf(fi):
		f.standing, f.link, f.current = ours, linkSymbolic, target == binaryName
		return f, nil
	case !fi.Mode().IsRegular():
		return f, nil
	}
	what, isOurs, err := identify(path)
	if err != nil {
		return f, err
	}
	f.what += ", " + what
	if isOurs {
		f.standing, f.link = ours, linkSymbolic
	}
	return f, nil
}

// identify identifies a file by its content.
func identify(path string) (what string, isOurs bool, err error) {
	r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", false, err
	}
	defer r.Close()
	head := make([]byte, 4)
	n, err := io.ReadFull(r, head)
	head = head[:n]
	switch {
	case n == 0:
		return "an empty file", false, nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return "", false, err
	case bytes.HasPrefix(head, []byte("#!")):
		return "a script", false, nil
	case !bytes.Equal(head, []byte("\x7fELF")):
		return "another program's file", false, nil
	}
	main, version := goProgram(r)
	switch {
	case main == "":
		return "another program", false, nil
	case main == modulePath || strings.HasPrefix(main, modulePath+"/"):
		return strings.TrimSpace("cnibox " + version), true, nil
	}
	return strings.TrimSpace("the program " + main + " " + version), false, nil
}

// goProgram reads the main package and module version from an executable's build information. Both
// are empty if it has none.
func goProgram(r io.ReaderAt) (main, version string) {
	info, err := buildinfo.Read(r)
	if err != nil {
		return "", ""
	}
	return info.Path, info.Main.Version
}
