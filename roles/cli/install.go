package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/cli/lint"
	"github.com/cnibox/cnibox/roles/plugindir"
	"github.com/cnibox/cnibox/roles/record"
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
that ended meanwhile is removed. docs/takeover.md describes the effect on running containers.

Runtimes search plugins in different directories, and install warns if one of this node
does not use DIR. --runtime makes it use DIR: by an additional file for podman and crio;
for containerd and nerdctl it prints what to change, and exits with 3. --conflist checks
a network and writes it last, so that no runtime sees it before its plugins.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Value: defaultPluginDir, Usage: "the plugin directory; it is made if it does not exist"},
			&cli.StringFlag{Name: "link", Value: string(plugindir.Symbolic), Usage: "symlink, hard or copy"},
			&cli.BoolFlag{Name: "force", Usage: "replace other programs' plugins"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "runtime", Usage: "make this runtime use DIR: " + strings.Join(runtimeNames(), ", ")},
			&cli.StringFlag{Name: "conflist", Usage: "a network that is written to CONF-DIR, in place of a file of the same name"},
			&cli.StringFlag{Name: "conf-dir", Value: defaultConfDir, Usage: "the directory of networks"},
		},
		Action: p.withChanges(func(c *cli.Context) error {
			kind := plugindir.LinkKind(c.String("link"))
			if !slices.Contains([]plugindir.LinkKind{plugindir.Symbolic, plugindir.Hard, plugindir.Copy}, kind) {
				return usagef("cnibox help install", "--link %q: want symlink, hard or copy", kind)
			}
			names, err := p.pluginNames(c.Args().Slice())
			if err != nil {
				return err
			}
			if c.String("dir") == "" {
				return usagef("cnibox help install", "--dir: want a directory")
			}
			runtime, err := findRuntime(c.String("runtime"))
			if err != nil {
				return err
			}
			network, err := p.readNetworkFile(c.String("conflist"), c.String("conf-dir"))
			if err != nil {
				return err
			}
			dir := c.String("dir")
			if err := p.install(c.Context, dir, kind, c.Bool("force"), names); err != nil {
				return err
			}
			if runtime == nil {
				p.warnUnused(dir, names)
			} else if err := p.configure(runtime, dir, names); err != nil {
				return err
			}
			if network != nil {
				return network.place(p, dir)
			}
			return nil
		}),
	}
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

// install places the binary and the links, and reports what it did.
func (p *Process) install(ctx context.Context, dir string, kind plugindir.LinkKind, force bool, names []string) error {
	is, err := plugindir.Open(dir, p.Executable).Install(names, kind, force, p.fileChanged)
	if err != nil {
		return withHint(err, installHint(err))
	}
	if is.Replaced {
		if err := p.reapDetached(ctx); err != nil {
			fmt.Fprintf(p.Stderr, "cnibox: remains of containers that other plugins detached are not removed: %v: run 'cnibox state reap'\n", err)
		}
	}
	if is.Kept > 0 {
		return withHint(fmt.Errorf("%d of %d names are other programs' files: %w", is.Kept, len(names), errDifferent), "the same command with --force")
	}
	return nil
}

// reapDetached removes the attachments of an earlier installation that the plugins of the
// meantime detached. They do not know cnibox's nftables elements and records.
func (p *Process) reapDetached(ctx context.Context) error {
	h, done, err := p.host(ctx, "")
	if err != nil {
		return err
	}
	defer done()
	_, err = record.Reap(ctx, h, "")
	return err
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
