package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/internal/yaml"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/path"
	"github.com/cnibox/cnibox/roles/see/view"
)

// maxPolicyFile bounds the file of an object in bytes.
const maxPolicyFile = 1 << 20

func (p *Process) policyCommand() *cli.Command {
	verb := func(name, usage, args, text string, do func(*cli.Context, *roles.Host, *netpolicy.State) error) *cli.Command {
		return &cli.Command{Name: name, Usage: usage, ArgsUsage: args, Description: text, Flags: tableFlags(), Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if want := len(strings.Fields(args)); c.Args().Len() != want {
				return advice.Usagef("cnibox help "+verbOf(c.Command), "want %s", args)
			}
			state, err := control.State(c.Context, h.Store)
			if err != nil {
				return advice.With(err, "cnibox doctor")
			}
			return do(c, h, state)
		})}
	}
	explain := verb("explain", "say which policy allows or denies a connection, and what would change that", "FROM TO[:PORT]",
		`FROM and TO are pods as NAMESPACE/NAME, or addresses: the client's, and the server's after
translation of Services. The agent must run: its policies and pods, also those of other
nodes, are evaluated by the compiler that makes the kernel's rules. What the node itself
sends or receives is not filtered. Exits with 3 if the connection is denied.

examples:
  cnibox policy explain default/client default/web:80
  cnibox policy explain --protocol udp default/client 192.0.2.10:53`, p.explainPolicy)
	explain.Flags = append(explain.Flags, &cli.StringFlag{Name: "protocol", Value: "tcp", Usage: "tcp, udp, sctp, or another protocol"})
	list := verb("list", "list this node's pods with the policies that select them, in the order of evaluation", "",
		`With the packets that no rule of these policies matched, which pods with the same policies share.
Exits with 3 if a pod is denied everything, because the agent does not know it, or if a file
or an object is not in force as it is written, which it prints with line and field.

examples:
  cnibox policy list
  cnibox policy list --rules`, p.listPolicies)
	list.Flags = append(list.Flags, &cli.BoolFlag{Name: "rules", Usage: "list the rules of these policies with the packets that they matched"})
	try := verb("try", "say which of the node's connections an object would stop or begin to allow; change nothing", "FILE",
		`FILE has one object in YAML or JSON, as in the directory of policies. It is added to the
agent's objects, or replaces the one with its name. With --for, connections that begin
in that time count, too. Exits with 3 if the object stops a tracked connection.

examples:
  cnibox policy try deny-all.yaml
  cnibox policy try --for 10m deny-all.yaml`, p.tryPolicy)
	try.Flags = append(try.Flags, &cli.DurationFlag{Name: "for", Usage: "look at the connections again until this time has passed"})
	off := &cli.Command{
		Name: "off", Usage: "end the enforcement of network policies on this node, whose pods are open then",
		Description: `A node that has enforced policies once does so until this command, or until cnibox is
uninstalled: an agent that runs without -policy goes on with them, and without an agent
ADD uses the policies that it saved last. Stop the agent, or start it without -policy,
before. Removes the rules, the saved policies, and the node's mark.

examples:
  cnibox policy off`,
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if c.Args().Len() > 0 {
				return advice.Usagef("cnibox help policy off", "want no arguments")
			}
			return control.Off(c.Context, h)
		}),
	}
	return &cli.Command{
		Name:  "policy",
		Usage: "explain the network policies that the agent enforces, or end their enforcement",
		Subcommands: []*cli.Command{
			explain,
			list,
			try,
			off,
		},
	}
}

func (p *Process) explainPolicy(c *cli.Context, h *roles.Host, state *netpolicy.State) error {
	to, port, err := path.SplitPort(c.Args().Get(1))
	if err != nil {
		return err
	}
	clients, err := policyEnd(state, c.Args().First())
	if err != nil {
		return err
	}
	servers, err := policyEnd(state, to)
	if err != nil {
		return err
	}
	f := netpolicy.Flow{Protocol: strings.ToUpper(c.String("protocol")), Port: port}
	for _, f.Client = range clients {
		if i := slices.IndexFunc(servers, func(a netip.Addr) bool { return a.Is6() == f.Client.Is6() }); i >= 0 {
			f.Server = servers[i]
			break
		}
	}
	if !f.Server.IsValid() {
		return fmt.Errorf("%s and %s have no addresses of the same family", c.Args().First(), to)
	}
	links, err := h.Net.Links(c.Context, nil)
	if err != nil {
		return err
	}
	out := netpolicy.Explanation{Flow: f, Allowed: true}
	if isFiltered(links, &f) {
		e, err := counting(c.Context, state.Only(f.Client, f.Server))
		if err != nil {
			return err
		}
		out = e.Explain(f)
	}
	err = p.writeExplanations(c, []netpolicy.Explanation{out})
	if err == nil && !out.Allowed {
		err = problem("the connection is denied")
	}
	return err
}

