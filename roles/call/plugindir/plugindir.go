// Package plugindir places this program in a directory of CNI plugins, with a link for each type, and
// removes what it placed. Every file appears and disappears by a rename, so that a plugin exists and is
// complete at any time. A file is identified by its content and never executed.
package plugindir

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// Binary is the name of the binary in a plugin directory.
	Binary = "cnibox"
	// modulePath identifies any version of this program by its build information.
	modulePath = "github.com/cnibox/cnibox"
)

// LinkKind is the kind of link from a role's name to the binary.
type LinkKind string

// The kinds of links.
const (
	Symbolic LinkKind = "symlink"
	Hard     LinkKind = "hard"
	Copy     LinkKind = "copy"
)

// Standing is the owner of a file in the plugin directory.
type Standing string

// The owners of a name.
const (
	Absent  Standing = "absent"
	Ours    Standing = "ours"
	Foreign Standing = "foreign"
	// Blocked is a directory, which a rename cannot replace.
	Blocked Standing = "blocked"
)

// File is one name in a plugin directory.
type File struct {
	Name     string
	Standing Standing
	// What describes the file to people.
	What    string
	link    LinkKind // for a file of this program
	current bool     // links to the present binary
}

// Dir is a plugin directory.
type Dir struct {
	path string
	// executable is the running binary.
	executable string
	// self are the files that are certainly this program.
	self []fs.FileInfo
}

// Open returns a Dir that knows the running binary and the one in the directory.
func Open(path, executable string) *Dir {
	d := &Dir{path: path, executable: executable}
	for _, f := range []string{executable, filepath.Join(path, Binary)} {
		if fi, err := os.Stat(f); err == nil && fi.Mode().IsRegular() {
			d.self = append(d.self, fi)
		}
	}
	return d
}

func (d *Dir) isSelf(fi fs.FileInfo) bool {
	for _, s := range d.self {
		if os.SameFile(s, fi) {
			return true
		}
	}
	return false
}

// Look inspects a name. It repeats if another installation changes the name at the same time.
func (d *Dir) Look(name string) (File, error) {
	for {
		f, err := d.lookOnce(name)
		if !errors.Is(err, errChanged) {
			return f, err
		}
	}
}

// errChanged means that a name was a symbolic link and changed meanwhile.
var errChanged = errors.New("changed while being read")

func (d *Dir) lookOnce(name string) (File, error) {
	f := File{Name: name, Standing: Foreign}
	path := filepath.Join(d.path, name)
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Standing = Absent
		return f, nil
	case err != nil:
		return f, err
	case fi.IsDir():
		f.Standing, f.What = Blocked, ErrBlocked.Error()
		return f, nil
	case fi.Mode()&fs.ModeSymlink != 0:
		return d.lookLink(f, path)
	case !fi.Mode().IsRegular():
		f.What = "no regular file (" + fi.Mode().Type().String() + ")"
		return f, nil
	case d.isSelf(fi):
		f.Standing, f.link, f.current = Ours, Hard, true
		return f, nil
	}
	what, isOurs, err := Identify(path)
	f.What = what
	if isOurs {
		f.Standing, f.link = Ours, Copy
	}
	return f, err
}

// lookLink inspects the target of a symbolic link.
func (d *Dir) lookLink(f File, path string) (File, error) {
	target, err := os.Readlink(path)
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist):
		return f, errChanged
	case err != nil:
		return f, err
	}
	f.What = fmt.Sprintf("a symbolic link to %q", target)
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && filepath.Base(target) == Binary:
		f.Standing, f.link, f.current = Ours, Symbolic, target == Binary
		return f, nil
	case err != nil:
		f.What += ", whose target does not exist"
		return f, nil
	case d.isSelf(fi):
		f.Standing, f.link, f.current = Ours, Symbolic, target == Binary
		return f, nil
	case !fi.Mode().IsRegular():
		return f, nil
	}
	what, isOurs, err := Identify(path)
	if err != nil {
		return f, err
	}
	f.What += ", " + what
	if isOurs {
		f.Standing, f.link = Ours, Symbolic
	}
	return f, nil
}

// Identify identifies a file by its content.
func Identify(path string) (what string, isOurs bool, err error) {
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

// The linker writes a program's build information into its writable data, as text between two marks
// (since Go 1.18; cmd/go/internal/modload, infoStart and infoEnd).
const (
	infoStart = "\x30\x77\xaf\x0c\x92\x74\x08\x02\x41\xe1\xc1\x07\xe6\xd6\x18\xe6"
	infoEnd   = "\xf9\x32\x43\x31\x86\x18\x20\x72\x00\x82\x42\x10\x41\x16\xd8\xf2"
	maxInfo   = 128 << 10 // bytes; a module with 200 others has 20,000
)

// goProgram reads the main package and module version from an executable's build information. Both
// are empty if it has none. Package debug/buildinfo reads it too, but adds 0.6 MB to this binary for
// formats of other systems.
func goProgram(r io.ReaderAt) (main, version string) {
	data := writableData(r)
	b := make([]byte, 4*maxInfo)
	for at := int64(0); ; at += int64(len(b) - maxInfo) {
		n, err := data.ReadAt(b, at)
		_, text, ok := bytes.Cut(b[:n], []byte(infoStart))
		if text, _, ended := bytes.Cut(text, []byte(infoEnd)); ok && ended {
			if info, err := debug.ParseBuildInfo(string(text)); err == nil {
				return info.Path, info.Main.Version
			}
			return "", ""
		}
		if err != nil {
			return "", ""
		}
	}
}

// writableData returns the first writable segment of a 64-bit little-endian ELF file that is not
// executable (elf(5)). It is empty for any other file.
func writableData(r io.ReaderAt) *io.SectionReader {
	const (
		headerSize, segmentSize = 64, 56 // Elf64_Ehdr, Elf64_Phdr
		load                    = 1      // PT_LOAD
		executable, writable    = 1, 2   // PF_X, PF_W
		limit                   = 1 << 62
	)
	none, number := io.NewSectionReader(r, 0, 0), binary.LittleEndian
	head := make([]byte, headerSize)
	if _, err := r.ReadAt(head, 0); err != nil {
		return none
	}
	at, count := number.Uint64(head[32:]), number.Uint16(head[56:]) // e_phoff, e_phnum
	segment := make([]byte, segmentSize)
	for ; count > 0 && at < limit; count, at = count-1, at+segmentSize {
		if _, err := r.ReadAt(segment, int64(at)); err != nil {
			return none
		}
		start, size := number.Uint64(segment[8:]), number.Uint64(segment[32:]) // p_offset, p_filesz
		if number.Uint32(segment) == load && number.Uint32(segment[4:])&(writable|executable) == writable && start < limit {
			return io.NewSectionReader(r, int64(start), int64(min(size, limit)))
		}
	}
	return none
}
