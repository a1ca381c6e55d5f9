package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// member is a file of an archive: a copy of the file at path, content, or a directory.
type member struct {
	name    string
	mode    int64
	path    string
	content []byte
}

// writeTar writes members with the same owner and time, so that the same members are always the same bytes.
func writeTar(w io.Writer, at time.Time, members []member) error {
	t := tar.NewWriter(w)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Mode: m.mode, ModTime: at, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if strings.HasSuffix(m.name, "/") {
			h.Typeflag = tar.TypeDir
		} else if m.path != "" {
			content, err := os.ReadFile(m.path)
			if err != nil {
				return err
			}
			m.content = content
		}
		h.Size = int64(len(m.content))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(m.content); err != nil {
			return err
		}
	}
	return t.Close()
}

// tarball returns a compressed archive.
func tarball(at time.Time, members []member) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := writeTar(z, at, members); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// archives writes a compressed archive for each architecture: the program, and what belongs to it.
func (r *release) archives(ctx context.Context) error {
	shared, err := r.shared(ctx)
	if err != nil {
		return err
	}
	for _, arch := range r.architectures {
		dir := filepath.Base(r.binary(arch)) + "/"
		members := []member{{name: dir, mode: 0o755}, {name: dir + "cnibox", mode: 0o755, path: r.binary(arch)}}
		for _, m := range shared {
			m.name = dir + m.name
			members = append(members, m)
		}
		out, err := tarball(r.at, members)
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.binary(arch)+".tar.gz", out, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// completions are the files of the shells' completion scripts.
var completions = map[string]string{"bash": "cnibox.bash", "zsh": "_cnibox", "fish": "cnibox.fish"}

// shared returns the files that do not depend on the architecture, and also writes the generated ones into
// a directory of the sources, where the packages take them from.
func (r *release) shared(ctx context.Context) ([]member, error) {
	manual, err := r.manual(ctx)
	if err != nil {
		return nil, err
	}
	generated := map[string][]byte{"cnibox.8": manual}
	for shell, file := range completions {
		out, err := run(ctx, "", nil, r.native(), "completion", shell)
		if err != nil {
			return nil, err
		}
		generated[file] = []byte(out)
	}
	dir := filepath.Join(r.src, "generated")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for file, content := range generated {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			return nil, err
		}
	}
	members, err := r.documents()
	if err != nil {
		return nil, err
	}
	for file, content := range generated {
		members = append(members, member{name: file, mode: 0o644, content: content})
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	return members, nil
}

// documents returns the pages of the sources, the examples, and what the pages link to.
func (r *release) documents() (members []member, err error) {
	roots, err := filepath.Glob(filepath.Join(r.src, "*.md"))
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"LICENSE", noticesFile, "docs", "examples"} {
		roots = append(roots, filepath.Join(r.src, name))
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(r.src, path)
			members = append(members, member{name: name, mode: 0o644, path: path})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return members, nil
}

// stamp replaces the version in the examples by that of this release. The program is built before, because
// Go records whether the sources were changed.
func (r *release) stamp(context.Context) error {
	const example = "0.1.0" // the version in the sources
	return filepath.WalkDir(filepath.Join(r.src, "examples"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, key := range []string{"newTag: v", "cnibox:v", "appVersion: v", "version: "} {
			content = bytes.ReplaceAll(content, []byte(key+example), []byte(key+strings.TrimPrefix(r.version, "v")))
		}
		return os.WriteFile(path, content, 0o644)
	})
}

// manifests writes an archive of the manifests and the chart for Kubernetes, and of the pages that explain them.
func (r *release) manifests(context.Context) error {
	dir := "cnibox-" + r.version + "-kubernetes/"
	members, err := r.documents()
	if err != nil {
		return err
	}
	for i := range members {
		members[i].name = dir + members[i].name
	}
	out, err := tarball(r.at, append([]member{{name: dir, mode: 0o755}}, members...))
	if err != nil {
		return err
	}
	return os.WriteFile(r.name("-kubernetes.tar.gz"), out, 0o644)
}

// bundle writes one file with all that a node without a network needs.
func (r *release) bundle(context.Context) error {
	files, err := os.ReadDir(r.dist)
	if err != nil {
		return err
	}
	dir := "cnibox-" + r.version + "-bundle/"
	members := []member{{name: dir, mode: 0o755}}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return err
		}
		members = append(members, member{name: dir + f.Name(), mode: int64(info.Mode().Perm()), path: filepath.Join(r.dist, f.Name())})
	}
	return r.writeTarFile(r.name("-bundle.tar"), members)
}

// writeTarFile writes an archive that is not compressed.
func (r *release) writeTarFile(path string, members []member) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := writeTar(f, r.at, members); err != nil {
		return err
	}
	return f.Close()
}

// listed matches a verb in docs/cli.md: its section, or its line there, which precedes what the line says about it.
var listed = regexp.MustCompile(`(?m)^(?:### |    )cnibox ((?:[a-z][a-z-]* ?)+)(?:$|[^a-z|-])`)

// manual returns a manual page (man(7)) with the program's own help of each verb that docs/cli.md lists.
func (r *release) manual(ctx context.Context) ([]byte, error) {
	page, err := os.ReadFile(filepath.Join(r.src, "docs/cli.md"))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, ".TH CNIBOX 8 %s \"cnibox %s\" \"System Administration\"\n", r.at.Format(time.DateOnly), r.version)
	out.WriteString(".SH NAME\ncnibox \\- every CNI plugin in one binary\n")
	const keys = "\nkeys of the plugin:\n" // of a role with the name of a verb, behind the verb
	overview, err := run(ctx, "", nil, r.native(), "help")
	if err != nil {
		return nil, err
	}
	writeLiteral(&out, "DESCRIPTION", overview)
	written := map[string]bool{}
	for _, m := range listed.FindAllStringSubmatch(string(page), -1) {
		verb := strings.TrimSpace(m[1])
		if written[verb] {
			continue
		}
		written[verb] = true
		help, err := run(ctx, "", nil, r.native(), append([]string{"help"}, strings.Fields(verb)...)...)
		if err != nil {
			return nil, err
		}
		help, found := strings.CutPrefix(help, "cnibox "+verb+": ")
		title, text, _ := strings.Cut(help, "\n")
		text, _, _ = strings.Cut(text, keys)
		if !found {
			return nil, fmt.Errorf("help of %q: no title", verb)
		}
		writeLiteral(&out, "cnibox "+verb+": "+title, text)
	}
	if len(written) < 60 {
		return nil, fmt.Errorf("docs/cli.md lists %d verbs", len(written))
	}
	return out.Bytes(), nil
}

// writeLiteral writes a section of a manual page whose lines stay as they are.
func writeLiteral(out *bytes.Buffer, title, text string) {
	fmt.Fprintf(out, ".SH \"%s\"\n.nf\n", strings.ReplaceAll(roff(title), `"`, `""`))
	for line := range strings.Lines(strings.TrimSpace(text)) {
		out.WriteString(roff(strings.TrimSuffix(line, "\n")) + "\n")
	}
	out.WriteString(".fi\n")
}

// roff escapes a line of text.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", `\[u2026]`, "`", "").Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}