// counting returns an Explainer with the kernel's counters.
func counting(ctx context.Context, t *netpolicy.Table) (e *netpolicy.Explainer, err error) {
	e = netpolicy.NewExplainer(t)
	e.Counters, err = podfilter.Counters(ctx)
	return e, err
}

// writeExplanations prints a line for each pod that decides.
func (p *Process) writeExplanations(c *cli.Context, all []netpolicy.Explanation) error {
	return p.output(c, all, func(s style) error {
		t := table{head: []string{"CONNECTION", "POD", "DIRECTION", "VERDICT", "POLICY", "RULE", "PACKETS", "WHY", "CHANGED BY"}, paint: func(_ int, cell string) string {
			return map[string]string{"allowed": green, "denied": red}[cell]
		}}
		for _, e := range all {
			for _, v := range e.Verdicts {
				text := map[bool]string{true: "allowed", false: "denied"}[v.Allowed]
				packets := "-"
				if v.Packets != nil {
					packets = strconv.FormatUint(*v.Packets, 10)
				}
				t.add(e.String(), v.Pod, v.Direction, text, dash(v.Policy), dash(v.Rule), packets, v.Why, v.Change)
			}
			if len(e.Verdicts) == 0 {
				t.add(e.String(), "-", "-", "allowed", "-", "-", "-", "policies apply to neither end", "-")
			}
		}
		return t.write(p.Stdout, s)
	})
}

// policyEnd returns the addresses of an end: a pod, or an address.
func policyEnd(s *netpolicy.State, name string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	var found []*netpolicy.Pod
	for _, pod := range s.Pods {
		if len(pod.Addresses) == 0 {
			continue
		}
		title := pod.Title()
		if title == name {
			return pod.Addresses, nil
		}
		if _, plain, _ := strings.Cut(title, "/"); plain == name {
			found = append(found, pod)
		}
	}
	if len(found) == 1 { // a container without a pod has its ID as the name
		return found[0].Addresses, nil
	}
	return nil, advice.With(fmt.Errorf("%q is neither an address nor a pod that the agent knows", name), "cnibox policy list")
}

// isFiltered reports whether policies apply to a connection, and completes it. What the node itself begins is not filtered.
func isFiltered(links []netops.LinkInfo, f *netpolicy.Flow) bool {
	own := view.Reachable(links)
	f.ToNode = slices.Contains(own, f.Server)
	return !slices.Contains(own, f.Client)
}

func (p *Process) listPolicies(c *cli.Context, h *roles.Host, state *netpolicy.State) error {
	e, err := counting(c.Context, state.Table())
	if err != nil {
		return err
	}
	if c.Bool("rules") {
		counts := e.Count()
		return p.output(c, counts, func(s style) error {
			t := table{head: countHead()}
			for i := range counts {
				t.add(countRow(&counts[i])...)
			}
			return t.write(p.Stdout, s)
		})
	}
	all := e.List()
	err = p.output(c, all, func(s style) error {
		t := table{head: []string{"POD", "ADDRESSES", "EGRESS", "INGRESS", "UNMATCHED PACKETS"}}
		for _, l := range all {
			out, in := dash(strings.Join(l.Egress, ", ")), dash(strings.Join(l.Ingress, ", "))
			if l.Denied {
				out, in = "denied", "denied"
			}
			t.add(l.Pod, strings.Trim(fmt.Sprint(l.Addresses), "[]"), out, in, strconv.FormatUint(l.Unmatched, 10))
		}
		return t.write(p.Stdout, s)
	})
	for _, f := range state.Faults {
		fmt.Fprintf(p.Stderr, "cnibox: policy list: %s\n", printable(f.String()))
	}
	switch {
	case err != nil:
	case slices.ContainsFunc(all, func(l netpolicy.Listed) bool { return l.Denied }):
		err = problem("a pod is denied everything, because the agent does not know it")
	case len(state.Faults) > 0:
		err = problem(counted(len(state.Faults), "object") + " not in force as written")
	}
	return err
}

func countHead() []string {
	return []string{"POLICY", "DIRECTION", "RULE", "ACTION", "PACKETS", "BYTES"}
}

func countRow(r *netpolicy.RuleCount) []string {
	return []string{r.Policy, r.Direction, r.Rule, string(r.Action), strconv.FormatUint(r.Packets, 10), strconv.FormatUint(r.Bytes, 10)}
}

