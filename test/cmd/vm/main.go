// Command vm runs the tests of packages on the stock kernel of a release of Debian in a virtual machine.
//
// It is for tests that need what the kernel of the test machines lacks (bridge VLAN filtering, 8021q, dummy, vrf, …) or devices
// that outlive a network namespace. It compiles each package's tests as a static binary, boots a kernel with them in a RAM disk,
// runs them as root, prints their output as it comes, and exits 0 only if all of them ended and passed without a skip. It installs
// nothing: packages are unpacked under -cache. QEMU emulates the processor (tcg), so that it works without /dev/kvm, and
// can emulate an arm64: -arch arm64 compiles the tests for it, and takes the programs of the RAM disk from Debian's packages.
//
//	go run ./test/cmd/vm [-debian bookworm] [-arch amd64] [-functions] [-without MODULE]… [-timeout 20m] [-run REGEXP] [-skip REGEXP] [-tags TAGS] [-copy PATH]… [-env NAME=VALUE]… PACKAGE[=REGEXP]…
//
// The expression after a package replaces -run for it. 'TestA/x|TestB' selects several tests.
//
// In the machine CNIBOX_TEST_VM is 1, / is a RAM disk, /run, /tmp, /proc, /sys and /dev are mounted, lo is up and every busybox
// applet is on PATH. Each package's directory with its testdata is at /src/PACKAGE and is the working directory of its tests; -copy
// adds files or directories of the repository under /src. The machine has two network devices on its PCI bus, nic0 and nic1, which
// are connected to each other only. With -functions it has a third on the same wire, pf0, with four virtual functions (SR-IOV). Debian
// 12's QEMU has no such device, so trixie's is unpacked under -cache.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are read from the command line.
type options struct {
	timeout time.Duration
	run     string
	tags    string
	skip    string
	cache   string
	release string
	arch    arch
	// functions adds a network card with virtual functions.
	functions bool
	// without are modules that the machine lacks.
	without []string
	copies  []string
	env     []string // NAME=VALUE for the tests
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
	flag.DurationVar(&o.timeout, "timeout", 20*time.Minute, "kill the machine after this `time`")
	flag.StringVar(&o.run, "run", "", "run only the tests that match `regexp`, in packages that bring none of their own")
	flag.StringVar(&o.skip, "skip", "", "leave out the tests that match `regexp`, in all packages")
	// The default is those of the product, so that Go's build cache already has the packages.
	flag.StringVar(&o.tags, "tags", "urfave_cli_no_docs", "build `tags` of the tests")
	flag.StringVar(&o.cache, "cache", "bin/vm", "`directory` of unpacked packages, relative to the repository")
	flag.StringVar(&o.release, "debian", "bookworm", "`release` of Debian whose kernel boots: bullseye has 5.10, bookworm 6.1, trixie 6.12")
	o.arch = archs()["amd64"]
	flag.Func("arch", "`processor` of the machine: amd64 or arm64", func(v string) error {
		a, ok := archs()[v]
		if !ok {
			return errors.New("want amd64 or arm64")
		}
		o.arch = a
		return nil
	})
	flag.BoolVar(&o.functions, "functions", false, "add a network card with virtual functions")
	flag.Func("without", "a kernel `module` that the machine lacks, with those that need it (repeatable)", func(v string) error {
		o.without = append(o.without, v)
		return nil
	})
	flag.Func("copy", "file or directory of the repository to have in the machine (repeatable `path`)", func(v string) error {
		o.copies = append(o.copies, v)
		return nil
	})
	flag.Func("env", "variable of the tests' environment (repeatable `NAME=VALUE`)", func(v string) error {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.ContainsAny(v, "\n\r'") {
			return errors.New("want NAME=VALUE on one line, without quotes")
		}
		o.env = append(o.env, v)
		return nil
	})
	flag.Parse()
	o.pkgs = flag.Args()
	return o
}

func run(ctx context.Context, o options) error {
	if _, err := regexp.Compile(o.skip); err != nil {
		return fmt.Errorf("-skip: %w", err)
	}
	if o.functions && len(o.arch.functions) == 0 {
		return fmt.Errorf("-functions: there is no such card for %s", o.arch.name)
	}
	if len(o.pkgs) == 0 {
		return errors.New("no package named, for example: go run ./test/cmd/vm ./netops")
	}
	suites, err := nameSuites(o)
	if err != nil {
		return err
	}
	root, err := repoRoot()
	if err != nil {
		return err
	}
	if !filepath.IsAbs(o.cache) {
		o.cache = filepath.Join(root, o.cache)
	}
	cache := filepath.Join(o.cache, o.release+"-"+o.arch.name)
	k, err := prepareKernel(ctx, cache, o.release, o.arch.name)
	if err != nil {
		return fmt.Errorf("prepare kernel: %w", err)
	}
	files, err := prepareFiles(ctx, cache, o)
	if err != nil {
		return fmt.Errorf("prepare programs: %w", err)
	}
	emulator, err := prepareEmulator(ctx, o)
	if err != nil {
		return fmt.Errorf("prepare QEMU: %w", err)
	}
	work, err := os.MkdirTemp("", "cnibox-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := buildSuites(ctx, root, work, o.arch.name, o.tags, suites); err != nil {
		return err
	}
	initrd := filepath.Join(work, "initrd")
	if err := writeInitrd(initrd, k, root, files, suites, o); err != nil {
		return fmt.Errorf("write initrd: %w", err)
	}
	return boot(ctx, machine{
		emulator: emulator, kernel: k.image, initrd: initrd, arch: o.arch, functions: o.functions,
		console: filepath.Join(work, "console"), suites: suites, timeout: o.timeout,
	}, os.Stdout)
}

// repoRoot returns the closest directory with go.mod, from the working directory upwards.
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
	run string // which of its tests; empty is all
	bin string // path of the test binary on this machine
}

// nameSuites reads the packages of the command line.
func nameSuites(o options) ([]suite, error) {
	suites := make([]suite, 0, len(o.pkgs))
	for _, arg := range o.pkgs {
		dir, run, own := strings.Cut(arg, "=")
		if !own {
			run = o.run
		}
		s := suite{pkg: filepath.ToSlash(filepath.Clean(dir)), run: run}
		switch {
		case !filepath.IsLocal(s.pkg), strings.Contains(s.pkg, "..."):
			return nil, fmt.Errorf("package %q: give a directory of the repository, like ./netops", dir)
		case strings.ContainsAny(run, "\n\r"):
			return nil, fmt.Errorf("package %q: the expression has more than one line", dir)
		case slices.ContainsFunc(suites, func(other suite) bool { return other.pkg == s.pkg }):
			return nil, fmt.Errorf("package %q: is named twice, give one expression like 'TestA/x|TestB'", dir)
		}
		if _, err := regexp.Compile(run); err != nil {
			return nil, fmt.Errorf("package %q: %w", dir, err)
		}
		suites = append(suites, s)
	}
	return suites, nil
}

// buildSuites compiles the tests of every package without cgo, so that they need no shared library in the machine.
func buildSuites(ctx context.Context, root, work, arch, tags string, suites []suite) error {
	for i := range suites {
		s := &suites[i]
		s.bin = filepath.Join(work, fmt.Sprintf("%d.test", i))
		cmd := command(ctx, root, "go", "test", "-tags", tags, "-c", "-ldflags=-s -w", "-o", s.bin, "./"+s.pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch, "GOOS=linux")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("compile tests of %q: %w", s.pkg, err)
		}
		if _, err := os.Stat(s.bin); err != nil {
			return fmt.Errorf("compile tests of %q: the package has no tests", s.pkg)
		}
	}
	return nil
}
