package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
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
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			done, err := p.mendState(c, h, nil)
			return errors.Join(p.writeAnswer(done, c.Bool("json"), p.style(c)), err)
		}),
	}
}

// mendState sets damaged state files aside, makes them again, and restores rules. It returns what was done. With
// agree it does nothing if no file is damaged, or if agree refuses.
func (p *Process) mendState(c *cli.Context, h *roles.Host, agree func(damage []error) bool) (done []string, err error) {
	done = []string{}
	var damage []error
	check := func(err error, mended ...error) error {
		for _, is := range append(mended, store.ErrDamaged) {
			if errors.Is(err, is) {
				damage = append(damage, err)
				return nil
			}
		}
		return err
	}
	force := c.Bool("force")
	var newer []error
	if force {
		newer = append(newer, store.ErrSchema)
	}
	keepErr, nodeErr := h.Store.KeepCheck(c.Context, (*store.KeepTx).Sound), checkNode(c.Context, h)
	if err := errors.Join(check(keepErr), check(nodeErr, newer...)); err != nil {
		return done, err
	}
	switch {
	case agree == nil:
	case len(damage) == 0:
		return done, nil
	case !agree(damage):
		return done, errNotRepaired()
	}
	if keepErr != nil { // keep.db comes first: to rebuild node.db may need it
		m, err := h.Store.MendKeep(c.Context)
		if err != nil {
			return done, err
		}
		done = append(done, "set aside as "+printable(m.Aside),
			fmt.Sprintf("made %s anew with %d of its records; %d could not be read, and what was in damaged pages is lost", printable(h.Store.KeepPath()), m.Kept, m.Lost))
		nodeErr = checkNode(c.Context, h)
	}
	rebuilt := []string{"the state file is not damaged"}
	if nodeErr != nil || force {
		rebuilt, err = rebuild(c.Context, h)
	}
	done = append(done, rebuilt...)
	if err != nil {
		return done, err
	}
	n, err := recovery.RestoreAll(c.Context, h)
	if n > 0 {
		done = append(done, "restored "+counted(n, "nftables element"))
	}
	return done, err
}

// checkNode reads all pages and records of node.db.
func checkNode(ctx context.Context, h *roles.Host) error {
	return h.Store.Check(ctx, func(tx *store.Tx) error {
		_, err := tx.Export()
		return err
	})
}

// rebuild sets node.db aside and makes it again.
func rebuild(ctx context.Context, h *roles.Host) (done []string, err error) {
	old, err := h.Store.SetAside(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return nil, err
	default:
		done = append(done, "set aside as "+printable(old))
	}
	if err := h.Store.Update(ctx, func(*store.Tx) error { return nil }); err != nil {
		return done, err
	}
	dump, err := store.Read(ctx, h.Store, (*store.Tx).Export)
	if err != nil {
		return done, err
	}
	return append(done, fmt.Sprintf("rebuilt %s with %s", printable(h.Store.Path()), counted(len(dump.Attachments), "attachment"))), nil
}

func (p *Process) reapCommand() *cli.Command {
	return &cli.Command{
		Name:      "reap",
		Usage:     "remove attachments and leases of containers that certainly do not exist",
		ArgsUsage: "[NETWORK]",
		Description: `examples:
  cnibox state reap`,
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if c.Args().Len() > 1 {
				return advice.Usagef("cnibox help state reap", "want at most one network")
			}
			if _, err := inventory.Export(c.Context, h); err != nil {
				return err
			}
			freed, err := attachment.Reap(c.Context, h, c.Args().First())
			if c.Bool("json") {
				return errors.Join(err, writeJSON(p.Stdout, map[string]int{"released": freed}))
			}
			fmt.Fprintf(p.Stdout, "released %s\n", counted(freed, "address"))
			return err
		}),
	}
}
