// Package debian fetches packages of Debian's releases. It uses apt with a source list and a state of its own, so that the machine's
// lists and packages stay as they are, and installs nothing.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel stands for the package of the release's kernel.
const Kernel = "linux-image"

// apt has the package lists of one release.
type apt struct {
	dir, arch string
	env       []string
}

// UnpackOnce downloads packages of a release, such as "bookworm", for a processor, such as "arm64", and unpacks their files into dir,
// unless dir exists.
func UnpackOnce(ctx context.Context, dir, release, arch string, names ...string) error {
	// Programs run in other directories.
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	a, err := open(ctx, tmp, release, arch)
	if err != nil {
		return err
	}
	all := filepath.Join(tmp, "all")
	if err := a.unpack(ctx, all, names); err != nil {
		return err
	}
	// The rename makes dir complete or absent. A run that lost the race uses the winner's.
	if err := os.Rename(all, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// open downloads the lists of a release into dir.
func open(ctx context.Context, dir, release, arch string) (*apt, error) {
	a := &apt{dir: dir, arch: arch, env: append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"))}
	const source = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/"
	sources := fmt.Sprintf("%[1]sdebian %[2]s main\n%[1]sdebian-security %[2]s-security main\n", source, release)
	conf := fmt.Sprintf(`Dir::Etc::sourcelist "%[1]s/sources.list"; Dir::Etc::sourceparts "-"; Dir::State "%[1]s/state"; Dir::State::status "/dev/null";
Dir::Cache "%[1]s/cache"; APT::Architecture "%[2]s"; APT::Architectures {"%[2]s";}; APT::Sandbox::User "root";
Acquire::Retries "3"; Acquire::Languages "none";
`, dir, arch)
	for name, text := range map[string]string{"sources.list": sources, "apt.conf": conf} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "debs", "all"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if _, err := a.run(ctx, dir, "apt-get", "-qq", "update"); err != nil {
		return nil, fmt.Errorf("list the packages of %q: %w", release, err)
	}
	return a, nil
}

// resolve returns the package that stands for name: linux-image-amd64 depends on the kernel's.
func (a *apt) resolve(ctx context.Context, name string) (string, error) {
	if name != Kernel {
		return name, nil
	}
	name += "-" + a.arch
	out, err := a.run(ctx, a.dir, "apt-cache", "depends", "--important", name)
	if err != nil {
		return "", fmt.Errorf("look up %q: %w", name, err)
	}
	_, rest, ok := strings.Cut(out, "Depends: ")
	if !ok {
		return "", fmt.Errorf("look up %q: it depends on nothing", name)
	}
	return strings.Fields(rest)[0], nil
}

func (a *apt) unpack(ctx context.Context, dir string, names []string) error {
	args := []string{"-qq", "download"}
	for _, name := range names {
		name, err := a.resolve(ctx, name)
		if err != nil {
			return err
		}
		args = append(args, name)
	}
	debs := filepath.Join(a.dir, "debs")
	if _, err := a.run(ctx, debs, "apt-get", args...); err != nil {
		return fmt.Errorf("download %q: %w", names, err)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) != len(names) {
		return fmt.Errorf("download %q: %d files came", names, len(files))
	}
	for _, deb := range files {
		if _, err := a.run(ctx, debs, "dpkg", "-x", deb, dir); err != nil {
			return fmt.Errorf("unpack %q: %w", deb, err)
		}
	}
	return nil
}

// run returns what a program prints. Its error has what the program reported.
func (a *apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, a.env, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
