// Command vm runs the tests of packages on Debian's stock kernel in a virtual machine.
//
// It exists for what the kernel of the test machines lacks (bridge VLAN filtering, 8021q, dummy, vrf, …). It compiles each
// package's tests as a static binary, boots a kernel with them in a RAM disk, runs them as root, prints their output as it
// comes and exits 0 only if every one of them ended and passed without a skip. Nothing is installed: kernel and modules are
// unpacked under -cache. QEMU emulates (tcg), so that it works where /dev/kvm is missing or broken.
//
//	go run ./test/vm [-timeout 10m] [-run REGEXP] [-copy PATH]… PACKAGE…
//
// In the machine CNIBOX_TEST_VM is 1, / is a RAM disk, /run, /tmp, /proc, /sys and /dev are mounted, lo is up and every
// busybox applet is on PATH. Each package's directory is found at /src/PACKAGE with its testdata, and is the working directory
// of its tests; -copy adds further files or directories of the repository under /src.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the command line's wishes.
type options struct {
	timeout time.Duration
	run     string
	cache   string
	copies  []string
	pkgs    []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, parse())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func parse() options {
	var o options
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "kill the machine after this `time`")
	flag.StringVar(&o.run, "run", "", "run only the tests that match `regexp`")
	flag.StringVar(&o.cache, "cache", "bin/vm", "`directory` of the unpacked kernel, relative to the repository")
	flag.Func("copy", "file or directory of the repository to have in the machine (repeatable `path`)", func(v string) error {
		o.copies = append(o.copies, v)
		return nil
	})
	flag.Parse()
	o.pkgs = flag.Args()
	return o
}

func run(ctx context.Context, o options) error {
	if len(o.pkgs) == 0 {
		return errors.New("no package named, for example: go run ./test/vm ./netops")
	}
	root, err := repoRoot()
	if err != nil {
		return err
	}
	if !filepath.IsAbs(o.cache) {
		o.cache = filepath.Join(root, o.cache)
	}
	k, err := prepareKernel(ctx, o.cache)
	if err != nil {
		return fmt.Errorf("prepare kernel: %w", err)
	}
	work, err := os.MkdirTemp("", "cnibox-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	suites, err := buildSuites(ctx, root, work, o.pkgs)
	if err != nil {
		return err
	}
	initrd := filepath.Join(work, "initrd")
	if err := writeInitrd(initrd, k, root, suites, o); err != nil {
		return fmt.Errorf("write initrd: %w", err)
	}
	return boot(ctx, machine{kernel: k.image, initrd: initrd, console: filepath.Join(work, "console"), suites: suites, timeout: o.timeout}, os.Stdout)
}

// repoRoot is the closest directory above the working one that holds go.mod.
func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("find go.mod above %q: %w", dir, os.ErrNotExist)
		}
	}
}

// suite is one package's compiled tests.
type suite struct {
	pkg string // relative to the repository, without a leading ./
	bin string // path of the test binary on this machine
}

// buildSuites compiles the tests of every package without cgo, so that they need no shared library in the machine.
func buildSuites(ctx context.Context, root, work string, pkgs []string) ([]suite, error) {
	suites := make([]suite, 0, len(pkgs))
	for i, p := range pkgs {
		s := suite{pkg: filepath.ToSlash(filepath.Clean(p)), bin: filepath.Join(work, fmt.Sprintf("%d.test", i))}
		if !filepath.IsLocal(s.pkg) || strings.Contains(s.pkg, "...") {
			return nil, fmt.Errorf("package %q: give a directory of the repository, like ./netops", p)
		}
		cmd := command(ctx, root, "go", "test", "-c", "-ldflags=-s -w", "-o", s.bin, "./"+s.pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOOS=linux")
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("compile tests of %q: %w", p, err)
		}
		if _, err := os.Stat(s.bin); err != nil {
			return nil, fmt.Errorf("compile tests of %q: the package has no tests", p)
		}
		suites = append(suites, s)
	}
	return suites, nil
}
