package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/cli/lab"
	"github.com/cnibox/cnibox/roles/see/advice"
)

func (p *Process) labCommand() *cli.Command {
	dir := &cli.StringFlag{Name: "dir", Value: lab.DefaultDir, Usage: "the directory of the lab's files"}
	return &cli.Command{
		Name:   "lab",
		Usage:  "simulate a cluster of several nodes on this machine",
		Action: noSubverb("lab"),
		Description: `Nodes and pods are network namespaces ("ip netns list" shows them). A bridge in
another namespace connects the nodes, and each node runs the agent with separate
directories. The machine's network is not changed.`,
		Subcommands: []*cli.Command{
			{
				Name:  "up",
				Usage: "make nodes, run their agents, attach pods",
				Description: `Returns when every node knows all others and every pod is attached. The agents continue.
If it fails or is interrupted, it removes everything. With --registry etcd a forwarder
connects the nodes to the running etcd at --etcd-endpoint.

examples:
  cnibox lab up --nodes 5 --pods 3`,
				Flags: append([]cli.Flag{
					&cli.IntFlag{Name: "nodes", Value: 3, Usage: "how many nodes"},
					&cli.IntFlag{Name: "pods", Value: 2, Usage: "how many pods on each"},
					&cli.StringFlag{Name: "registry", Value: "dir", Usage: "dir or etcd"},
					&cli.BoolFlag{Name: "policy", Usage: "enforce the network policies in policy.d of the lab's directory"},
					&cli.StringFlag{Name: "etcd-endpoint", Usage: "`URL` of the etcd, as http://127.0.0.1:2379"},
					dir,
				}, tableFlags()...),
				Action: p.labUp,
			},
			{
				Name:        "status",
				Usage:       "show nodes, agents and pods",
				Description: "Exits with 3 if a node is not ready or a ping has no answer.\n\nexamples:\n  cnibox lab status --ping",
				Flags:       append([]cli.Flag{&cli.BoolFlag{Name: "ping", Usage: "ping from every pod to every other pod"}, dir}, tableFlags()...),
				Action:      p.labStatus,
			},
			{
				Name:            "run",
				Usage:           "run a verb of cnibox on a node",
				ArgsUsage:       "NODE VERB…",
				Description:     "examples:\n  cnibox lab run node1 agent status\n  cnibox lab run node1 path --probe lab-node1-pod1 10.244.1.2",
				SkipFlagParsing: true,
				Flags:           []cli.Flag{dir},
				Action:          p.labRun,
			},
			{
				Name:        "down",
				Usage:       "stop the agents and remove everything",
				Description: "Also removes an incomplete lab.\n\nexamples:\n  cnibox lab down",
				Flags:       []cli.Flag{dir},
				Action:      p.labDown,
			},
			{
				Name:      "forward",
				Usage:     "let a lab's nodes reach one address; lab up starts it",
				ArgsUsage: "HOST:PORT",
				Flags:     []cli.Flag{dir},
				Action:    p.labForward,
			},
		},
	}
}

// lab returns the lab at --dir. Only root can start or use it.
func (p *Process) lab(c *cli.Context) (*lab.Lab, func(), error) {
	if c.Args().Len() > 0 && c.Command.ArgsUsage == "" {
		return nil, nil, advice.Usagef("cnibox help "+verbOf(c.Command), "%q is not an argument of this verb", c.Args().First())
	}
	if os.Geteuid() != 0 {
		return nil, nil, advice.With(errors.New("only root can make network namespaces"), "run it as root")
	}
	n := netops.New(netops.Options{})
	return &lab.Lab{Dir: c.String("dir"), Self: p.Self, Net: n}, func() { _ = n.Close() }, nil
}

func (p *Process) labUp(c *cli.Context) error {
	l, done, err := p.lab(c)
	if err != nil {
		return err
	}
	defer done()
	plan := lab.Plan{Nodes: c.Int("nodes"), Pods: c.Int("pods"), Registry: c.String("registry"), Endpoint: c.String("etcd-endpoint"), Policy: c.Bool("policy")}
	if _, err := l.Up(c.Context, plan, func(step string) { fmt.Fprintf(p.Stderr, "cnibox: lab up: %s\n", step) }); err != nil {
		return labHint(err)
	}
	return p.writeLab(c, l, nil)
}

