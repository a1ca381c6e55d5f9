package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/command"
)

const exitCodes = `exit codes:
  0  done
  1  failed; stderr says why and what to try
  2  called in the wrong way
  3  done, and found what should not be: faults (lint), differences (check),
     other programs' files that were kept (install, uninstall)
`

const environment = `environment:
  CNIBOX_RUN_DIR    what dies with the boot (/run/cnibox)
  CNIBOX_STATE_DIR  what outlives it (/var/lib/cnibox)
  CNIBOX_LOG        debug, info, warn or error (warn)
  CNI_PATH          where plugins are (/opt/cni/bin)
  NO_COLOR          set: no colour on a terminal
`

// helpCommand explains the program or one verb.
func (p *Process) helpCommand(a *command.Program) *command.Verb {
	return &command.Verb{
		Name:      "help",
		Usage:     "explain a verb or a role",
		ArgsUsage: "[VERB [VERB] | ROLE]",
		Action: func(c *command.Call) error {
			cmds, path := a.Commands, c.Args().Slice()
			if r, ok := p.Table.Lookup(c.Args().First()); ok && len(path) == 1 {
				p.writeRole(r, p.style(c))
				return nil
			}
			var cmd *command.Verb
			for _, word := range path {
				cmd = command.Find(cmds, word)
				if cmd == nil {
					return unknownVerb(word, cmds)
				}
				cmds = cmd.Subcommands
			}
			if cmd == nil {
				writeOverview(p.Stdout, a)
				return nil
			}
			writeVerb(p.Stdout, cmd)
			return nil
		},
	}
}

// writeOverview lists every verb.
func writeOverview(w io.Writer, a *command.Program) {
	fmt.Fprintf(w, "%s: %s\n\n", a.Name, a.Usage)
	fmt.Fprint(w, "usage:\n  cnibox VERB [FLAG…] [ARGUMENT…]\n  cnibox ROLE            be that CNI plugin; `cnibox list` names the roles\n\nverbs:\n")
	for _, c := range a.Commands {
		writeLine(w, c)
		for _, s := range c.Subcommands {
			writeLine(w, s)
		}
	}
	fmt.Fprint(w, "\n`cnibox help VERB` and `cnibox help ROLE` tell more.\n\n", exitCodes, "\n", environment)
}

func writeLine(w io.Writer, c *command.Verb) {
	fmt.Fprintf(w, "  %-14s %s\n", c.Path, c.Usage)
}

// writeVerb explains one verb.
func writeVerb(w io.Writer, c *command.Verb) {
	fmt.Fprintf(w, "cnibox %s: %s\n\nusage:\n  %s\n", c.Path, c.Usage, synopsis(c))
	for _, s := range c.Subcommands {
		fmt.Fprintf(w, "  %s\n", synopsis(s))
	}
	if c.Description != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(c.Description))
	}
	if len(c.Flags) > 0 {
		fmt.Fprint(w, "\nflags:\n")
	}
	for _, f := range c.Flags {
		name, text, value, takesValue := f.Describe()
		left := "--" + name
		if takesValue {
			left += " " + strings.ToUpper(name)
		}
		if value != "" {
			text += " (" + value + ")"
		}
		fmt.Fprintf(w, "  %-22s %s\n", left, text)
	}
	fmt.Fprint(w, "\n", exitCodes)
}

// writeRole explains one role: its keys, and its daemon if it has one.
func (p *Process) writeRole(r *roles.Role, s style) {
	p.writeKeys(r, s)
	if r.New != nil && r.Run != nil {
		fmt.Fprintf(p.Stdout, "\n`cnibox %s daemon` is its daemon, `cnibox %s daemon -help` lists the flags.\n", r.Name(), r.Name())
	}
}

// synopsis is the one-line usage of a verb.
func synopsis(c *command.Verb) string {
	s := "cnibox " + c.Path
	if len(c.Flags) > 0 {
		s += " [FLAG…]"
	}
	return strings.TrimSpace(s + " " + c.ArgsUsage)
}
