package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/roles/cli/bench"
	"github.com/cnibox/cnibox/roles/see/advice"
)

func (p *Process) benchCommand() *cli.Command {
	return &cli.Command{
		Name:      "bench",
		Usage:     "measure a network's plugins on this node, without changing its network",
		ArgsUsage: "FILE",
		Description: `Calls ADD, CHECK and DEL of the whole list for new containers, one after the other and then several
at a time. The calls are made in network and mount namespaces of their own: the node's
network, leases and state are not used, and on Linux 5.12 and newer its files are
read-only. The interfaces that the list names as master are made there.

--against measures the plugins of a second directory too. Both take turns in each round,
and the ratio of each round is taken. "cnibox plan FILE" prints what ADD does.

examples:
  cnibox bench NET.conflist
  cnibox bench NET.conflist --against /usr/lib/cni
  cnibox bench NET.conflist --cni-path NEW --against /opt/cni/bin --json`,
		Flags: append(append(cniFlags(), tableFlags()...),
			&cli.StringFlag{Name: "against", Usage: "a second directory of plugins"},
			&cli.IntFlag{Name: "rounds", Value: 50, Usage: "how many containers"},
			&cli.IntFlag{Name: "parallel", Value: 8, Usage: "how many calls at a time for the throughput"},
			&cli.BoolFlag{Name: "worker", Usage: "for the processes that bench itself starts"},
		),
		Action: func(c *cli.Context) error {
			if c.Bool("worker") {
				return bench.Serve(c.Context, p.Stdin, p.Stdout, p.Plugins)
			}
			if c.Args().Len() != 1 {
				return advice.Usagef("cnibox help bench", "want FILE")
			}
			return p.bench(c.Context, c)
		},
	}
}

func (p *Process) bench(ctx context.Context, c *cli.Context) error {
	list, err := p.loadNetwork(c.Args().First())
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return advice.With(errors.New("only root can make network namespaces"), "run it as root")
	}
	plan := bench.Plan{
		List: list.raw, Verbs: []roles.Verb{roles.Add, roles.Check, roles.Del}, Rounds: c.Int("rounds"), Parallel: c.Int("parallel"), Env: p.Env,
	}
	if list.DisableCheck || !result.AtLeast(list.CNIVersion, "0.4.0") {
		plan.Verbs = []roles.Verb{roles.Add, roles.Del}
	}
	for _, plugin := range list.Unfused().Plugins {
		var conf struct {
			Master string `json:"master"`
		}
		if json.Unmarshal(plugin.Conf, &conf) == nil && roles.LinkName(conf.Master) == nil {
			plan.Masters = append(plan.Masters, conf.Master)
		}
	}
	sides := []string{strings.Join(p.pluginPath(c.String("cni-path")), string(filepath.ListSeparator))}
	if dir := c.String("against"); dir != "" {
		sides = append(sides, dir)
	}
	for _, side := range sides {
		dirs := filepath.SplitList(side)
		for _, plugin := range list.Plugins {
			if _, found := findPlugin(dirs, plugin.Type); !found {
				return advice.With(fmt.Errorf("plugin %q is not in %s", plugin.Type, side), "cnibox install, or name the directory with --cni-path")
			}
		}
		for i := range dirs { // the worker has another working directory
			dirs[i], err = filepath.Abs(dirs[i])
			if err != nil {
				return err
			}
		}
		plan.Sides = append(plan.Sides, strings.Join(dirs, string(filepath.ListSeparator)))
	}
	if err := plan.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	progress := p.progress("steps")
	report, err := bench.Run(ctx, p.Self, plan, list.Name, progress)
	progress(1, 1)
	if err != nil {
		return advice.With(err, "cnibox plan "+c.Args().First())
	}
	return p.output(c, report, func(s style) error { return p.writeBench(report, s) })
}

// progress returns a function that shows progress on a terminal. A call with the same two numbers removes it.
func (p *Process) progress(unit string) func(done, all int) {
	const width = 30
	return func(done, all int) {
		switch {
		case !p.ErrIsTerminal:
		case done == all:
			fmt.Fprint(p.Stderr, "\r\x1b[K")
		default:
			bar := strings.Repeat("#", done*width/all)
			fmt.Fprintf(p.Stderr, "\r[%-*s] %d of %d %s", width, bar, done, all, unit)
		}
	}
}

func (p *Process) writeBench(r *bench.Report, s style) error {
	ms := func(v float64) string { return fmt.Sprintf("%.2f ms", v) }
	t := table{head: []string{"VERB", "PLUGINS", "P50", "P90", "P99", "MAX", fmt.Sprintf("%d AT A TIME", r.Parallel)}}
	for v := range r.Sides[0].Verbs {
		for _, side := range r.Sides {
			m := side.Verbs[v]
			rate := "-"
			if m.PerSecond > 0 {
				rate = fmt.Sprintf("%.0f/s", m.PerSecond)
			}
			t.add(string(m.Verb), side.Plugins, ms(m.P50), ms(m.P90), ms(m.P99), ms(m.Max), rate)
		}
	}
	if err := t.write(p.Stdout, s); err != nil {
		return err
	}
	for v, m := range r.Sides[0].Verbs {
		fmt.Fprintf(p.Stdout, "\n%s\n", s.paint(bold, string(m.Verb)))
		bounds, counts := r.Histogram(v)
		for b, bound := range bounds {
			line := fmt.Sprintf("%9s", ms(bound))
			for side := range counts {
				n := counts[side][b]
				const width = 30
				bar := strings.Repeat("█", (n*width+r.Rounds-1)/r.Rounds)
				line += fmt.Sprintf("  %5d %-*s", n, width, bar)
			}
			fmt.Fprintln(p.Stdout, strings.TrimRight(line, " "))
		}
	}
	for i, one := range r.Ratios {
		if i == 0 {
			fmt.Fprintln(p.Stdout)
		}
		fmt.Fprintf(p.Stdout, "%s with %s takes %.2f × as long (80%% of the rounds: %.2f to %.2f)\n", one.Verb, r.Sides[1].Plugins, one.P50, one.P10, one.P90)
	}
	return nil
}
