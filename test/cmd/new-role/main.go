// Command new-role writes the package of a new role, with its suite and goldens, its line in roles/all, and what is generated from the table
// of roles. It does so in a copy of the repository, and copies what is new back when all of it succeeded. See CONTRIBUTING.md.
package main

import (
	"bytes"
	"embed"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/cnibox/cnibox/roles/all"
)

//go:embed skeleton
var skeleton embed.FS

// role has the values for the templates.
type role struct {
	// Name is the CNI type. Kind is a key of kinds. Link is the kernel's kind of link of an interface role.
	Name, Kind, Link string
}

// kind is a kind of role.
type kind struct {
	dir, neighbour string
	goldens        bool
}

// kinds are the kinds of roles that have a skeleton. The line of a new role is in the same block of the table as that of neighbour.
var kinds = map[string]kind{
	"interface": {dir: "roles/iface", neighbour: `"dummy"`, goldens: true},
	"ipam":      {dir: "roles/ipam", neighbour: `"static"`},
	"chained":   {dir: "roles/chained", neighbour: `"sbr"`, goldens: true},
}

func main() {
	r := role{}
	flag.StringVar(&r.Name, "name", "", "the CNI type: lower-case letters, digits and dashes")
	flag.StringVar(&r.Kind, "kind", "interface", "interface, ipam or chained")
	flag.StringVar(&r.Link, "link", "dummy", "the kernel's kind of link, for an interface role")
	flag.Parse()
	if err := r.write("."); err != nil {
		fmt.Fprintln(os.Stderr, "new-role:", err)
		os.Exit(1)
	}
	fmt.Printf("%s, a line in %s, and the generated pages: see CONTRIBUTING.md for what comes next\n", r.dir(), table)
}

// table lists every role.
const table = "roles/all/all.go"

// names matches CNI types.
var names = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// Package is the name of the package: the CNI type without dashes.
func (r role) Package() string { return strings.ReplaceAll(r.Name, "-", "") }

func (r role) dir() string { return path.Join(kinds[r.Kind].dir, r.Package()) }

// validate returns an error if the role cannot be added to the repository in root.
func (r role) validate(root string) error {
	if !names.MatchString(r.Name) || token.IsKeyword(r.Package()) {
		return fmt.Errorf("name %q: use lower-case letters, digits and dashes, and no word of Go, such as 'make new-role NAME=mark-packets KIND=chained'", r.Name)
	}
	if _, ok := kinds[r.Kind]; !ok {
		return fmt.Errorf("kind %q: use interface, ipam or chained", r.Kind)
	}
	if _, err := os.Lstat(filepath.Join(root, r.dir())); err == nil {
		return fmt.Errorf("%s exists: choose another name", r.dir())
	}
	if known, ok := all.Table().Lookup(r.Name); ok {
		return fmt.Errorf("the role %s has the name %q: choose another name", known.Name(), r.Name)
	}
	return nil
}

// write makes the package. After an error the repository is unchanged.
func (r role) write(root string) error {
	if err := r.validate(root); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "new-role")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyTree(root, dir); err != nil {
		return err
	}
	if err := r.make(dir); err != nil {
		return err
	}
	return copyBack(dir, root)
}

// copyTree copies the repository without its history and the built programs.
func copyTree(root, to string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	args := []string{"-a"}
	for _, e := range entries {
		if e.Name() != ".git" && e.Name() != "bin" && e.Name() != "dist" {
			args = append(args, filepath.Join(root, e.Name()))
		}
	}
	return run(".", "cp", append(args, to)...)
}

// make writes the package, enters it into the table, and computes the goldens and the generated pages.
func (r role) make(root string) error {
	if err := r.enter(filepath.Join(root, table)); err != nil {
		return err
	}
	from := path.Join("skeleton", r.Kind)
	err := fs.WalkDir(skeleton, from, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		to := strings.TrimSuffix(strings.TrimPrefix(name, from+"/"), ".tmpl")
		return r.fill(name, filepath.Join(root, r.dir(), to))
	})
	if err != nil {
		return err
	}
	if kinds[r.Kind].goldens {
		err := run(root, "sh", "test/generate.sh", "goldens", "./"+r.dir())
		if err != nil {
			return fmt.Errorf("compute the goldens: %w", err)
		}
	}
	if err := run(root, "sh", "test/generate.sh", "code"); err != nil {
		return fmt.Errorf("compute the generated pages: %w", err)
	}
	return nil
}

// run runs a program. Its output is in the error.
func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
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

// enter adds the import and the line of the role, in the order of names.
func (r role) enter(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	k := kinds[r.Kind]
	lines := strings.Split(string(b), "\n")
	const module = `	"github.com/cnibox/cnibox/`
	lines, err = insert(lines, module+k.dir+"/", module+k.dir+"/", module+r.dir()+`"`)
	if err == nil {
		lines, err = insert(lines, "\t\t{Names: "+k.neighbour, "\t\t{", fmt.Sprintf("\t\t{Names: %q, Role: %s.Role},", r.Name, r.Package()))
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

// insert inserts a line, in sorted order, into the block of lines that begin with prefix. The block has a line that begins with member.
func insert(lines []string, member, prefix, line string) ([]string, error) {
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, member) })
	if at < 0 {
		return nil, fmt.Errorf("has no line that begins with %q", member)
	}
	for at > 0 && strings.HasPrefix(lines[at-1], prefix) {
		at--
	}
	for at < len(lines) && strings.HasPrefix(lines[at], prefix) && lines[at] < line {
		at++
	}
	return slices.Insert(lines, at, line), nil
}

// copyBack copies new and changed files. All of them are written beside their places before the first one is renamed.
func copyBack(from, root string) error {
	var places []string
	const beside = ".new-role"
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		place := filepath.Join(root, strings.TrimPrefix(name, from))
		now, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		before, err := os.ReadFile(place)
		if err == nil && bytes.Equal(before, now) {
			return nil
		}
		places = append(places, place)
		return errors.Join(os.MkdirAll(filepath.Dir(place), 0o755), os.WriteFile(place+beside, now, 0o644))
	})
	for _, place := range places {
		if err != nil {
			_ = os.Remove(place + beside)
			_ = os.Remove(filepath.Dir(place)) // fails unless it is new and empty
			continue
		}
		err = os.Rename(place+beside, place)
	}
	return err
}
