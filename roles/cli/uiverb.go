package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/netops/rates"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/topo"
	"github.com/cnibox/cnibox/roles/see/ui"
	"github.com/cnibox/cnibox/store"
)

// uiInterval is the time between two reads of the node while a page is open.
const uiInterval = 5 * time.Second

// uiCalls is the number of calls on the page, and uiAnswer the size of the answer that it shows of each.
const uiCalls, uiAnswer = 1000, 1000

func (p *Process) uiCommand() *cli.Command {
	return &cli.Command{
		Name:  "ui",
		Usage: "serve the page of topo, live, with doctor's findings, the pools and the last calls, until it is interrupted",
		Description: `The page only reads. While a page is open the node is read every five seconds, otherwise only
the counters of its links, for the lines of the last hour. Without --port it is on a unix
socket that only root can use. Reach it from another machine with ssh:

  ssh -L 8009:/run/cnibox/ui.sock root@NODE      then open http://localhost:8009/

With --port it is on 127.0.0.1. The path has a secret, because all users of the node can
connect to a port.

examples:
  cnibox ui
  cnibox ui --port 8009`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "socket", Usage: "`PATH` of the socket (ui.sock in the run directory)"},
			&cli.IntFlag{Name: "port", Usage: "a port of 127.0.0.1 instead; 0 is any free port"},
			&cli.BoolFlag{Name: "json", Usage: "print the address as JSON"},
		},
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if port := c.Int("port"); port < 0 || port > 65535 || c.IsSet("port") && c.IsSet("socket") {
				return advice.Usagef("cnibox help ui", "want --socket or --port with 0 to 65535")
			}
			if os.Geteuid() != 0 {
				return advice.With(errors.New("only root can read a node"), "run it as root")
			}
			return p.serveUI(c.Context, c, h)
		}),
	}
}

func (p *Process) serveUI(ctx context.Context, c *cli.Context, h *roles.Host) error {
	quiet := *p
	quiet.ErrIsTerminal = false // no progress
	counting := h.Net.Clone()   // it counts beside a reading
	defer func() { _ = counting.Close() }()
	history := rates.New(rates.Span, formerRates(ctx, h))
	ctx, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() { history.Follow(ctx, rates.Count(counting)) })
	s := &ui.Server{Interval: uiInterval, Rates: history, Read: func(ctx context.Context) (*ui.State, error) { return quiet.readUI(ctx, h) }}
	var l net.Listener
	var address string
	if c.IsSet("port") {
		tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(c.Int("port"))).String())
		if err != nil {
			return err
		}
		s.Secret = rand.Text()
		l, address = tcp, "http://"+tcp.Addr().String()+"/"+s.Secret+"/"
	} else {
		address = c.String("socket")
		if address == "" {
			address = filepath.Join(h.Store.RunDir(), "ui.sock")
		}
		unix, unlock, err := service.Listen(address)
		if err != nil {
			return err
		}
		defer unlock()
		l = unix
	}
	if c.Bool("json") {
		if err := writeJSON(p.Stdout, map[string]string{"address": address}); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(p.Stdout, address)
	}
	return s.Serve(ctx, l)
}

// formerRates returns the rates that the agent has kept, or none.
func formerRates(ctx context.Context, h *roles.Host) (former map[string]*rates.Rates) {
	err := service.Ask(ctx, h.Store.AgentSocket(), service.Rates, nil, service.Into(&former))
	if err != nil {
		return nil // without an agent the page begins now
	}
	return former
}

