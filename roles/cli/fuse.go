package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/lint"
)

// defaultConfDir is the directory in which runtimes look for networks.
const defaultConfDir = "/etc/cni/net.d"

func (p *Process) fuseCommand() *cli.Command {
	return &cli.Command{
		Name:      "fuse",
		Usage:     "rewrite a list so that one process runs all its plugins",
		ArgsUsage: "FILE",
		Description: `Prints the list with its plugins inside one plugin of type chain; --split restores
the original list. Each form can check and detach the attachments of the other, so
the file may be changed while containers run. Other tools may look for the names
of plugins in the file. A network that podman or nerdctl manages is refused. See
docs/chain.md.

examples:
  cnibox fuse NET.conflist
  cnibox fuse NET.conflist --split --write`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "split", Usage: "restore the original list"},
			&cli.BoolFlag{Name: "write", Usage: "replace FILE atomically and print nothing"},
		},
		Action: func(c *cli.Context) error {
			file := c.Args().First()
			if c.Args().Len() != 1 || file == "-" && c.Bool("write") {
				return advice.Usagef("cnibox help fuse", "want FILE, which cannot be - with --write")
			}
			return p.fuse(file, c.Bool("split"), c.Bool("write"))
		},
	}
}

func (p *Process) fuse(file string, split, write bool) error {
	data, err := p.readFile(file, lint.MaxSize)
	if err != nil {
		return err
	}
	rewrite := netlist.Fuse
	if split {
		rewrite = netlist.Split
	}
	raw, err := rewrite(data)
	if err != nil {
		return advice.With(fmt.Errorf("%s: %w", file, err), p.fuseHint(file, data))
	}
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(raw), "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	if !split {
		fmt.Fprintf(p.Stderr, "cnibox: fuse: other tools may look for the names of plugins in the file; cnibox fuse --split restores it\n")
	}
	if !write {
		_, err := p.Stdout.Write(out.Bytes())
		return err
	}
	return smallfile.Rewrite(file, out.Bytes())
}

// fuseHint returns the hint to run lint if lint finds a fault in the file.
func (p *Process) fuseHint(file string, data []byte) string {
	if slices.ContainsFunc(p.linter("").Lint(file, data), isFault) {
		return "cnibox lint " + file
	}
	return ""
}

// refuseFused returns an error if a network in a directory is a fused list, because only
// this program can run it.
func refuseFused(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		file := filepath.Join(dir, e.Name())
		raw, err := smallfile.Read(file, lint.MaxSize)
		if err != nil {
			continue // a runtime cannot use a file that cannot be read
		}
		if _, err := netlist.Split(raw); err == nil {
			err := fmt.Errorf("%s is a fused list, which needs the plugin %s; nothing was removed", file, netlist.FusedType)
			return advice.With(err, "cnibox fuse --split --write "+file)
		}
	}
	return nil
}
