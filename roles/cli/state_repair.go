package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) repairCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "check both state files, set a damaged one aside and rebuild it",
		Description: `All pages and records are read. A new node.db is rebuilt from the labels on the host's
interfaces and from the runtimes' caches, which have the namespaces of interfaces that
exist in containers only. A new keep.db gets the records of the old one that can be read.
The old file is kept beside the new one. An undamaged node.db is rebuilt only with --force.
Rules of attachments that another program deleted, as 'nft flush ruleset' does, are restored.
"cnibox repair" does this, and repairs interfaces, addresses and routes too.

examples:
  cnibox state repair`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "also rebuild an undamaged node.db"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			h, done, err := p.host(c.Context, "")
			if err != nil {
				return err
			}
			defer done()
			var out bytes.Buffer
			quiet := *p
			quiet.Stdout = &out
			err = quiet.repair(c, h)
			lines := strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
			return errors.Join(p.writeAnswer(lines, c.Bool("json"), p.style(c)), err)
		},
	}
}

// repair judges both state files and mends them, and restores rules.
func (p *Process) repair(c *cli.Context, h *roles.Host) error {
	// keep.db comes first: to rebuild node.db may need it.
	if err := p.mendKeep(c, h); err != nil {
		return stateHint(err)
	}
	if err := p.rebuild(c, h); err != nil {
		return err
	}
	n, err := h.Net.RestoreRules(c.Context)
	if n > 0 {
		fmt.Fprintf(p.Stdout, "restored %s\n", counted(n, "nftables element"))
	}
	return err
}

// mendKeep checks keep.db and mends it if it is damaged.
func (p *Process) mendKeep(c *cli.Context, h *roles.Host) error {
	err := h.Store.KeepCheck(c.Context, (*store.KeepTx).Sound)
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	m, err := h.Store.MendKeep(c.Context)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.Stdout, "set aside as %s\nmade %s anew with %d of its records; %d could not be read, and what was in damaged pages is lost\n",
		printable(m.Aside), printable(h.Store.KeepPath()), m.Kept, m.Lost)
	return err
}

// checkNode reads all pages and records of node.db.
func checkNode(ctx context.Context, h *roles.Host) error {
	return h.Store.Check(ctx, func(tx *store.Tx) error {
		_, err := tx.Export()
		return err
	})
}

func (p *Process) rebuild(c *cli.Context, h *roles.Host) error {
	err := checkNode(c.Context, h)
	switch {
	case err == nil && !c.Bool("force"):
		_, err = fmt.Fprintln(p.Stdout, "the state file is not damaged")
		return err
	case errors.Is(err, store.ErrSchema) && !c.Bool("force"):
		return stateHint(err)
	case err != nil && !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrSchema):
		return stateHint(err)
	}
	old, err := h.Store.SetAside(c.Context)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return stateHint(err)
	default:
		fmt.Fprintln(p.Stdout, "set aside as "+printable(old))
	}
	if err := h.Store.Update(c.Context, func(*store.Tx) error { return nil }); err != nil {
		return stateHint(err)
	}
	dump, err := export(c.Context, h)
	if err != nil {
		return stateHint(err)
	}
	_, err = fmt.Fprintf(p.Stdout, "rebuilt %s with %s\n", printable(h.Store.Path()), counted(len(dump.Attachments), "attachment"))
	return err
}

func (p *Process) reapCommand() *cli.Command {
	return &cli.Command{
		Name:      "reap",
		Usage:     "remove attachments and leases of containers that certainly do not exist",
		ArgsUsage: "[NETWORK]",
		Description: `examples:
  cnibox state reap`,
		Action: func(c *cli.Context) error {
			if c.Args().Len() > 1 {
				return usagef("cnibox help state reap", "want at most one network")
			}
			h, done, err := p.host(c.Context, "")
			if err != nil {
				return err
			}
			defer done()
			if _, err := rebuildAndExport(c.Context, h); err != nil {
				return stateHint(err)
			}
			freed, err := record.Reap(c.Context, h, c.Args().First())
			if c.Bool("json") {
				return errors.Join(stateHint(err), writeJSON(p.Stdout, map[string]int{"released": freed}))
			}
			fmt.Fprintf(p.Stdout, "released %s\n", counted(freed, "address"))
			return stateHint(err)
		},
	}
}
