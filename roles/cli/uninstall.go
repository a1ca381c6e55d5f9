package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/call/plugindir"
	"github.com/cnibox/cnibox/roles/see/advice"
)

func (p *Process) uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:      "uninstall",
		Usage:     "remove cnibox's links, and without ROLE the binary, too",
		ArgsUsage: "[ROLE…]",
		Description: `Removes only cnibox's files: links to the binary, hard links and copies of it, of any
version. Plugins that install --force replaced are restored. Without ROLE it removes
every such file, the file that install --runtime wrote, DIR/cnibox, and last the links
to it in the directories of PATH.

--drain is for a node with running containers. It restores the previous plugins, which
attach new containers from then on, and exports the leases of host-local to the
directory of the reference plugin. While containers are attached by cnibox, it lists
them, keeps the binary and the state, and exits with 3: detach them, or wait, and
repeat the call. When there are none, it also removes cnibox's kernel objects, the
node's state and DIR/cnibox. With --if-idle it changes nothing while containers are
attached. See docs/migrate.md.

examples:
  cnibox uninstall --drain
  cnibox uninstall macvlan`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Value: defaultPluginDir, Usage: "the plugin directory"},
			quietFlag(),
			&cli.StringFlag{Name: "conf-dir", Value: defaultConfDir, Usage: "the directory of networks; while one of them is a fused list, nothing is removed"},
			&cli.BoolFlag{Name: "drain", Usage: "restore the previous plugins, and remove the rest when no container is attached"},
			&cli.BoolFlag{Name: "if-idle", Usage: "with --drain, restore the previous plugins only then, too"},
		},
		Action: p.withChanges(func(c *cli.Context) error {
			names := c.Args().Slice()
			if len(names) > 0 {
				if _, err := p.pluginNames(names); err != nil {
					return err
				}
			}
			if c.String("dir") == "" {
				return advice.Usagef("cnibox help uninstall", "--dir: want a directory")
			}
			if c.Bool("if-idle") && !c.Bool("drain") {
				return advice.Usagef("cnibox uninstall --drain --if-idle", "--if-idle is for --drain")
			}
			if !c.Bool("drain") {
				return p.uninstall(c, names, len(names) == 0)
			}
			if len(names) > 0 {
				return advice.Usagef("cnibox uninstall --drain", "--drain is for all roles")
			}
			return p.drain(c)
		}),
	}
}

// uninstall inspects every file before it removes the first one, because links to the binary are
// recognised by it. Without names it removes all of cnibox's files, and the binary if requested.
func (p *Process) uninstall(c *cli.Context, names []string, binary bool) error {
	dir := c.String("dir")
	d := plugindir.Open(dir, p.Executable)
	whole := len(names) == 0
	var gone []string
	kept := 0
	if whole {
		var err error
		if gone, err = d.Files(); err != nil {
			return err
		}
		if !binary {
			gone = slices.DeleteFunc(gone, func(n string) bool { return n == plugindir.Binary })
		}
	}
	for _, n := range names {
		f, err := d.Look(n)
		if err != nil {
			return fmt.Errorf("look at %q: %w", n, err)
		}
		switch f.Standing {
		case plugindir.Ours:
			gone = append(gone, n)
		case plugindir.Absent:
		default:
			kept++
			p.changed(change{Action: "kept", Name: n, Reason: f.What})
		}
	}
	if slices.Contains(gone, netlist.FusedType) {
		if err := refuseFused(c.String("conf-dir")); err != nil {
			return err
		}
	}
	if err := d.Remove(gone, p.fileChanged); err != nil {
		return err
	}
	if whole {
		if err := p.removeDropIns(dir); err != nil {
			return err
		}
	}
	if slices.Contains(gone, plugindir.Binary) {
		if err := p.removeCommand(dir); err != nil {
			return err
		}
	}
	if kept > 0 {
		return fmt.Errorf("%d of %d names are other programs' files: %w", kept, len(names), errDifferent)
	}
	return nil
}

// removeCommand removes the symbolic links to the removed binary from the directories of commands.
func (p *Process) removeCommand(dir string) error {
	binary, err := filepath.Abs(filepath.Join(dir, plugindir.Binary))
	if err != nil {
		return err
	}
	for _, d := range filepath.SplitList(p.getenv("PATH")) {
		link := filepath.Join(d, plugindir.Binary)
		target, err := os.Readlink(link)
		if err != nil {
			continue // another file, or none
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(d, target)
		}
		if filepath.Clean(target) != binary {
			continue
		}
		if err := os.Remove(link); err != nil {
			return err
		}
		p.changed(change{Action: "removed", Name: link})
	}
	return nil
}
