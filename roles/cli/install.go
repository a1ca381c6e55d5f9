package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/cli/lint"
	"github.com/cnibox/cnibox/roles/plugindir"
	"github.com/cnibox/cnibox/roles/record"
)

// defaultPluginDir is the directory in which runtimes look for plugins.
const defaultPluginDir = "/opt/cni/bin"

// installFromFlags is `cnibox install`.
func (p *Process) installFromFlags(c *invocation) error {
	kind := plugindir.LinkKind(c.String("link"))
	if !slices.Contains([]plugindir.LinkKind{plugindir.Symbolic, plugindir.Hard, plugindir.Copy}, kind) {
		return usagef("cnibox help install", "--link %q: want symlink, hard or copy", kind)
	}
	names, err := p.pluginNames(c.args)
	if err != nil {
		return err
	}
	dir, confDir, root := c.String("dir"), c.String("conf-dir"), c.String("root")
	if dir == "" {
		return usagef("cnibox help install", "--dir: want a directory")
	}
	runtime, err := findRuntime(c.String("runtime"))
	if err != nil {
		return err
	}
	if root != "" {
		if runtime != nil {
			return usagef("docs/runtimes.md has the files to add to the image", "--runtime works on this node, not on the image of --root")
		}
		if dir, err = inImage(root, dir); err != nil {
			return err
		}
		if confDir, err = inImage(root, confDir); err != nil {
			return err
		}
	}
	network, err := p.readNetworkFile(c.String("conflist"), confDir)
	if err != nil {
		return err
	}
	replaced, err := p.install(dir, kind, c.Bool("force"), names)
	if replaced && root == "" {
		p.reapDetached(c.Context)
	}
	switch {
	case err != nil:
		return err
	case runtime != nil:
		if err := p.configure(runtime, dir, names); err != nil {
			return err
		}
	case root == "":
		p.warnUnused(dir, names)
	}
	if network != nil {
		return network.place(p, dir)
	}
	return nil
}

// pluginNames checks role names. Without names it returns those of all plugins.
func (p *Process) pluginNames(given []string) ([]string, error) {
	all := p.Table.Types()
	if len(given) == 0 {
		return all, nil
	}
	for _, g := range given {
		if !slices.Contains(all, g) {
			hint := "cnibox list"
			if s := lint.Suggest(g, all); s != "" {
				hint = fmt.Sprintf("%s (did you mean %q?)", hint, s)
			}
			return nil, usagef(hint, "%q is not a role", g)
		}
	}
	slices.Sort(given)
	return slices.Compact(given), nil
}

// inImage makes a directory of an image and returns its path. No link of the image leads out of it.
func inImage(root, dir string) (string, error) {
	image, err := os.OpenRoot(root)
	if err != nil {
		return "", withHint(err, "--root: want the directory of an image")
	}
	defer image.Close()
	dir = strings.TrimLeft(filepath.Clean("/"+dir), "/")
	if err := image.MkdirAll(dir, 0o755); err != nil {
		return "", withHint(fmt.Errorf("make directory in image %q: %w", root, err), "run it as root; a link in the image has to be relative")
	}
	return filepath.Join(root, dir), nil
}

// install places the binary and the links, and reports what it did. It returns true if it replaced another program's plugin.
func (p *Process) install(dir string, kind plugindir.LinkKind, force bool, names []string) (replaced bool, err error) {
	is, err := plugindir.Open(dir, p.Executable).Install(names, kind, force, p.fileChanged)
	if err != nil {
		return false, withHint(err, installHint(err))
	}
	if is.Kept > 0 {
		return is.Replaced, withHint(fmt.Errorf("%d of %d names are other programs' files: %w", is.Kept, len(names), errDifferent), "the same command with --force")
	}
	return is.Replaced, nil
}

// reapDetached removes the attachments of an earlier installation that the plugins of the
// meantime detached. They do not know cnibox's nftables elements and records.
func (p *Process) reapDetached(ctx context.Context) {
	h, done, err := p.host(ctx, "")
	if err == nil {
		defer done()
		_, err = record.Reap(ctx, h, "")
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "cnibox: remains of containers that other plugins detached are not removed: %v: run 'cnibox state reap'\n", err)
	}
}

// installHint returns advice for a directory in which nothing can be placed.
func installHint(err error) string {
	switch {
	case errors.Is(err, plugindir.ErrBlocked):
		return "remove it by hand; nothing was changed"
	case errors.Is(err, os.ErrPermission):
		return "run it as root, or choose a directory with --dir"
	case errors.Is(err, unix.EXDEV):
		return "use --link symlink or --link copy"
	}
	return "check the directory"
}
