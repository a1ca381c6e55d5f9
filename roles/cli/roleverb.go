package cli

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// exportVerb is the verb of a role that writes its state in the role's own format. It is called by
// `cnibox state export --format ROLE`.
const exportVerb = "state export"

// roleCommands adds the roles' verbs: "verb", or "noun verb" below an existing or new command for
// the noun.
func (p *Process) roleCommands(cmds []*cli.Command) []*cli.Command {
	for _, r := range p.Table.Roles() {
		for _, v := range r.Commands() {
			if v.Name == exportVerb {
				continue
			}
			noun, verb, two := strings.Cut(v.Name, " ")
			if v.Run == nil {
				cmds = append(cmds, nounCommand(noun, v.Help))
				continue
			}
			if !two {
				cmds = append(cmds, p.roleCommand(&r, v, noun))
				continue
			}
			parent := find(cmds, noun)
			if parent == nil {
				parent = nounCommand(noun, r.Summary)
				if r.New == nil {
					parent.Description = fmt.Sprintf("Without a verb it starts the daemon. %s -help lists its flags.", appName+" "+noun)
				}
				cmds = append(cmds, parent)
			}
			parent.Subcommands = append(parent.Subcommands, p.roleCommand(&r, v, verb))
		}
	}
	return cmds
}

// nounCommand returns the parent command of verbs.
func nounCommand(noun, help string) *cli.Command {
	return &cli.Command{Name: noun, Usage: help, Action: noSubverb(noun)}
}

// noSubverb returns the action of a command that needs a verb.
func noSubverb(noun string) cli.ActionFunc {
	return func(*cli.Context) error { return advice.Usagef("cnibox help "+noun, "no verb given") }
}

func (p *Process) roleCommand(r *roles.Role, v roles.CommandVerb, name string) *cli.Command {
	flags := tableFlags()
	for _, f := range v.Flags {
		if f.Switch {
			flags = append(flags, &cli.BoolFlag{Name: f.Name, Usage: f.Help})
			continue
		}
		flags = append(flags, &cli.StringFlag{Name: f.Name, Value: f.Default, Usage: f.Help})
	}
	return &cli.Command{
		Name:        name,
		Usage:       v.Help,
		ArgsUsage:   v.Args,
		Description: "A verb of the role " + r.Name() + ".\n\nexamples:\n  " + appName + " " + v.Example,
		Flags:       flags,
		Action: func(c *cli.Context) error {
			if err := countArgs(v.Args, c.Args().Slice()); err != nil {
				return advice.With(err, "cnibox help "+v.Name)
			}
			h, done, err := p.host(c.Context, r.Name())
			if err != nil {
				return err
			}
			defer done()
			values := map[string]string{}
			for _, f := range v.Flags {
				switch {
				case !f.Switch:
					values[f.Name] = c.String(f.Name)
				case c.Bool(f.Name):
					values[f.Name] = "true"
				}
			}
			out, err := v.Run(c.Context, h, values, c.Args().Slice())
			if errors.Is(err, roles.ErrUsage) {
				return advice.With(err, "cnibox help "+v.Name)
			}
			if v := reflect.ValueOf(out); !v.IsValid() || err != nil && v.IsZero() {
				return err
			}
			return errors.Join(p.writeAnswer(out, c.Bool("json"), p.style(c)), err)
		},
	}
}

// countArgs returns an error for a wrong number of arguments. takes has the form of
// [roles.CommandVerb.Args].
func countArgs(takes string, args []string) error {
	least, most := 0, 0
	for word := range strings.FieldsSeq(takes) {
		name := word
		if strings.HasPrefix(word, "[") && strings.IndexByte(word, ']') == len(word)-1 {
			name = word[1 : len(word)-1]
		} else {
			least++
		}
		most++
		if strings.HasSuffix(name, "…") {
			most = math.MaxInt
		}
	}
	switch {
	case takes == "" && len(args) > 0:
		return advice.Usagef("", "%q: no argument is expected", args[0])
	case len(args) < least:
		return advice.Usagef("", "want %s", takes)
	case len(args) > most:
		return advice.Usagef("", "unexpected argument %q: want %s", args[most], takes)
	}
	return nil
}

// tabular is a result that is printed as a table, and as JSON with --json. If it is a fmt.Stringer,
// its text follows.
type tabular interface {
	Table() (head []string, rows [][]string)
}

// writeAnswer prints the result of a role's verb: a table, lines of text, or JSON.
func (p *Process) writeAnswer(v any, asJSON bool, s style) error {
	if !asJSON {
		switch v := v.(type) {
		case tabular:
			head, rows := v.Table()
			err := (&table{head: head, rows: rows}).write(p.Stdout, s)
			if text, ok := v.(fmt.Stringer); ok && err == nil {
				_, err = fmt.Fprintln(p.Stdout, "\n"+text.String())
			}
			return err
		case string:
			_, err := fmt.Fprintln(p.Stdout, v)
			return err
		case []string:
			for _, line := range v {
				if _, err := fmt.Fprintln(p.Stdout, line); err != nil {
					return err
				}
			}
			return nil
		case fmt.Stringer:
			_, err := fmt.Fprintln(p.Stdout, v)
			return err
		}
	}
	return writeJSON(p.Stdout, v)
}
