package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/test/internal/debian"
)

// modules.txt names the modules that the machine loads, in order, one a line; # begins a comment.
//
//go:embed modules.txt
var modulesText string

// kernel is a kernel in the cache.
type kernel struct {
	image   string // vmlinuz
	modules string // a directory to be /lib/modules: the modules of modules.txt and those they need, and depmod's files
}

// moduleNames are the names in modules.txt, with a "?" behind those that a kernel may lack.
func moduleNames(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		names = append(names, strings.Fields(line)...)
	}
	return names
}

// prepareKernel returns the kernel of a release of Debian from its cache, made first if modules.txt changed or the cache is empty.
func prepareKernel(ctx context.Context, cache, release, arch string) (kernel, error) {
	sum := sha256.Sum256([]byte(modulesText))
	dir := filepath.Join(cache, hex.EncodeToString(sum[:6]))
	k := kernel{image: filepath.Join(dir, "vmlinuz"), modules: filepath.Join(dir, "modules")}
	if _, err := os.Stat(dir); err == nil {
		return k, nil
	}
	all := filepath.Join(cache, "package")
	if err := debian.UnpackOnce(ctx, all, release, arch, debian.Kernel); err != nil {
		return kernel{}, err
	}
	tmp, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(tmp)
	if err := selectModules(ctx, all, tmp); err != nil {
		return kernel{}, err
	}
	// The rename makes the cache complete or absent; a run that lost the race uses the winner's.
	if err := os.Rename(filepath.Join(tmp, "out"), dir); err != nil && !errors.Is(err, os.ErrExist) {
		return kernel{}, err
	}
	return k, nil
}

// selectModules makes dir/out, a kernel as prepareKernel keeps it, from the files of a Debian package.
func selectModules(ctx context.Context, all, dir string) error {
	found, err := filepath.Glob(filepath.Join(all, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("unpack %q: %d kernels in it", all, len(found))
	}
	version := strings.TrimPrefix(filepath.Base(found[0]), "vmlinuz-")
	usr := filepath.Join(all, "usr") // where Debian has modules since trixie
	if _, err := os.Stat(filepath.Join(usr, "lib", "modules")); err != nil {
		usr = all
	}
	if err := depmod(ctx, usr, version); err != nil {
		return err
	}
	from := filepath.Join(usr, "lib", "modules", version)
	dep, err := os.ReadFile(filepath.Join(from, "modules.dep"))
	if err != nil {
		return err
	}
	builtin, err := os.ReadFile(filepath.Join(from, "modules.builtin"))
	if err != nil {
		return err
	}
	files, err := closure(dep, builtin, moduleNames(modulesText))
	if err != nil {
		return err
	}
	// depmod expects lib/modules below its base directory; the cache has no such directory.
	base := filepath.Join(dir, "base")
	to := filepath.Join(base, "lib", "modules", version)
	files = append(files, "modules.order", "modules.builtin", "modules.builtin.modinfo")
	for _, f := range files {
		if err := copyFile(filepath.Join(from, f), filepath.Join(to, f)); err != nil {
			return err
		}
		// The emulated processor would take seconds to unpack them.
		if strings.HasSuffix(f, ".xz") {
			if err := command(ctx, to, "busybox", "unxz", f).Run(); err != nil {
				return fmt.Errorf("unpack module %q: %w", f, err)
			}
		}
	}
	if err := depmod(ctx, base, version); err != nil {
		return err
	}
	if err := copyFile(found[0], filepath.Join(dir, "out", "vmlinuz")); err != nil {
		return err
	}
	return os.Rename(filepath.Join(base, "lib", "modules"), filepath.Join(dir, "out", "modules"))
}

func depmod(ctx context.Context, base, version string) error {
	if err := command(ctx, base, "depmod", "-b", base, version).Run(); err != nil {
		return fmt.Errorf("index modules of %q: %w", version, err)
	}
	return nil
}

// closure returns the files of the named modules and of all modules that they need, sorted. dep is a modules.dep: a line has a
// module's file, a colon and every file that it needs, directly or indirectly. builtin is a modules.builtin: its modules have no file.
func closure(dep, builtin []byte, names []string) ([]string, error) {
	lines := map[string][]string{}
	for line := range strings.Lines(string(builtin)) {
		lines[moduleName(strings.TrimSpace(line))] = nil
	}
	for line := range strings.Lines(string(dep)) {
		file, needs, _ := strings.Cut(line, ":")
		lines[moduleName(file)] = append([]string{file}, strings.Fields(needs)...)
	}
	var files []string
	for _, n := range names {
		n, optional := strings.CutSuffix(n, "?")
		found, ok := lines[moduleName(n)]
		if !ok && !optional {
			return nil, fmt.Errorf("module %q: %w in this kernel", n, os.ErrNotExist)
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// moduleName returns the name of a module's file, which may be compressed, as the kernel has it.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// command prepares a program whose output goes to standard error.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	return cmd
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
