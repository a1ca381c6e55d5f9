// Package debian fetches packages of Debian's releases. It uses apt with a source list and a state of its own, so that the machine's
// lists and packages stay as they are, and installs nothing.
package debian

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Apt has the package lists of one release.
type Apt struct {
	dir string
	env []string
}

// Open downloads the lists of a release, such as "bookworm", into a temporary directory below dir. The caller closes it.
func Open(ctx context.Context, dir, release string) (*Apt, error) {
	tmp, err := os.MkdirTemp(dir, "apt-")
	if err != nil {
		return nil, err
	}
	a := &Apt{dir: tmp, env: append(os.Environ(), "APT_CONFIG="+filepath.Join(tmp, "apt.conf"))}
	const source = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/"
	sources := fmt.Sprintf("%[1]sdebian %[2]s main\n%[1]sdebian-security %[2]s-security main\n", source, release)
	conf := fmt.Sprintf(`Dir::Etc::sourcelist "%[1]s/sources.list"; Dir::Etc::sourceparts "-"; Dir::State "%[1]s/state"; Dir::State::status "/dev/null";
Dir::Cache "%[1]s/cache"; APT::Sandbox::User "root"; Acquire::Retries "3"; Acquire::Languages "none";
`, tmp)
	for name, text := range map[string]string{"sources.list": sources, "apt.conf": conf} {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(tmp, d), 0o755); err != nil {
			return nil, err
		}
	}
	if _, err := a.run(ctx, tmp, "apt-get", "-qq", "update"); err != nil {
		return nil, fmt.Errorf("list the packages of %q: %w", release, err)
	}
	return a, nil
}

// Close removes the lists.
func (a *Apt) Close() error { return os.RemoveAll(a.dir) }

// Depends returns the first dependency of a package.
func (a *Apt) Depends(ctx context.Context, name string) (string, error) {
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

// Unpack downloads packages and unpacks their files below dir.
func (a *Apt) Unpack(ctx context.Context, dir string, names ...string) error {
	debs := filepath.Join(a.dir, "debs")
	if _, err := a.run(ctx, debs, "apt-get", append([]string{"-qq", "download"}, names...)...); err != nil {
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
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	return nil
}

// run returns what a program prints. Its error has what the program reported.
func (a *Apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, a.env, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
