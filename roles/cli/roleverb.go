package cli

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// exportVerb is the verb of a role that writes its state in the role's own format. It is called by
// `cnibox state export --format ROLE`.
const exportVerb = "state export"

// addRoleVerbs adds the roles' verbs: "verb", or "noun verb" below an existing or new verb for the noun.
func (p *Process) addRoleVerbs(root *verb) {
	for _, r := range p.Table.Roles() {
		for _, v := range r.Commands() {
			noun, _, two := strings.Cut(v.Name, " ")
			switch {
			case v.Name == exportVerb:
				continue
			case v.Run == nil:
				root.add(&verb{name: noun, usage: v.Help})
				continue
			case two && root.find(noun) == nil:
				parent := &verb{name: noun, usage: r.Summary}
				if r.New == nil {
					parent.text = fmt.Sprintf("Without a verb it starts the daemon. %s -help lists its flags.", appName+" "+noun)
				}
				root.add(parent)
			}
			root.add(p.roleVerb(&r, v))
		}
	}
}

func (p *Process) roleVerb(r *roles.Role, v roles.CommandVerb) *verb {
	flags := []option{{name: "table", usage: "print an aligned table, terminal or not", isSwitch: true}}
	for _, f := range v.Flags {
		flags = append(flags, option{name: f.Name, value: f.Default, usage: f.Help, isSwitch: f.Switch})
	}
	return &verb{
		name: v.Name, usage: v.Help, args: v.Args, flags: flags,
		text: "A verb of the role " + r.Name() + ".\n\nexamples:\n  " + appName + " " + v.Example,
		run: func(c *invocation) error {
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
			out, err := v.Run(c.Context, h, values, c.args)
			if errors.Is(err, roles.ErrUsage) {
				return withHint(err, "cnibox help "+v.Name)
			}
			if v := reflect.ValueOf(out); !v.IsValid() || err != nil && v.IsZero() {
				return err
			}
			return errors.Join(p.writeAnswer(out, c.Bool("json"), p.style(c)), err)
		},
	}
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
