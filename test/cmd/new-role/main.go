// Command new-role writes the package of a new interface role, with its suite and
// goldens, and its line in roles/all. See CONTRIBUTING.md.
package main

import (
	"bytes"
	"embed"
	"flag"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

//go:embed skeleton
var skeleton embed.FS

// role has the values for the templates.
type role struct {
	// Name is the CNI type and the package's name; Kind is the kernel's kind of link.
	Name, Kind string
}

func main() {
	r := role{}
	flag.StringVar(&r.Name, "name", "", "the CNI type, in lower-case letters and digits")
	flag.StringVar(&r.Kind, "kind", "dummy", "the kernel's kind of link")
	flag.Parse()
	if err := r.write("."); err != nil {
		fmt.Fprintln(os.Stderr, "new-role:", err)
		os.Exit(1)
	}
	fmt.Printf("%s and a line in %s: see CONTRIBUTING.md for what comes next\n", r.dir(), table)
}

// table lists every role.
const table = "roles/all/all.go"

// tags are the build tags of the Makefile.
const tags = "urfave_cli_no_docs,nethttpomithttp2"

// names matches CNI types that are valid package names.
var names = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

func (r role) dir() string { return "roles/iface/" + r.Name }

// write makes the package in a copy of the repository, enters it into the table and
// computes the goldens.
func (r role) write(root string) error {
	if !names.MatchString(r.Name) {
		return fmt.Errorf("name %q: use lower-case letters and digits, such as 'make new-role NAME=veth'", r.Name)
	}
	if _, err := os.Lstat(filepath.Join(root, r.dir())); err == nil {
		return fmt.Errorf("%s exists: choose another name", r.dir())
	}
	if err := r.enter(filepath.Join(root, table)); err != nil {
		return err
	}
	err := fs.WalkDir(skeleton, "skeleton", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		to := strings.TrimSuffix(strings.TrimPrefix(name, "skeleton/"), ".tmpl")
		return r.fill(name, filepath.Join(root, r.dir(), to))
	})
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "test", "-tags", tags, "-vet", "off", "-run", "^TestGolden$", "./"+r.dir(), "-update")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compute the goldens: %w\n%s", err, out)
	}
	return nil
}

// fill writes one file of the package.
func (r role) fill(name, to string) error {
	t, err := template.ParseFS(skeleton, name)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, r); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}

// enter adds the import and the line of the role, in the order of names. The first
// block of the table is that of the interface roles.
func (r role) enter(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(b), "\n")
	lines, err = insert(lines, `	"github.com/cnibox/cnibox/roles/iface/`, `	"github.com/cnibox/cnibox/`+r.dir()+`"`)
	if err == nil {
		lines, err = insert(lines, "\t\t", fmt.Sprintf("\t\t{Names: %q, Role: %s.Role},", r.Name, r.Name))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	out, err := format.Source([]byte(strings.Join(lines, "\n")))
	if err != nil {
		return err
	}
	return os.WriteFile(file, out, 0o644)
}

// insert inserts a line into the first block of lines that begin with prefix, in sorted order.
func insert(lines []string, prefix, line string) ([]string, error) {
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) })
	if at < 0 {
		return nil, fmt.Errorf("has no line that begins with %q", prefix)
	}
	for at < len(lines) && strings.HasPrefix(lines[at], prefix) && lines[at] < line {
		at++
	}
	return slices.Insert(lines, at, line), nil
}
