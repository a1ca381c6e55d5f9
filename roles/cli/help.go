package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

const exitCodes = `exit codes:
  0  done
  1  failed; stderr has the reason and what to try
  2  wrong arguments
  3  done, with findings: faults (lint), differences (check), errors (doctor),
     other programs' files that were kept (install, uninstall)
  4  done, with warnings only (doctor)
`

const environment = `environment:
  CNIBOX_RUN_DIR    directory of the state that ends with the boot (/run/cnibox)
  CNIBOX_STATE_DIR  directory of the state that survives a reboot (/var/lib/cnibox)
  CNIBOX_LOG        debug, info, warn or error (warn)
  CNIBOX_TRACE      how many calls of plugins the trace keeps (1000); 0 is none
  CNI_PATH          directories of plugins (/opt/cni/bin)
  NO_COLOR          if set, no colours on a terminal
`

// help explains the program or one verb.
func (p *Process) help(c *invocation, root *verb) error {
	found := root.find(c.arg(0))
	if r, ok := p.Table.Lookup(c.arg(0)); ok && (len(c.args) == 1 || found == nil) {
		if len(c.args) > 1 {
			return usagef("cnibox help "+c.arg(0), "%q has no verbs", c.arg(0))
		}
		p.writeRole(r, p.style(c))
		if found != nil {
			fmt.Fprintln(p.Stdout)
			writeVerb(p.Stdout, found)
		}
		return nil
	}
	switch v, rest := root.descend(c.args); {
	case len(rest) > 0 && v == root:
		return p.unknownVerb(rest[0], root)
	case len(rest) > 0:
		return unknownSub(v, rest[0])
	case v == root:
		writeOverview(p.Stdout, root)
	default:
		writeVerb(p.Stdout, v)
	}
	return nil
}

// groups returns the verbs of the overview in groups. Other verbs follow in a group of their own.
func groups() []group {
	return []group{
		{"run a network", []string{"lint", "plan", "add", "check", "del", "gc", "status", "attach", "detach", "fuse"}},
		{"look", []string{"doctor", "state", "ipam", "range", "cloud", "path", "drops", "capture", "topo", "ui", "trace", "history", "bench"}},
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
func writeOverview(w io.Writer, root *verb) {
	fmt.Fprintf(w, "%s: every CNI plugin in one binary\n\n", appName)
	fmt.Fprint(w, "usage:\n  cnibox VERB [FLAG…] [ARGUMENT…]\n  cnibox ROLE            run as that CNI plugin; `cnibox list` names the roles\n")
	rest := slices.Clone(root.verbs)
	for _, g := range groups() {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		for _, name := range g.verbs {
			if i := slices.IndexFunc(rest, func(v *verb) bool { return v.name == name }); i >= 0 {
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

func writeLine(w io.Writer, v *verb) { fmt.Fprintf(w, "  %-14s %s\n", v.name, v.usage) }

// writeVerb explains one verb.
func writeVerb(w io.Writer, v *verb) {
	fmt.Fprintf(w, "cnibox %s: %s\n\nusage:\n  %s\n", v.name, v.usage, synopsis(v))
	for _, one := range v.verbs {
		fmt.Fprintf(w, "  %s\n", synopsis(one))
	}
	if v.text != "" {
		fmt.Fprintf(w, "\n%s\n", v.text)
	}
	if len(v.flags) > 0 {
		fmt.Fprint(w, "\nflags:\n")
	}
	for _, o := range v.flags {
		left, text := "--"+o.name, o.usage
		if !o.isSwitch {
			left += " " + strings.ToUpper(o.name)
		}
		if o.value != "" {
			text += " (" + o.value + ")"
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
func synopsis(v *verb) string {
	s := "cnibox " + v.name
	if len(v.flags) > 0 {
		s += " [FLAG…]"
	}
	return strings.TrimSpace(s + " " + v.args)
}