func (p *Process) labStatus(c *cli.Context) error {
	l, done, err := p.lab(c)
	if err != nil {
		return err
	}
	defer done()
	var pinged func(done, all int)
	if c.Bool("ping") {
		pinged = p.progress("pings")
	}
	return p.writeLab(c, l, pinged)
}

func (p *Process) labDown(c *cli.Context) error {
	l, done, err := p.lab(c)
	if err != nil {
		return err
	}
	defer done()
	err = l.Down(c.Context)
	if errors.Is(err, lab.ErrDown) {
		return advice.With(err, "name the directory of the lab with --dir")
	}
	return err
}

// labRun is `cnibox lab run`. The verb takes the place of this process, with its terminal, signals and exit code.
func (p *Process) labRun(c *cli.Context) error {
	if c.Args().Len() < 2 {
		return advice.Usagef("cnibox help lab run", "want NODE and VERB")
	}
	l, done, err := p.lab(c)
	if err != nil {
		return err
	}
	defer done()
	err = l.Become(c.Args().First(), p.Env, c.Args().Tail())
	if errors.Is(err, lab.ErrInvalid) {
		return advice.Usagef("cnibox lab status", "%w", err)
	}
	return labHint(err)
}

func (p *Process) labForward(c *cli.Context) error {
	if c.Args().Len() != 1 {
		return advice.Usagef("cnibox help lab forward", "want HOST:PORT")
	}
	l, done, err := p.lab(c)
	if err != nil {
		return err
	}
	defer done()
	return l.Forward(c.Context, c.Args().First())
}

func labHint(err error) error {
	switch {
	case errors.Is(err, lab.ErrUp):
		return advice.With(err, "cnibox lab down")
	case errors.Is(err, lab.ErrDown):
		return advice.With(err, "cnibox lab up")
	case errors.Is(err, lab.ErrInvalid):
		return advice.Usagef("cnibox help lab up", "%w", err)
	}
	return err
}

// writeLab prints the state of the lab. A node that is not ready, and a ping without an answer, count as
// differences.
func (p *Process) writeLab(c *cli.Context, l *lab.Lab, pinged func(done, all int)) error {
	r, err := l.Report(c.Context, pinged)
	if err != nil {
		return labHint(err)
	}
	err = p.output(c, r, func(s style) error { return p.writeLabTables(r, s) })
	for i := range r.Nodes {
		if n := &r.Nodes[i]; err == nil && !n.Ready {
			err = fmt.Errorf("%w: %s is not ready: %s", errDifferent, n.Name, n.Reason)
		}
	}
	for _, one := range r.Pings {
		if err == nil && one.Error != "" {
			err = fmt.Errorf("%w: %s does not reach %s: %s", errDifferent, one.From, one.To, one.Error)
		}
	}
	return err
}

func (p *Process) writeLabTables(r *lab.Report, s style) error {
	nodes := &table{head: []string{"NODE", "NETNS", "ADDRESS", "POD NETWORK", "AGENT", "READY", "PEERS"}}
	pods := &table{head: []string{"POD", "NODE", "ADDRESS"}}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		agents := make([]string, 0, 1)
		for _, pid := range n.Agents {
			agents = append(agents, strconv.Itoa(pid))
		}
		ready := "yes"
		if !n.Ready {
			ready = "no: " + n.Reason
		}
		nodes.add(n.Name, n.Netns, n.Address.Addr().String(), n.PodNetwork.String(), dash(strings.Join(agents, ",")), ready,
			fmt.Sprintf("%d/%d", n.Peers.Programmed, n.Peers.Wanted))
		for _, pod := range n.Pods {
			pods.add(pod.Netns, n.Name, pod.Address.String())
		}
	}
	tables := []*table{nodes, pods}
	if len(r.Pings) > 0 {
		pings := &table{head: []string{"FROM", "TO", "ADDRESS", "ANSWER"}}
		for _, one := range r.Pings {
			answer := one.Error
			if answer == "" {
				answer = fmt.Sprintf("%.2f ms", one.Milliseconds)
			}
			pings.add(one.From, one.To, one.Address.String(), answer)
		}
		tables = append(tables, pings)
	}
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(p.Stdout)
		}
		if err := t.write(p.Stdout, s); err != nil {
			return err
		}
	}
	return nil
}
