package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) exportCommand() *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write the state to a file, or in another program's format",
		ArgsUsage: "[FILE|DIR|-]",
		Description: `The format json is node.db and the delegations of meta roles, to stdout or FILE, for
"cnibox state import". It lacks the records of keep.db that other verbs show:
reservations, DHCP leases and marks of imports. The format host-local writes the directory of
the reference host-local, so that it can continue with cnibox's leases.

examples:
  cnibox state export > state.json
  cnibox state export --format host-local /var/lib/cni/networks`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Value: "json", Usage: "json, or the name of a role that can export"},
		},
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if c.Args().Len() > 1 {
				return advice.Usagef("cnibox help state export", "want one file or directory")
			}
			to := c.Args().First()
			if f := c.String("format"); f != "json" {
				return p.exportRole(c, f, to)
			}
			dump, err := inventory.Export(c.Context, h)
			if err == nil {
				err = h.Store.KeepView(c.Context, func(tx *store.KeepTx) error {
					all, err := tx.Delegations("")
					dump.Delegations = append([]store.Delegation{}, all...) // not nil
					return err
				})
			}
			if err != nil {
				return stateHint(err)
			}
			if to == "" || to == "-" {
				return writeJSON(p.Stdout, dump)
			}
			return writeDump(to, dump)
		}),
	}
}

// exportRole exports in the format of the role of that name.
func (p *Process) exportRole(c *cli.Context, format, to string) error {
	role, ok := p.Table.Lookup(format)
	var verb *roles.CommandVerb
	if ok {
		verb = role.Verb(exportVerb)
	}
	if verb == nil {
		return advice.Usagef("cnibox state export --format json", "--format %q: no role of that name can export", format)
	}
	if to == "" || to == "-" {
		return advice.Usagef("cnibox state export --format "+format+" DIR", "want a directory")
	}
	h, done, err := p.host(c.Context, role.Name())
	if err != nil {
		return err
	}
	defer done()
	out, err := verb.Run(c.Context, h, map[string]string{}, []string{to})
	if err != nil {
		return stateHint(err)
	}
	if out == nil {
		return nil
	}
	return p.writeAnswer(out, c.Bool("json"), p.style(c))
}

// writeDump atomically replaces a file, which only its owner can read.
func writeDump(path string, dump *store.Dump) error {
	var b bytes.Buffer
	if err := writeJSON(&b, dump); err != nil {
		return err
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return advice.Usagef("cnibox state export FILE, or --format host-local DIR", "%q is a directory", path)
	}
	if err := smallfile.ReplaceSynced(path, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}

// stateHint returns advice for an unreadable state.
func stateHint(err error) error {
	switch {
	case errors.As(err, new(*advice.Error)):
	case errors.Is(err, store.ErrDamaged):
		return advice.With(err, "cnibox state repair")
	case errors.Is(err, store.ErrSchema):
		return advice.With(err, "a newer cnibox, or cnibox state repair --force")
	case errors.Is(err, store.ErrBusy):
		return advice.With(err, "the same call when that process has ended")
	case errors.Is(err, store.ErrInvalid):
		return advice.With(err, "correct it or move it away by hand, or set CNIBOX_RUN_DIR and CNIBOX_STATE_DIR")
	}
	return err
}
