package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
)

func (p *Process) uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:      "uninstall",
		Usage:     "remove our links, and without ROLE the binary too",
		ArgsUsage: "[ROLE…]",
		Description: `Removes only what is ours: links to the binary, hard links and copies of it, of
any version. Without ROLE every such file goes and DIR/cnibox last.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Value: defaultPluginDir, Usage: "the plugin directory"},
		},
		Action: func(c *cli.Context) error {
			names := c.Args().Slice()
			if len(names) > 0 {
				if _, err := p.pluginNames(names); err != nil {
					return err
				}
			}
			if c.String("dir") == "" {
				return usagef("cnibox help uninstall", "--dir: want a directory")
			}
			return p.uninstall(c.String("dir"), names)
		},
	}
}

// uninstall judges every file before it removes the first: links that lead to
// the binary are recognised by it.
func (p *Process) uninstall(dir string, names []string) error {
	d := newPluginDir(dir, p.Executable)
	whole := len(names) == 0
	if whole {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("read directory: %w", err)
		}
		for _, e := range entries {
			if e.Name() != binaryName {
				names = append(names, e.Name())
			}
		}
		names = append(names, binaryName)
	}
	var gone []string
	kept := 0
	for _, n := range names {
		f, err := d.look(n)
		if err != nil {
			return fmt.Errorf("look at %q: %w", n, err)
		}
		switch {
		case f.standing == ours:
			gone = append(gone, n)
		case f.standing != absent && !whole:
			kept++
			fmt.Fprintf(p.Stdout, "kept %s: %s\n", n, printable(f.what))
		}
	}
	for _, n := range gone {
		if err := os.Remove(filepath.Join(dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return withHint(fmt.Errorf("remove file: %w", err), "run it as root")
		}
		fmt.Fprintln(p.Stdout, "removed "+printable(n))
	}
	if kept > 0 {
		return fmt.Errorf("%d of %d names are other programs' files: %w", kept, len(names), errDifferent)
	}
	return nil
}
