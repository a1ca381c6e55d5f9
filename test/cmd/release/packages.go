package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
)

// packages writes a .deb, an .rpm and an .apk for each architecture, from package/nfpm.yaml of the tag.
func (r *release) packages(ctx context.Context) error {
	tool, err := filepath.Abs(filepath.Join(r.tools, "nfpm"))
	if err != nil {
		return err
	}
	dist, err := filepath.Abs(r.dist)
	if err != nil {
		return err
	}
	// An .apk has the times of the scripts' files.
	scripts, err := filepath.Glob(filepath.Join(r.src, "test", "cmd", "release", "package", "*.sh"))
	for _, script := range scripts {
		err = errors.Join(err, os.Chtimes(script, r.at, r.at))
	}
	if err != nil {
		return err
	}
	for _, arch := range r.architectures {
		binary, err := filepath.Abs(r.binary(arch))
		if err != nil {
			return err
		}
		env := []string{
			"VERSION=" + r.version, "ARCH=" + arch, "BINARY=" + binary,
			"SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.at.Unix(), 10),
		}
		for _, kind := range []string{"deb", "rpm", "apk"} {
			if _, err := run(ctx, r.src, env, tool, "package", "--config", "test/cmd/release/package/nfpm.yaml", "--packager", kind, "--target", dist); err != nil {
				return err
			}
		}
	}
	return nil
}

// native returns the program for the machine that makes the release.
func (r *release) native() string { return r.binary(runtime.GOARCH) }