func (p *Process) tryPolicy(c *cli.Context, h *roles.Host, state *netpolicy.State) error {
	if c.Duration("for") < 0 {
		return advice.Usagef("cnibox help policy try", "--for %s: want no negative time", c.Duration("for"))
	}
	interrupted, stop := signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(interrupted, stop)    // a second signal ends the process
	ctx := context.WithoutCancel(c.Context) // the last look is after the signal
	file := c.Args().First()
	content, err := p.readFile(file, maxPolicyFile)
	if err != nil {
		return err
	}
	doc, err := yaml.ToJSON(content)
	var object *netpolicy.Object
	if err == nil {
		object, err = netpolicy.Decode(doc)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	found := map[netpolicy.Flow]netpolicy.Explanation{}
	end := time.After(c.Duration("for"))
	for last := c.Duration("for") == 0; ; {
		if err = tryOnce(ctx, h, state, object, found); err != nil || last {
			break
		}
		if len(found) >= maxTried {
			err = fmt.Errorf("the list ends, because it has %d connections", len(found))
			break
		}
		select {
		case <-interrupted.Done():
			last = true
		case <-end:
			last = true
		case <-time.After(tryInterval):
		}
		state, err = control.State(ctx, h.Store)
		if err != nil {
			break
		}
	}
	changed, broken := slices.Collect(maps.Values(found)), map[string]int{}
	sorting.Func(changed, func(a, b netpolicy.Explanation) int { return strings.Compare(a.String(), b.String()) })
	for i := range changed {
		if v := changed[i].Denial(); v != nil {
			broken[v.Pod]++
		}
	}
	if err := errors.Join(err, p.writeExplanations(c, changed)); err != nil || len(broken) == 0 {
		return err
	}
	var words []string
	for _, pod := range slices.Sorted(maps.Keys(broken)) {
		words = append(words, counted(broken[pod], "flow")+" of "+pod)
	}
	return problem("breaks " + strings.Join(words, ", "))
}

// tryInterval is less than the time for which the kernel knows a connection that has ended, or that had no answer.
const tryInterval = 5 * time.Second

// maxTried bounds what --for remembers: clients of a flood have new addresses at each look.
const maxTried = 10_000

// tryOnce finds the tracked connections whose verdict an object would change.
func tryOnce(ctx context.Context, h *roles.Host, state *netpolicy.State, object *netpolicy.Object, found map[netpolicy.Flow]netpolicy.Explanation) error {
	connections, err := h.Net.Connections(ctx, 0)
	links, failed := h.Net.Links(ctx, nil)
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	candidate := state.Table()
	object.PutInto(candidate)
	before, after := netpolicy.NewExplainer(state.Table()), netpolicy.NewExplainer(candidate)
	for _, one := range connections {
		f := netpolicy.Flow{Client: one.Client, Server: one.Server, Protocol: strings.ToUpper(netops.ProtocolName(one.Protocol)), Port: one.Port}
		if !isFiltered(links, &f) {
			continue
		}
		if now := after.Explain(f); now.Allowed != before.Explain(f).Allowed {
			found[f] = now
		}
	}
	return nil
}

// policyView explains packets by the policies of this node's agent.
type policyView struct {
	state     *netpolicy.State
	explainer *netpolicy.Explainer
	pods      map[netip.Addr]string
	links     []netops.LinkInfo
}

// readPolicies returns nil on a node whose agent enforces no policies.
func readPolicies(ctx context.Context, h *roles.Host, links []netops.LinkInfo) (*policyView, error) {
	if on, err := enforce.Marked(ctx, h.Store); err != nil || !on {
		return nil, err
	}
	state, err := control.State(ctx, h.Store)
	if err != nil {
		return nil, err
	}
	return newPolicyView(state, links), nil
}

func newPolicyView(state *netpolicy.State, links []netops.LinkInfo) *policyView {
	table := state.Table()
	return &policyView{state: state, explainer: netpolicy.NewExplainer(table), pods: table.Titles(), links: links}
}

// denial returns the verdict that denies a connection, or nil. Of a pod of another node it only knows the policies with everywhere.
func (v *policyView) denial(f netpolicy.Flow, everywhere bool) *netpolicy.Verdict {
	if v == nil || !isFiltered(v.links, &f) {
		return nil
	}
	e := v.explainer
	if everywhere {
		e = netpolicy.NewExplainer(v.state.Only(f.Client, f.Server))
	}
	found := e.Explain(f)
	return found.Denial()
}
