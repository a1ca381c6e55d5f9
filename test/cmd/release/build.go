package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tags are the build tags of the Makefile.
const tags = "urfave_cli_no_docs"

// build compiles the tag for each architecture, in two clones with different paths. It fails if the two
// programs are not the same, byte for byte.
func (r *release) build(ctx context.Context) error {
	second := filepath.Join(filepath.Dir(r.src), "a second place", "cnibox")
	for _, dir := range []string{r.src, second} {
		if _, err := run(ctx, "", nil, "git", "clone", "--quiet", "--branch", r.version, "--", r.repo, dir); err != nil {
			return err
		}
	}
	for _, arch := range r.architectures {
		if err := r.compile(ctx, r.src, arch, r.binary(arch)); err != nil {
			return err
		}
		again := filepath.Join(filepath.Dir(second), arch)
		if err := r.compile(ctx, second, arch, again); err != nil {
			return err
		}
		if err := same(r.binary(arch), again); err != nil {
			return err
		}
	}
	out, err := run(ctx, "", nil, r.native(), "version")
	if err == nil && !strings.HasPrefix(out, "cnibox "+r.version+" ") {
		err = fmt.Errorf("the program says %q: Go takes the newest tag of a commit, so give commit %s one tag", strings.TrimSpace(out), r.commit)
	}
	return err
}

func (r *release) compile(ctx context.Context, src, arch, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0"}
	_, err = run(ctx, src, env, "go", "build", "-trimpath", "-buildvcs=true", "-tags", tags, "-ldflags=-s -w", "-o", out, ".")
	return err
}

func same(a, b string) error {
	x, err := os.ReadFile(a)
	if err != nil {
		return err
	}
	y, err := os.ReadFile(b)
	if err == nil && !bytes.Equal(x, y) {
		err = fmt.Errorf("the build is not reproducible: %s and %s differ", a, b)
	}
	return err
}
