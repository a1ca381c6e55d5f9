package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// packages writes a .deb and an .rpm for each architecture, from package/nfpm.yaml of the tag.
func (r *release) packages(ctx context.Context) error {
	tool, err := filepath.Abs(filepath.Join(r.tools, "nfpm"))
	if err != nil {
		return err
	}
	dist, err := filepath.Abs(r.dist)
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
		for _, kind := range []string{"deb", "rpm"} {
			if _, err := run(ctx, r.src, env, tool, "package", "--config", "test/cmd/release/package/nfpm.yaml", "--packager", kind, "--target", dist); err != nil {
				return err
			}
		}
	}
	return nil
}

// components writes the bill of materials in both usual forms. Syft reads it from the program, in which Go records
// every module.
func (r *release) components(ctx context.Context) error {
	tool, err := filepath.Abs(filepath.Join(r.tools, "syft"))
	if err != nil {
		return err
	}
	dist, err := filepath.Abs(r.dist)
	if err != nil {
		return err
	}
	for _, form := range []struct{ name, file string }{{"spdx-json", r.name(".spdx.json")}, {"cyclonedx-json", r.name(".cdx.json")}} {
		out, err := run(ctx, r.dist, []string{"SYFT_CHECK_FOR_APP_UPDATE=false"}, tool, "scan", "--quiet",
			"--source-name", "cnibox", "--source-version", r.version, "--output", form.name, "file:"+filepath.Base(r.binary("amd64")))
		if err != nil {
			return err
		}
		out = strings.ReplaceAll(out, dist+"/", "") // the path of the program
		fixed, err := withoutChance([]byte(out), r.commit, r.at)
		if err != nil {
			return err
		}
		if err := os.WriteFile(form.file, fixed, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// native returns the program for the machine that makes the release.
func (r *release) native() string { return r.binary(runtime.GOARCH) }
