package main

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/internal/debian"
)

// prepareFiles returns the file system that has the programs: this machine's, or unpacked packages in the cache.
func prepareFiles(ctx context.Context, cache string, o options) (string, error) {
	if len(o.arch.packages) == 0 {
		return "/", nil
	}
	sum := sha256.Sum256([]byte(strings.Join(o.arch.packages, " ")))
	dir := filepath.Join(cache, "programs-"+hex.EncodeToString(sum[:6]))
	return dir, debian.UnpackOnce(ctx, dir, o.release, o.arch.name, o.arch.packages...)
}

// programDir is the directory of programs in the RAM disk.
const programDir = "usr/sbin"

// addPrograms adds the programs of the file system at from, the libraries that they are linked with, and those that they load by name:
// the matches and targets of iptables.
func addPrograms(a *archive, m arch, from string) error {
	have := map[string]bool{}
	for _, name := range m.programs {
		// In the package of iproute2 sbin/ip is a link to this machine's /bin/ip.
		file, err := find(from, name, "usr/bin", "bin", "usr/sbin", "sbin")
		if err != nil {
			return fmt.Errorf("the tests need %s: %w", name, err)
		}
		a.file(path.Join(programDir, name), file)
		if err := addLibraries(a, m, from, file, have); err != nil {
			return err
		}
	}
	plugins := path.Join("usr/lib", m.libs, "xtables")
	files, err := filepath.Glob(filepath.Join(from, plugins, "*.so"))
	if err != nil {
		return err
	}
	for _, file := range files {
		a.file(path.Join(plugins, filepath.Base(file)), file)
	}
	return nil
}

// addLibraries adds what a program or library is linked with, each once.
func addLibraries(a *archive, m arch, from, file string, have map[string]bool) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if !have[m.loader] && len(needed) > 0 {
		have[m.loader] = true
		a.file(m.loader, filepath.Join(from, m.loader))
	}
	for _, name := range needed {
		if have[name] {
			continue
		}
		have[name] = true
		// The directories that Debian's loader searches (ld.so.conf).
		library, err := find(from, name, path.Join("lib", m.libs), path.Join("usr/lib", m.libs), "lib64", "lib", "usr/lib")
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		a.file(path.Join("lib", m.libs, name), library)
		if err := addLibraries(a, m, from, library, have); err != nil {
			return err
		}
	}
	return nil
}

// find returns the file of this name in the first of the directories that has it.
func find(from, name string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		p := filepath.Join(from, dir, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, os.ErrNotExist)
}
