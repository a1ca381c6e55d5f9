package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// defaultPluginDir is the directory in which runtimes look for plugins.
const defaultPluginDir = "/opt/cni/bin"

func (p *Process) installCommand() *cli.Command {
	return &cli.Command{
		Name:      "install",
		Usage:     "install the binary and a link for each role in the plugin directory",
		ArgsUsage: "[ROLE…]",
		Description: `Places the binary as DIR/cnibox and links each ROLE (all of them by default) to it.
All files are checked, then written under temporary names, and then renamed, so every
plugin exists and is complete at any time. Another program's plugin is kept. With
--force it is moved to DIR/.cnibox-replaced, and uninstall restores it. No file is
executed to identify it. When a plugin was replaced, what is left of cnibox's containers
that ended meanwhile is removed. docs/migrate.md describes the effect on running containers.

Runtimes search plugins in different directories. --runtime makes one of them search DIR
first: by an additional file for podman and crio; for containerd and nerdctl it prints
what to change, and exits with 3. Without another --dir, install names the runtimes of this node
that need it. A directory of the distribution, such as /usr/lib/cni, is refused without
--force, because an upgrade of its packages replaces the plugins. So is one that others
can write. --conflist checks a network and writes it last, so that no runtime sees it
before its plugins.

--root installs into the file system of an image below that directory, and looks at
nothing else of this node.

examples:
  cnibox install
  cnibox install --runtime podman
  cnibox install bridge host-local --force`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Value: defaultPluginDir, Usage: "the plugin directory; it is made if it does not exist"},
			&cli.StringFlag{Name: "link", Value: string(plugindir.Symbolic), Usage: "symlink, hard or copy"},
			&cli.BoolFlag{Name: "force", Usage: "replace other programs' plugins"},
			&cli.StringFlag{Name: "runtime", Usage: "make this runtime use DIR: " + strings.Join(runtimeNames(), ", ")},
			&cli.StringFlag{Name: "conflist", Usage: "a network that is written to CONF-DIR, in place of a file of the same name"},
			&cli.StringFlag{Name: "conf-dir", Value: defaultConfDir, Usage: "the directory of networks"},
			&cli.StringFlag{Name: "root", Usage: "the root of an image; DIR and CONF-DIR are below it"},
			quietFlag(),
		},
		Action: p.withChanges(p.installFromFlags),
	}
}

// installFromFlags is `cnibox install`.
func (p *Process) installFromFlags(c *cli.Context) error {
	kind := plugindir.LinkKind(c.String("link"))
	if !slices.Contains([]plugindir.LinkKind{plugindir.Symbolic, plugindir.Hard, plugindir.Copy}, kind) {
		return advice.Usagef("cnibox help install", "--link %q: want symlink, hard or copy", kind)
	}
	names, err := p.pluginNames(c.Args().Slice())
	if err != nil {
		return err
	}
	dir, confDir, root := c.String("dir"), c.String("conf-dir"), c.String("root")
	if dir == "" {
		return advice.Usagef("cnibox help install", "--dir: want a directory")
	}
	runtime, err := findRuntime(c.String("runtime"))
	if err != nil {
		return err
	}
	if root != "" {
		if runtime != nil {
			return advice.Usagef("docs/runtimes.md has the files to add to the image", "--runtime works on this node, not on the image of --root")
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
	if root == "" && isPackaged(dir) && !c.Bool("force") {
		return advice.With(fmt.Errorf("%s belongs to packages of the distribution, and their upgrades replace plugins there", dir),
			"'cnibox install --runtime NAME' makes a runtime search "+defaultPluginDir+" first: see docs/runtimes.md")
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
	case root == "" && dir == defaultPluginDir:
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
			return nil, advice.Usagef(hint, "%q is not a role", g)
		}
	}
	slices.Sort(given)
	return slices.Compact(given), nil
}

// inImage makes a directory of an image and returns its path. No link of the image leads out of it.
func inImage(root, dir string) (string, error) {
	image, err := os.OpenRoot(root)
	if err != nil {
		return "", advice.With(err, "--root: want the directory of an image")
	}
	defer image.Close()
	dir = strings.TrimLeft(filepath.Clean("/"+dir), "/")
	if err := image.MkdirAll(dir, 0o755); err != nil {
		return "", advice.With(fmt.Errorf("make directory in image %q: %w", root, err), "run it as root; a link in the image has to be relative")
	}
	return filepath.Join(root, dir), nil
}

// install places the binary and the links, and reports what it did. It returns true if it replaced another program's plugin.
func (p *Process) install(dir string, kind plugindir.LinkKind, force bool, names []string) (replaced bool, err error) {
	fresh := 0
	is, err := plugindir.Open(dir, p.Executable).Install(names, kind, force, func(c plugindir.Change) {
		if c.Reason == plugindir.UpToDate && p.changes == nil {
			fresh++ // one line for all
		} else {
			p.fileChanged(c)
		}
	})
	if err != nil {
		return false, advice.With(err, installHint(err))
	}
	if fresh > 0 && !p.quiet {
		fmt.Fprintf(p.Stdout, "kept %s: up to date\n", counted(fresh, "plugin"))
	}
	if is.Kept > 0 {
		return is.Replaced, advice.With(fmt.Errorf("%d of %d names are other programs' files: %w", is.Kept, len(names), errDifferent), "the same command with --force")
	}
	return is.Replaced, nil
}

// reapDetached removes the attachments of an earlier installation that the plugins of the
// meantime detached. They do not know cnibox's nftables elements and records.
func (p *Process) reapDetached(ctx context.Context) {
	h, done, err := p.host(ctx, "")
	if err == nil {
		defer done()
		_, err = attachment.Reap(ctx, h, "")
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "cnibox: remains of containers that other plugins detached are not removed: %v: run 'cnibox state reap'\n", err)
	}
}

// isPackaged reports whether packages of the distribution own a directory.
func isPackaged(dir string) bool {
	dir, err := filepath.Abs(dir)
	return err == nil && strings.HasPrefix(dir, "/usr/") && !strings.HasPrefix(dir, "/usr/local/")
}

// installText is the command that installs into a directory, and makes a runtime search it if --runtime knows that. It is the same in
// install and doctor.
func installText(dir, runtime string) string {
	text := "cnibox install"
	if slices.Contains(runtimeNames(), runtime) {
		text += " --runtime " + runtime
	}
	if dir != defaultPluginDir {
		text += " --dir " + dir
	}
	return text
}

// pluginHome returns the directory of this program's plugins: the first in which it is of those that runtimes search, or else the
// default.
func (p *Process) pluginHome(runtimes []doctor.Runtime) string {
	for _, r := range runtimes {
		for _, dir := range r.PluginDirs {
			if f, err := plugindir.Open(dir, p.Executable).Look(plugindir.Binary); err == nil && f.Standing == plugindir.Ours && !isPackaged(dir) {
				return dir
			}
		}
	}
	return defaultPluginDir
}

// installHint returns advice for a directory in which nothing can be placed.
func installHint(err error) string {
	switch {
	case errors.Is(err, plugindir.ErrBlocked):
		return "remove it by hand; nothing was changed"
	case errors.Is(err, smallfile.ErrWritable):
		return "choose a directory that only root can write, such as " + defaultPluginDir
	case errors.Is(err, os.ErrPermission):
		return "run it as root, or choose a directory with --dir"
	case errors.Is(err, unix.EXDEV):
		return "use --link symlink or --link copy"
	}
	return "check the directory"
}
