package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/store"
)

// maxDump limits an imported file. 65,000 attachments need about 60 MB.
const maxDump = 512 << 20

func (p *Process) importCommand() *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "import a file of state export",
		ArgsUsage: "FILE (- is stdin)",
		Description: `Adds the records to the state, and replaces records with the same keys. If another
attachment holds one of the addresses, the import fails and changes nothing. If it is killed,
the next call completes or undoes it.
With --replace all present records of the kinds that the export has are deleted first. Interfaces are not changed.

examples:
  cnibox state import state.json`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "replace", Usage: "delete the present state first"},
		},
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if c.Args().Len() != 1 {
				return advice.Usagef("cnibox help state import", "want FILE")
			}
			dump, err := p.readDump(c.Args().First())
			if err != nil {
				return err
			}
			if err := h.Store.Import(c.Context, dump, c.Bool("replace")); err != nil {
				return err
			}
			leases := 0
			for _, pool := range dump.Pools {
				leases += len(pool.Leases)
			}
			if c.Bool("json") {
				return writeJSON(p.Stdout, map[string]int{"attachments": len(dump.Attachments), "leases": leases})
			}
			_, err = fmt.Fprintf(p.Stdout, "imported %s, %s\n", counted(len(dump.Attachments), "attachment"), counted(leases, "lease"))
			return err
		}),
	}
}

// readDump decodes exactly one JSON document.
func (p *Process) readDump(file string) (*store.Dump, error) {
	data, err := p.readFile(file, maxDump)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var dump *store.Dump
	if err := dec.Decode(&dump); err != nil {
		return nil, advice.With(fmt.Errorf("%s: %w", file, roles.Mismatch(err)), "a file that cnibox state export wrote")
	}
	if _, err := dec.Token(); err != io.EOF || dump == nil || dump.Info.Schema == 0 || dump.Delegations == nil { //nolint:errorlint // the decoder returns it bare
		return nil, advice.With(fmt.Errorf("%s: is not an export of the state", file), "a file that cnibox state export wrote")
	}
	return dump, nil
}
