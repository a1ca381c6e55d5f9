package cli

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/netlist"
	"github.com/cnibox/cnibox/roles/see/advice"
)

// planned is the plan of one plugin of a list.
type planned struct {
	Type string `json:"type"`
	*roles.Plan
}

func (p *Process) planCommand() *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "print what ADD would do; change nothing",
		ArgsUsage: "FILE",
		Description: `Prints, in order, what would be added (+), changed (~) and deleted (-), and what is
shared between attachments. Objects that exist, such as the bridge, are not listed. The
addresses are the next ones that cnibox's IPAM would assign. Lines with "!" say what cannot
be known before ADD, such as the addresses of a DHCP server, and why ADD would fail now.
Placeholders for such addresses are marked.

examples:
  cnibox plan NET.conflist
  cnibox plan NET.conflist --cap '{"ips":["10.22.0.7"]}' --json`,
		Flags: append(cniFlags(),
			&cli.StringFlag{Name: "ifname", Value: "eth0", Usage: "the container's interface"},
			&cli.StringFlag{Name: "id", Value: "plan", Usage: "the container's ID"},
			&cli.StringFlag{Name: "netns", Usage: "the container's namespace; without it an empty one is assumed"},
			&cli.StringFlag{Name: "args", Usage: `CNI_ARGS: "K=V;K2=V2"`},
			&cli.StringFlag{Name: "cap", Usage: `capabilities as JSON: {"ips":["10.22.0.7"]}`},
		),
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return advice.Usagef("cnibox help plan", "want FILE")
			}
			list, err := p.loadNetwork(c.Args().First())
			if err != nil {
				return err
			}
			p.warnUnknownKeys(c)
			plans, err := p.plan(c, list.Unfused())
			if err != nil {
				return p.planHint(c, err)
			}
			return p.output(c, plans, func(s style) error { return p.writePlans(plans, s) })
		},
	}
}

// plan returns the plan of each plugin of the list. Each plugin gets the planned result
// of the previous one.
func (p *Process) plan(c *cli.Context, list *netlist.List) ([]planned, error) {
	args, given, err := attachmentFlags(c, list)
	if err != nil {
		return nil, err
	}
	h, done, err := p.host(c.Context, "")
	if err != nil {
		return nil, err
	}
	defer done()
	plans, err := list.Plan(c.Context, h.Delegate, netlist.Call{Runtime: given, Request: &roles.Request{
		ContainerID: c.String("id"), Netns: netnsPath(c.String("netns")), IfName: c.String("ifname"),
		Args: args, Path: p.pluginPath(c.String("cni-path")), Env: p.Env,
	}})
	var out []planned
	for i, one := range plans {
		out = append(out, planned{list.Plugins[i].Type, one})
	}
	return out, err
}

// planHint adds a hint to the error of a plugin's plan.
func (p *Process) planHint(c *cli.Context, err error) error {
	switch {
	case errors.Is(err, roles.ErrConf):
		return advice.With(err, p.lintHint(c))
	case errors.Is(err, netops.ErrNoNetns):
		return advice.With(err, "ip netns list, or the path of a namespace")
	}
	return stateHint(err)
}

// writePlans prints one line per change.
func (p *Process) writePlans(plans []planned, s style) error {
	for _, pl := range plans {
		fmt.Fprintln(p.Stdout, s.paint(bold, printable(pl.Type)))
		for _, note := range pl.Notes {
			fmt.Fprintln(p.Stdout, "  "+s.paint(yellow, "!")+" "+printable(note))
		}
		if len(pl.Changes)+len(pl.Notes) == 0 {
			fmt.Fprintln(p.Stdout, "  nothing to do")
		}
		for _, c := range pl.Changes {
			fmt.Fprintln(p.Stdout, "  "+changeLine(c, s))
		}
		if len(pl.Changes) == 0 && len(pl.Notes) > 0 {
			continue
		}
		for _, ip := range resultIPs(pl.Result) {
			if pl.Placeholder {
				ip += "  (placeholder)"
			}
			fmt.Fprintln(p.Stdout, "  = "+ip)
		}
	}
	return nil
}

// changeLine returns the line of a change: "+ link cni0 …  (shared)". The object's text
// includes its namespace.
func changeLine(c netops.Change, s style) string {
	sign, code := "+", green
	switch c.Do.Verb {
	case netops.VerbSet:
		sign, code = "~", yellow
	case netops.VerbDel:
		sign, code = "-", red
	}
	line := printable(c.Do.Object.String())
	if c.Do.Object.IsShared() {
		line += "  (shared)"
	}
	return s.paint(code, sign) + " " + line
}

// resultIPs returns a line for each address of a result, with its gateway and interface.
func resultIPs(r *roles.Result) []string {
	if r == nil {
		return nil
	}
	var out []string
	for _, ip := range r.IPs {
		line := "address " + ip.Address.String()
		if ip.Gateway != nil {
			line += " gateway " + ip.Gateway.String()
		}
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) {
			line += " on " + printable(r.Interfaces[*i].Name)
		}
		out = append(out, line)
	}
	return out
}
