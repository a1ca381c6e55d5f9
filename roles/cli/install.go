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

	"github.com/cnibox/cnibox/roles/cli/lint"
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
			&cli.StringFlag{Name: "link", Value: string(linkSymbolic), Usage: "symlink, hard or copy"},
			&cli.BoolFlag{Name: "force", Usage: "replace other programs' plugins"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "runtime", Usage: "make this runtime use DIR: " + strings.Join(runtimeNames(), ", ")},
			&cli.StringFlag{Name: "conflist", Usage: "a network that is written to CONF-DIR, in place of a file of the same name"},
			&cli.StringFlag{Name: "conf-dir", Value: defaultConfDir, Usage: "the directory of networks"},
		},
		Action: p.withChanges(func(c *cli.Context) error {
			kind := linkKind(c.String("link"))
			if !slices.Contains([]linkKind{linkSymbolic, linkHard, linkCopy}, kind) {
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
	var all []string
	for _, r := range p.Table {
		if r.New != nil {
			all = append(all, r.Names...)
		}
	}
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

// staged is a file with its temporary name.
type staged struct {
	temp, name string
	done       change
}

// install first checks all files, then writes them with temporary names, and then renames them.
func (p *Process) install(ctx context.Context, dir string, kind linkKind, force bool, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return withHint(fmt.Errorf("make directory: %w", err), "run it as root, or choose a directory with --dir")
	}
	d := newPluginDir(dir, p.Executable)
	files := make([]pluginFile, 0, len(names))
	for _, n := range names {
		f, err := d.look(n)
		if err != nil {
			return fmt.Errorf("look at %q: %w", n, err)
		}
		if f.standing == blocked {
			return withHint(fmt.Errorf("%q is %s", filepath.Join(dir, n), f.what), "remove it by hand; nothing was changed")
		}
		files = append(files, f)
	}
	s := &stager{dir: dir, kind: kind}
	defer s.clean()
	if err := s.binary(d, p.Executable); err != nil {
		return withHint(fmt.Errorf("place binary in %q: %w", dir, err), writableHint(err))
	}
	kept := 0
	var lines []change
	for _, f := range files {
		switch {
		case f.standing == foreign && !force:
			kept++
			lines = append(lines, change{Action: "kept", Name: f.name, Reason: f.what + " (use --force)"})
		case s.fresh(f):
			lines = append(lines, change{Action: "kept", Name: f.name, Reason: "it is up to date"})
		default:
			if err := s.link(f); err != nil {
				return withHint(fmt.Errorf("link %q: %w", f.name, err), writableHint(err))
			}
		}
	}
	replaces := slices.ContainsFunc(s.files, func(f staged) bool { return f.done.Replaces != "" })
	if err := s.commit(p); err != nil {
		return err
	}
	if replaces {
		if err := p.reapDetached(ctx); err != nil {
			fmt.Fprintf(p.Stderr, "cnibox: remains of containers that other plugins detached are not removed: %v: run 'cnibox state reap'\n", err)
		}
	}
	for _, l := range lines {
		p.changed(l)
	}
	if kept > 0 {
		return withHint(fmt.Errorf("%d of %d names are other programs' files: %w", kept, len(names), errDifferent), "the same command with --force")
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

// writableHint returns advice for a directory that cannot be written.
func writableHint(err error) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return "run it as root, or choose a directory with --dir"
	case errors.Is(err, unix.EXDEV):
		return "use --link symlink or --link copy"
	}
	return "check the directory; nothing was changed"
}
