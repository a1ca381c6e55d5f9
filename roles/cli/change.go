package cli

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/call/plugindir"
)

// change is what install or uninstall did, or what the administrator has to do.
type change struct {
	// Action is placed, linked, copied, kept, wrote, removed, restored, edit or run.
	Action string `json:"action"`
	// Name is a role, a file, or the command to run.
	Name     string `json:"name"`
	Target   string `json:"target,omitempty"`
	Replaces string `json:"replaces,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Text is to be written into the file.
	Text string `json:"text,omitempty"`
}

func (c *change) String() string {
	switch c.Action {
	case "edit":
		return fmt.Sprintf("set in %s:\n\n%s", c.Name, c.Text)
	case "run":
		return fmt.Sprintf("run '%s'", c.Name)
	}
	s := c.Action + " " + printable(c.Name)
	if c.Target != "" {
		s += " → " + printable(c.Target)
	}
	if c.Replaces != "" {
		s += ", replacing " + printable(c.Replaces)
	}
	if c.Reason != "" {
		s += ": " + printable(c.Reason)
	}
	return s
}

// fileChanged reports a change in a plugin directory.
func (p *Process) fileChanged(c plugindir.Change) {
	p.changed(change{Action: c.Action, Name: c.Name, Target: c.Target, Replaces: c.Replaces, Reason: c.Reason})
}

// changed prints a change, or keeps it for JSON.
func (p *Process) changed(c change) {
	if p.changes != nil {
		*p.changes = append(*p.changes, c)
		return
	}
	if !p.quiet || c.Action == "edit" || c.Action == "run" {
		fmt.Fprintln(p.Stdout, c.String())
	}
}

// quietFlag is the flag of the verbs that change files.
func quietFlag() cli.Flag {
	return &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "also -q: print only what is left to do, warnings and errors"}
}

// withChanges returns the action of a verb that changes files. With --json the changes are printed as one array at
// the end, also after an error.
func (p *Process) withChanges(run cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		p.quiet = c.Bool("quiet")
		if !c.Bool("json") {
			return run(c)
		}
		p.changes = &[]change{}
		err := run(c)
		if printErr := writeJSON(p.Stdout, *p.changes); err == nil {
			err = printErr
		}
		return err
	}
}
