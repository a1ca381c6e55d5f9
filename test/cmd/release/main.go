// Command release writes everything of a release into a directory: static binaries, archives, packages,
// a container image, bills of materials, provenance, checksums and their signature. See docs/release.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "the release, a tag of the repository such as v0.1.0")
	flag.StringVar(&r.repo, "repo", ".", "the repository")
	flag.StringVar(&r.out, "out", "dist", "the directory for the release; it must not exist")
	flag.StringVar(&r.tools, "tools", "bin", "the directory of nfpm")
	flag.StringVar(&r.key, "key", "", "minisign's secret key, made without a password; without it nothing is signed")
	flag.StringVar(&r.program, "program", "", "write nothing but a container image, of this `file` for this machine's processor")
	flag.Parse()
	r.architectures = []string{"amd64", "arm64"}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to do
	}
	fmt.Printf("%s: release %s, commit %s\n", r.out, r.version, r.commit)
}

// release is one run. All files are made in a temporary directory, which is renamed at the end.
type release struct {
	version, repo, out, tools, key string
	// program is a program for this machine, of which only the image is made.
	program string
	// architectures are GOARCH values.
	architectures []string

	// commit is what the tag names, and at its time: the time of every file of the release.
	commit string
	at     time.Time
	// src is a clone of the repository at the tag, and dist the directory of results.
	src, dist string
	// licence has the SPDX expression of each module in the program, by path and version, and of "stdlib".
	licence map[string]string
}

// versions are semantic ones, as Go wants them.
var versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.]+)?$`)

func (r *release) run(ctx context.Context) error {
	if r.program != "" {
		return r.imageOf(ctx)
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(r.out), ".release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	r.src, r.dist = filepath.Join(work, "src"), filepath.Join(work, "dist")
	if err := os.MkdirAll(r.dist, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"build", r.build},
		{"collect licences", r.notices},
		{"set the version of the examples", r.stamp},
		{"archive", r.archives},
		{"pack manifests", r.manifests},
		{"package", r.packages},
		{"image", r.image},
		{"list components", r.components},
		{"list vulnerabilities", r.vulnerabilities},
		{"bundle", r.bundle},
		{"attest", r.attest},
	} {
		fmt.Fprintf(os.Stderr, "release: %s\n", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return os.Rename(r.dist, r.out)
}

// imageOf writes the image of a program that is not released, for tests.
func (r *release) imageOf(ctx context.Context) error {
	if err := checkStatic(r.program); err != nil {
		return err
	}
	program, err := os.ReadFile(r.program)
	if err != nil {
		return err
	}
	r.architectures, r.at, r.dist = []string{runtime.GOARCH}, time.Unix(0, 0).UTC(), r.out
	if err := os.Mkdir(r.dist, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(r.binary(runtime.GOARCH), program, 0o755); err != nil {
		return err
	}
	return r.image(ctx)
}

// check fails before any work if the release cannot be made.
func (r *release) check(ctx context.Context) error {
	if !versions.MatchString(r.version) {
		return fmt.Errorf("version %q: use a semantic version, such as 'make release VERSION=v0.1.0'", r.version)
	}
	if _, err := os.Lstat(r.out); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%q exists: remove it, or choose another directory with OUT", r.out)
	}
	if r.key != "" {
		if _, err := os.Stat(r.key); err != nil {
			return fmt.Errorf("key: %w", err)
		}
	}
	out, err := run(ctx, r.repo, nil, "git", "log", "-1", "--format=%H %ct", "refs/tags/"+r.version, "--")
	if err != nil {
		return fmt.Errorf("tag %s: %w: make it with 'git tag %s'", r.version, err, r.version)
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(out), " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("time of commit %s: %w", commit, err)
	}
	r.commit, r.at = commit, time.Unix(n, 0).UTC()
	return nil
}

// name returns the path of a file of the release: "cnibox-v0.1.0" and the suffix.
func (r *release) name(suffix string) string {
	return filepath.Join(r.dist, "cnibox-"+r.version+suffix)
}

// binary returns the path of the program for one architecture.
func (r *release) binary(arch string) string { return r.name("-linux-" + arch) }

// run executes a program in a directory, with variables added to the environment, and returns its output.
func run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}
