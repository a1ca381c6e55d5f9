package cli

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) repairCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "set a damaged state file aside and rebuild it",
		Description: `The new file is rebuilt from the labels on the host's interfaces and from the
runtimes' caches, which lead to the interfaces in containers. The old one stays
beside it. A sound file is left alone without --force. Rules of attachments that
another program deleted, as 'nft flush ruleset' does, are restored.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "rebuild a sound file too"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			return p.repair(c)
		},
	}
}

func (p *Process) repair(c *cli.Context) error {
	h, done, err := p.host(c.Context, "")
	if err != nil {
		return err
	}
	defer done()
	if err := p.rebuild(c, h); err != nil {
		return err
	}
	n, err := h.Net.RestoreRules(c.Context)
	if err != nil {
		return err
	}
	if n > 0 {
		fmt.Fprintf(p.Stdout, "restored %d nftables elements\n", n)
	}
	// The content of keep.db exists only there, so its errors have advice.
	return h.Store.KeepView(c.Context, func(*store.KeepTx) error { return nil })
}

func (p *Process) rebuild(c *cli.Context, h *roles.Host) error {
	_, err := export(c.Context, h)
	switch {
	case err == nil && !c.Bool("force"):
		_, err = fmt.Fprintln(p.Stdout, "the state file is sound")
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
	_, err = fmt.Fprintf(p.Stdout, "rebuilt %s with %d attachments\n", printable(h.Store.Path()), len(dump.Attachments))
	return err
}

func (p *Process) reapCommand() *cli.Command {
	return &cli.Command{
		Name:      "reap",
		Usage:     "remove what belongs to containers that are certainly gone",
		ArgsUsage: "[NETWORK]",
		Action: func(c *cli.Context) error {
			if c.Args().Len() > 1 {
				return usagef("cnibox help state reap", "want at most one network")
			}
			h, done, err := p.host(c.Context, "")
			if err != nil {
				return err
			}
			defer done()
			if _, err := known(c.Context, h); err != nil {
				return stateHint(err)
			}
			freed, err := record.Reap(c.Context, h, c.Args().First())
			fmt.Fprintf(p.Stdout, "%d addresses came free\n", freed)
			return stateHint(err)
		},
	}
}
