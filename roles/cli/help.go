package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
)

const exitCodes = `exit codes:
  0  done
  1  failed; stderr has the reason and what to try
  2  wrong arguments
  3  done, with findings: faults (lint), differences (check), errors (doctor),
     other programs' files that were kept (install, uninstall)
  4  done, with warnings only: doctor, and agent status if a node does not answer
`

const environment = `environment:
  CNIBOX_RUN_DIR    directory of the state that ends with the boot (/run/cnibox)
  CNIBOX_STATE_DIR  directory of the state that survives a reboot (/var/lib/cnibox)
  CNIBOX_LOG        debug, info, warn or error (warn)
  CNIBOX_TRACE      how many calls of plugins the trace keeps (1000); 0 is none
  CNI_PATH          directories of plugins (/opt/cni/bin)
  NO_COLOR          if set, no colours on a terminal
`

// helpCommand explains the program or one verb.
func (p *Process) helpCommand(root *cli.Command) *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "explain a verb or a role",
		ArgsUsage: "[VERB [VERB] | ROLE]",
		Description: `examples:
  cnibox help state repair
  cnibox help bridge`,
		Action: func(c *cli.Context) error {
			cmds, path := root.Subcommands, c.Args().Slice()
			cmd := find(cmds, c.Args().First())
			if r, ok := p.Table.Lookup(c.Args().First()); ok && (len(path) == 1 || cmd == nil) {
				if len(path) > 1 {
					return advice.Usagef("cnibox help "+path[0], "%q has no verbs", path[0])
				}
				if cmd != nil {
					writeVerb(p.Stdout, cmd)
					fmt.Fprintln(p.Stdout, "\nkeys of the plugin:")
				}
				p.writeRole(r, p.style(c))
				return nil
			}
			cmd = nil
			for _, word := range path {
				next := find(cmds, word)
				switch {
				case next == nil && cmd == nil:
					return p.unknownVerb(word, cmds)
				case next == nil:
					return unknownSub(cmd, word)
				}
				cmd, cmds = next, next.Subcommands
			}
			if cmd == nil {
				writeOverview(p.Stdout, root)
				return nil
			}
			writeVerb(p.Stdout, cmd)
			return nil
		},
	}
}

// groups returns the verbs of the overview in groups. Other verbs follow in a group of their own.
func groups() []group {
	return []group{
		{"run a network", []string{"lint", "plan", "add", "check", "del", "gc", "status", "attach", "detach", "fuse"}},
		{"look", []string{"doctor", "state", "ipam", "range", "cloud", "path", "policy", "drops", "capture", "topo", "ui", "trace", "history", "bench"}},
		{"mend", []string{"diff", "repair"}},
		{"nodes and daemons", []string{"install", "uninstall", "migrate", "agent", "nodeipam", "azure-vnet", "lab"}},
	}
}

type group struct {
	title string
	verbs []string
}

const examples = `examples:
  cnibox plan NET.conflist                         what ADD would do
  cnibox add NET.conflist web /run/netns/web       ADD as a runtime calls it
  cnibox state                                     who has which address
  cnibox doctor                                    what is wrong with this node
  cnibox lint /etc/cni/net.d                       faults of the node's networks
`

// writeOverview lists the verbs.
func writeOverview(w io.Writer, root *cli.Command) {
	fmt.Fprintf(w, "%s: %s\n\n", root.Name, root.Usage)
	fmt.Fprint(w, "usage:\n  cnibox VERB [FLAG…] [ARGUMENT…]\n  cnibox ROLE            run as that CNI plugin; `cnibox list` names the roles\n")
	rest := slices.Clone(root.Subcommands)
	for _, g := range groups() {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		for _, name := range g.verbs {
			if i := slices.IndexFunc(rest, func(c *cli.Command) bool { return c.Name == name }); i >= 0 {
				writeLine(w, rest[i])
				rest = slices.Delete(rest, i, i+1)
			}
		}
	}
	fmt.Fprint(w, "\nother verbs:\n")
	for _, c := range rest {
		writeLine(w, c)
	}
	fmt.Fprint(w, "\n", examples, "\n`cnibox help VERB` and `cnibox help ROLE` print more, also verbs of verbs such as \"state repair\".\n\n", exitCodes, "\n", environment)
}

func writeLine(w io.Writer, c *cli.Command) {
	fmt.Fprintf(w, "  %-14s %s\n", verbOf(c), c.Usage)
}

// writeVerb explains one verb.
func writeVerb(w io.Writer, c *cli.Command) {
	fmt.Fprintf(w, "cnibox %s: %s\n\nusage:\n  %s\n", verbOf(c), c.Usage, synopsis(c))
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
		d, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		left := "--" + f.Names()[0]
		if d.TakesValue() {
			left += " " + strings.ToUpper(f.Names()[0])
		}
		text := d.GetUsage()
		if v := d.GetDefaultText(); d.TakesValue() && v != "" && v != `""` {
			text += " (" + strings.Trim(v, `"`) + ")"
		}
		fmt.Fprintf(w, "  %-22s %s\n", left, text)
	}
}

// writeRole explains one role: its keys, and its daemon if it has one.
func (p *Process) writeRole(r *roles.Role, s style) {
	p.writeKeys(r, s)
	if r.New != nil && r.Run != nil {
		fmt.Fprintf(p.Stdout, "\n`cnibox %s daemon` is its daemon, `cnibox %s daemon -help` lists the flags.\n", r.Name(), r.Name())
	}
}

// synopsis is the one-line usage of a verb.
func synopsis(c *cli.Command) string {
	s := "cnibox " + verbOf(c)
	if len(c.Flags) > 0 {
		s += " [FLAG…]"
	}
	return strings.TrimSpace(s + " " + c.ArgsUsage)
}
