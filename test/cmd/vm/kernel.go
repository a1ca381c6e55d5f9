package main

import (
	"bufio"
	"bytes"
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

// moduleNames are the names in modules.txt.
func moduleNames(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		names = append(names, strings.Fields(line)...)
	}
	return names
}

// prepareKernel returns the cached kernel, made first if modules.txt changed or the cache is empty.
func prepareKernel(ctx context.Context, cache string) (kernel, error) {
	sum := sha256.Sum256([]byte(modulesText))
	dir := filepath.Join(cache, hex.EncodeToString(sum[:6]))
	k := kernel{image: filepath.Join(dir, "vmlinuz"), modules: filepath.Join(dir, "modules")}
	if _, err := os.Stat(dir); err == nil {
		return k, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return kernel{}, err
	}
	deb, err := kernelPackage(ctx, cache)
	if err != nil {
		return kernel{}, err
	}
	tmp, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(tmp)
	if err := unpack(ctx, deb, tmp); err != nil {
		return kernel{}, err
	}
	// The rename makes the cache complete or absent; a run that lost the race uses the winner's.
	if err := os.Rename(filepath.Join(tmp, "out"), dir); err != nil && !errors.Is(err, os.ErrExist) {
		return kernel{}, err
	}
	return k, nil
}

// kernelPackage downloads the package that linux-image-amd64 depends on, unless it is in the cache.
func kernelPackage(ctx context.Context, cache string) (string, error) {
	found, err := filepath.Glob(filepath.Join(cache, "linux-image-*.deb"))
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", "--important", "linux-image-amd64").Output()
	if err != nil {
		return "", fmt.Errorf("look up linux-image-amd64: %w", err)
	}
	_, rest, ok := strings.Cut(string(out), "Depends: ")
	if !ok {
		return "", errors.New("look up linux-image-amd64: apt knows no such package, run apt-get update")
	}
	name := strings.Fields(rest)[0]
	tmp, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := command(ctx, tmp, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", name).Run(); err != nil {
		return "", fmt.Errorf("download %q: %w", name, err)
	}
	if found, err = filepath.Glob(filepath.Join(tmp, "*.deb")); err != nil || len(found) != 1 {
		return "", fmt.Errorf("download %q: %d files came", name, len(found))
	}
	deb := filepath.Join(cache, filepath.Base(found[0]))
	return deb, os.Rename(found[0], deb)
}

// unpack makes dir/out, a kernel as prepareKernel keeps it, from a Debian package.
func unpack(ctx context.Context, deb, dir string) error {
	all, out := filepath.Join(dir, "all"), filepath.Join(dir, "out")
	if err := command(ctx, dir, "dpkg", "-x", deb, all).Run(); err != nil {
		return fmt.Errorf("unpack %q: %w", deb, err)
	}
	found, err := filepath.Glob(filepath.Join(all, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("unpack %q: %d kernels in it", deb, len(found))
	}
	version := strings.TrimPrefix(filepath.Base(found[0]), "vmlinuz-")
	if err := depmod(ctx, all, version); err != nil {
		return err
	}
	from := filepath.Join(all, "lib", "modules", version)
	dep, err := os.ReadFile(filepath.Join(from, "modules.dep"))
	if err != nil {
		return err
	}
	files, err := closure(dep, moduleNames(modulesText))
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
	}
	if err := depmod(ctx, base, version); err != nil {
		return err
	}
	if err := copyFile(found[0], filepath.Join(out, "vmlinuz")); err != nil {
		return err
	}
	return os.Rename(filepath.Join(base, "lib", "modules"), filepath.Join(out, "modules"))
}

func depmod(ctx context.Context, base, version string) error {
	if err := command(ctx, base, "depmod", "-b", base, version).Run(); err != nil {
		return fmt.Errorf("index modules of %q: %w", version, err)
	}
	return nil
}

// closure returns the files of the named modules and of all modules that they need, sorted. dep is a modules.dep: a line has a
// module's file, a colon and every file that it needs, directly or indirectly.
func closure(dep []byte, names []string) ([]string, error) {
	lines := map[string][]string{}
	sc := bufio.NewScanner(bytes.NewReader(dep))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		file, needs, _ := strings.Cut(sc.Text(), ":")
		name := strings.TrimSuffix(filepath.Base(file), ".ko")
		lines[strings.ReplaceAll(name, "-", "_")] = append([]string{file}, strings.Fields(needs)...)
	}
	var files []string
	for _, n := range names {
		found, ok := lines[strings.ReplaceAll(n, "-", "_")]
		if !ok {
			return nil, fmt.Errorf("module %q: %w in this kernel", n, os.ErrNotExist)
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	return slices.Compact(files), sc.Err()
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