// readUI reads what the page shows.
func (p *Process) readUI(ctx context.Context, h *roles.Host) (*ui.State, error) {
	t, err := p.readTopology(ctx, h)
	if err != nil {
		return nil, err
	}
	r, err := p.examine(ctx, h)
	if err != nil {
		return nil, err
	}
	findings := ui.Table{Title: fmt.Sprintf("%s of cnibox doctor, %d checks passed", counted(len(r.Findings), "finding"), r.Passed), Head: []string{"severity", "check", "object", "what", "evidence", "next"}}
	for _, f := range r.Findings {
		findings.Rows = append(findings.Rows, []string{string(f.Severity), f.ID, f.Object, f.What, f.Evidence, f.Next()})
	}
	pools := ui.Table{Title: "pools", Head: []string{"cnibox ipam show"}}
	for _, r := range p.Table.Roles() {
		v := r.Verb("ipam show")
		if v == nil {
			continue
		}
		shown, err := v.Run(ctx, h, nil, nil)
		if err != nil {
			return nil, err
		}
		if text, ok := shown.(fmt.Stringer); ok && text.String() != "" {
			for line := range strings.SplitSeq(text.String(), "\n") {
				pools.Rows = append(pools.Rows, []string{line})
			}
		}
		break
	}
	policies, view, err := policyTables(ctx, h, t)
	if err != nil {
		return nil, err
	}
	connections, err := connectionsTable(ctx, h, t, view)
	if err != nil {
		return nil, err
	}
	calls, _, err := h.Store.Traced() // damaged lines are left out
	if err != nil {
		return nil, err
	}
	tables := slices.Concat([]ui.Table{findings}, p.peersTable(ctx, h, t), deniedTable(ctx, h, t), connections, policies)
	if len(pools.Rows) > 0 {
		tables = append(tables, pools)
	}
	state := &ui.State{Topology: t, Tables: tables}
	for _, one := range calls[max(0, len(calls)-uiCalls):] {
		state.Calls = append(state.Calls, drawnCall(one))
	}
	return state, nil
}

// policyTables adds the network policies of pods to a Topology, and returns the table of their rules. A node whose agent enforces none, or
// does not answer, has none: doctor's findings say so.
func policyTables(ctx context.Context, h *roles.Host, t *topo.Topology) ([]ui.Table, *policyView, error) {
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	view, _ := readPolicies(ctx, h, links)
	if view == nil {
		return nil, nil, nil
	}
	counters, err := podfilter.Counters(ctx)
	if err != nil {
		return nil, nil, err
	}
	view.explainer.Counters = counters
	for _, l := range view.explainer.List() {
		for i := range t.Attachments {
			a := &t.Attachments[i]
			if !slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return slices.Contains(l.Addresses, p.Addr()) }) {
				continue
			}
			a.Egress, a.Ingress, a.DeniedPackets = l.Egress, l.Ingress, l.Unmatched
			if l.Denied {
				a.Problems = append(a.Problems, "network policies deny it everything, because the agent does not know the pod: cnibox doctor")
			}
		}
	}
	rules := ui.Table{Title: "rules of network policies", Head: countHead()}
	counts := view.explainer.Count()
	for i := range counts {
		rules.Rows = append(rules.Rows, countRow(&counts[i]))
	}
	if len(view.state.Faults) == 0 {
		return []ui.Table{rules}, view, nil
	}
	faults := ui.Table{Title: "network policies that are not in force as they are written", Head: []string{"OBJECT", "LINE", "FIELD", "REASON", "IN FORCE"}}
	for _, f := range view.state.Faults {
		faults.Rows = append(faults.Rows, []string{f.Object, strconv.Itoa(f.Line), dash(f.Field), f.Reason, f.InForce})
	}
	return []ui.Table{faults, rules}, view, nil
}

// drawnCall returns what the page shows of a call.
func drawnCall(c *store.TracedCall) topo.Call {
	what := c.Verb + " " + dash(c.Role)
	start, name := c.Time.Local(), dash(cmp.Or(c.Pod, c.ContainerID))
	answered := answer(c)
	return topo.Call{
		Time: start, Took: c.Took, Container: name, Text: what + " " + milliseconds(c.Took) + " ms", Failed: c.Code != 0,
		Details: fmt.Sprintf("%s %s %s\n%s on network %s, called by %s: %s ms (%s)\n%s", start.Format(stampLayout+".000"), what, name,
			dash(c.IfName), dash(c.Network), dash(c.Caller), milliseconds(c.Took), cmp.Or(steps(c.Steps), "no step of 0.1 ms"),
			answered[:min(len(answered), uiAnswer)]),
	}
}
