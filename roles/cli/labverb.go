package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/cli/lab"
)

// onLab returns the function of a verb that works on the lab at --dir. Only root can start or use it.
func (p *Process) onLab(run func(*invocation, *lab.Lab) error) func(*invocation) error {
	return func(c *invocation) error {
		if os.Geteuid() != 0 {
			return withHint(errors.New("only root can make network namespaces"), "run it as root")
		}
		n := netops.New(netops.Options{})
		defer func() { _ = n.Close() }() // the lab's objects are in other namespaces
		return run(c, &lab.Lab{Dir: c.String("dir"), Self: p.Self, Net: n})
	}
}

func (p *Process) labUp(c *invocation, l *lab.Lab) error {
	plan := lab.Plan{Nodes: c.Int("nodes"), Pods: c.Int("pods"), Registry: c.String("registry"), Endpoint: c.String("etcd-endpoint")}
	if _, err := l.Up(c.Context, plan, func(step string) { fmt.Fprintf(p.Stderr, "cnibox: lab up: %s\n", step) }); err != nil {
		return labHint(err)
	}
	return p.writeLab(c, l, nil)
}

func (p *Process) labStatus(c *invocation, l *lab.Lab) error {
	var pinged func(done, all int)
	if c.Bool("ping") {
		pinged = p.progress("pings")
	}
	return p.writeLab(c, l, pinged)
}

func (p *Process) labDown(c *invocation, l *lab.Lab) error {
	err := l.Down(c.Context)
	if errors.Is(err, lab.ErrDown) {
		return withHint(err, "name the directory of the lab with --dir")
	}
	return err
}

func (p *Process) labForward(c *invocation, l *lab.Lab) error { return l.Forward(c.Context, c.arg(0)) }

func labHint(err error) error {
	switch {
	case errors.Is(err, lab.ErrUp):
		return withHint(err, "cnibox lab down")
	case errors.Is(err, lab.ErrDown):
		return withHint(err, "cnibox lab up")
	case errors.Is(err, lab.ErrInvalid):
		return usagef("cnibox help lab up", "%w", err)
	}
	return err
}

// writeLab prints the state of the lab. A node that is not ready, and a ping without an answer, count as
// differences.
func (p *Process) writeLab(c *invocation, l *lab.Lab, pinged func(done, all int)) error {
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
