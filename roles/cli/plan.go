package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netlist"
)

// planned is the plan of one plugin of a list.
type planned struct {
	Type string `json:"type"`
	// Note says why there is no plan.
	Note    string          `json:"note,omitempty"`
	Changes []netops.Change `json:"changes,omitempty"`
	Result  *roles.Result   `json:"result,omitempty"`
}

func (p *Process) planCommand() *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "print what ADD would do; change nothing",
		ArgsUsage: "FILE",
		Description: `Prints, in order, what would be added (+), changed (~) and deleted (-), and what is
shared between attachments. Objects that exist, such as the bridge, are not listed. The
addresses are the next ones that cnibox's IPAM would assign, or placeholders if a
third-party plugin or a DHCP server assigns them.`,
		Flags: append(cniFlags(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "ifname", Value: "eth0", Usage: "the container's interface"},
			&cli.StringFlag{Name: "id", Value: "plan", Usage: "the container's ID"},
			&cli.StringFlag{Name: "netns", Usage: "the container's namespace; without it an empty one is assumed"},
			&cli.StringFlag{Name: "args", Usage: `CNI_ARGS: "K=V;K2=V2"`},
			&cli.StringFlag{Name: "cap", Usage: `capabilities as JSON: {"ips":["10.22.0.7"]}`},
		),
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return usagef("cnibox help plan", "want FILE")
			}
			list, err := p.loadNetwork(c.Args().First())
			if err != nil {
				return err
			}
			plans, err := p.plan(c, list.Unfused())
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return writeJSON(p.Stdout, plans)
			}
			return p.writePlans(plans, p.style(c))
		},
	}
}

// plan returns the plan of each plugin of the list. Each plugin gets the planned result
// of the previous one.
func (p *Process) plan(c *cli.Context, list *netlist.List) ([]planned, error) {
	args, given, err := attachmentFlags(c)
	if err != nil {
		return nil, err
	}
	call := netlist.Call{Runtime: given, Request: &roles.Request{
		ContainerID: c.String("id"), Netns: netnsPath(c.String("netns")), IfName: c.String("ifname"),
		Args: args, Path: p.pluginPath(c.String("cni-path")), Env: p.Env,
	}}
	var out []planned
	var result *roles.Result
	for i, plugin := range list.Plugins {
		req, err := list.Request(&call, i, roles.Add, result)
		if err != nil {
			return nil, err
		}
		pl, err := p.planOne(c.Context, plugin.Type, req)
		if err != nil {
			return nil, p.planHint(c, fmt.Errorf("plugins[%d] %s: %w", i, plugin.Type, err))
		}
		if pl.Result != nil {
			result = pl.Result
		}
		out = append(out, pl)
	}
	return out, nil
}

// planHint adds a hint to the error of a plugin's plan.
func (p *Process) planHint(c *cli.Context, err error) error {
	switch {
	case errors.Is(err, netops.ErrPermission):
		return withHint(err, "run it as root")
	case errors.Is(err, roles.ErrConf):
		return withHint(err, p.lintHint(c))
	case errors.Is(err, netops.ErrNoNetns):
		return withHint(err, "ip netns list, or the path of a namespace")
	}
	return stateHint(err)
}

func (p *Process) planOne(ctx context.Context, typ string, req *roles.Request) (planned, error) {
	out := planned{Type: typ}
	role, ok := p.Table.Lookup(typ)
	if !ok || role.New == nil {
		out.Note = "not a role of this binary: its changes are unknown"
		return out, nil
	}
	handler, err := role.New(req.Conf)
	if err != nil {
		return out, err
	}
	planner, ok := handler.(roles.Planner)
	if !ok {
		out.Note = "this role does not implement planning"
		return out, nil
	}
	h, done, err := p.host(ctx, typ)
	if err != nil {
		return out, err
	}
	defer done()
	plan, err := planner.Plan(ctx, h, req)
	if err != nil {
		return out, err
	}
	out.Changes, out.Result = plan.Changes, plan.Result
	return out, nil
}

// writePlans prints one line per change.
func (p *Process) writePlans(plans []planned, s style) error {
	for _, pl := range plans {
		fmt.Fprintln(p.Stdout, s.paint(bold, printable(pl.Type)))
		if pl.Note != "" {
			fmt.Fprintln(p.Stdout, "  "+pl.Note)
			continue
		}
		if len(pl.Changes) == 0 {
			fmt.Fprintln(p.Stdout, "  nothing to do")
		}
		for _, c := range pl.Changes {
			fmt.Fprintln(p.Stdout, "  "+changeLine(c, s))
		}
		for _, ip := range resultIPs(pl.Result) {
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
