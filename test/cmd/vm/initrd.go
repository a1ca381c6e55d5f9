package main

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed init.sh
var initScript []byte

// writeInitrd writes the RAM disk: busybox and a few programs of the file system at from, the modules, init, and the suites below /src.
func writeInitrd(file string, k kernel, root, from string, suites []suite, o options) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := bufio.NewWriterSize(f, 1<<20)
	a := &archive{w: buf, dirs: map[string]bool{}}
	a.data("init", 0o755, initScript)
	a.data("etc/modules", 0o644, moduleList(o))
	a.data("etc/suites", 0o644, suiteList(suites))
	a.data("etc/timeout", 0o644, testTimeout(o))
	a.data("etc/skip", 0o644, []byte(o.skip))
	a.data("etc/report", 0o644, []byte(o.arch.report))
	a.data("etc/environment", 0o644, environment(o))
	a.data("etc/protocols", 0o644, []byte("icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n")) // nft shows names
	a.data("etc/passwd", 0o644, []byte("root:x:0:0::/root:/bin/sh\n"))
	a.file("bin/busybox", filepath.Join(from, "bin", "busybox"))
	if err := addPrograms(a, o.arch, from); err != nil {
		return err
	}
	a.tree("lib/modules", k.modules, o.without)
	a.file("src/go.mod", filepath.Join(root, "go.mod"))
	for _, s := range suites {
		dir := path.Join("src", s.pkg)
		a.file(path.Join(dir, "suite.test"), s.bin)
		if data := filepath.Join(root, s.pkg, "testdata"); isDir(data) {
			a.tree(path.Join(dir, "testdata"), data, nil)
		}
	}
	for _, c := range o.copies {
		if !filepath.IsLocal(c) {
			return fmt.Errorf("copy %q: not inside the repository", c)
		}
		a.tree(path.Join("src", filepath.ToSlash(filepath.Clean(c))), filepath.Join(root, c), nil)
	}
	a.data("complete", 0o644, nil) // the last file
	if err := errors.Join(a.close(), buf.Flush()); err != nil {
		return err
	}
	return f.Close()
}

// moduleList returns the modules that init.sh loads, one a line. If some are left out, others that need them cannot be loaded either.
func moduleList(o options) []byte {
	var b strings.Builder
	for _, m := range moduleNames(modulesText) {
		if len(o.without) > 0 && !strings.HasSuffix(m, "?") {
			m += "?"
		}
		fmt.Fprintln(&b, m)
	}
	return []byte(b.String())
}

// suiteList returns a line for each suite: its package and the expression for its tests.
func suiteList(suites []suite) []byte {
	var b strings.Builder
	for _, s := range suites {
		fmt.Fprintln(&b, s.pkg, s.run)
	}
	return []byte(b.String())
}

// environment returns what init.sh exports, one quoted variable a line.
func environment(o options) []byte {
	var b strings.Builder
	for _, v := range o.env {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "export %s='%s'\n", name, value)
	}
	return []byte(b.String())
}

// testTimeout ends a hanging test with its stack traces before the machine is killed.
func testTimeout(o options) []byte {
	return []byte(max(o.timeout-30*time.Second, time.Second).String())
}

func isDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

// archive writes a cpio archive of the "newc" format (kernel: Documentation/driver-api/early-userspace/buffer-format.rst).
// The first error is kept, and close returns it.
type archive struct {
	w    io.Writer
	dirs map[string]bool
	ino  int
	err  error
}

// data adds a file with this content.
func (a *archive) data(name string, perm fs.FileMode, data []byte) {
	a.entry(name, 0o100000|uint32(perm.Perm()), int64(len(data)), strings.NewReader(string(data)))
}

// file adds a copy of a file of this machine.
func (a *archive) file(name, from string) {
	f, err := os.Open(from)
	if err != nil {
		a.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.fail(err)
		return
	}
	a.entry(name, 0o100000|uint32(info.Mode().Perm()), info.Size(), f)
}

// tree adds a file, or a directory with its content but for the modules in without. Symbolic links stay links.
func (a *archive) tree(name, from string, without []string) {
	a.fail(filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		to := path.Join(name, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			a.mkdir(to)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			a.entry(to, 0o120777, int64(len(target)), strings.NewReader(target))
		case d.Type().IsRegular() && !slices.Contains(without, moduleName(p)):
			a.file(to, p)
		}
		return a.err
	}))
}

// mkdir adds a directory and its parents, each once.
func (a *archive) mkdir(name string) {
	if name == "." || a.dirs[name] {
		return
	}
	a.dirs[name] = true
	a.entry(name, 0o40755, 0, strings.NewReader(""))
}

// entry adds one header and its content.
func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) {
	a.mkdir(path.Dir(name))
	a.header(name, mode, size)
	if a.err != nil {
		return
	}
	n, err := io.Copy(a.w, content)
	if err == nil && n != size {
		err = fmt.Errorf("add %q: %d bytes came, %d were announced", name, n, size)
	}
	a.fail(err)
	a.pad(size)
}

// header writes 13 numbers of 8 hexadecimal digits and the name.
func (a *archive) header(name string, mode uint32, size int64) {
	a.ino++
	h := "070701"
	for _, v := range []int64{int64(a.ino), int64(mode), 0, 0, 1, 0, size, 0, 0, 0, 0, int64(len(name) + 1), 0} {
		h += fmt.Sprintf("%08x", v)
	}
	a.write(h + name + "\x00")
	a.pad(int64(len(h) + len(name) + 1))
}

// pad adds zeros up to the next multiple of four.
func (a *archive) pad(n int64) {
	a.write("\x00\x00\x00"[:(4-n%4)%4])
}

func (a *archive) write(s string) {
	if a.err == nil {
		_, err := io.WriteString(a.w, s)
		a.fail(err)
	}
}

func (a *archive) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// close writes the trailer and returns the first error.
func (a *archive) close() error {
	a.header("TRAILER!!!", 0, 0)
	return a.err
}
