package cli

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// listed is a role in `cnibox list --json`.
type listed struct {
	Names        []string   `json:"names"`
	Kind         roles.Kind `json:"kind"`
	Summary      string     `json:"summary"`
	Reference    string     `json:"reference,omitempty"`
	Capabilities []string   `json:"capabilities,omitempty"`
	Args         []string   `json:"args,omitempty"`
}

func (p *Process) listCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the roles and their kinds",
		Description: `examples:
  cnibox list --json`,
		Flags: tableFlags(),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				out := []listed{}
				for _, r := range p.Table.Roles() {
					out = append(out, listed{r.Names, r.Kind, r.Summary, r.Reference, r.Capabilities, r.Args})
				}
				return writeJSON(p.Stdout, out)
			}
			t := table{head: []string{"ROLE", "KIND", "MATCHES", "SUMMARY"}}
			for _, r := range p.Table.Roles() {
				t.add(strings.Join(r.Names, ", "), string(r.Kind), dash(r.Reference), r.Summary)
			}
			return t.write(p.Stdout, p.style(c))
		},
	}
}

// noArgs returns an error for arguments of a verb without any.
func noArgs(c *cli.Context) error {
	if c.Args().Present() {
		return advice.Usagef("cnibox help "+verbOf(c.Command), "%q: no argument is expected", c.Args().First())
	}
	return nil
}

// dash fills an empty cell, so that programs can count columns.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
