package cli

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/trace"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) traceCommand() *cli.Command {
	return &cli.Command{
		Name:      "trace",
		Usage:     "show the last calls of the plugins",
		ArgsUsage: "[POD | CONTAINER]",
		Description: `Lists ADD, DEL, CHECK and GC: who called which plugin, what it answered, and the milliseconds of
the call and of its steps. ipam contains the other steps of that time. POD is NAMESPACE/NAME, and
CONTAINER is a container's ID or the beginning of one: the life of one attachment. --json has
also the input and the whole result. Secrets are redacted. CNIBOX_TRACE in the environment of the
container runtime is the number of calls that are kept; 0 keeps none.

examples:
  cnibox trace --failed
  cnibox trace default/web
  cnibox trace --json | jq -r '.[-1].stdin'
  cnibox trace export > calls.json             for a report, without names
  cnibox trace replay calls.json --bin /opt/cni/bin.old`,
		Flags: append(tableFlags(),
			&cli.BoolFlag{Name: "failed", Usage: "only calls that failed"},
			&cli.IntFlag{Name: "last", Usage: "only the last `N` calls"},
		),
		Subcommands: []*cli.Command{
			{
				Name:      "export",
				Usage:     "write the calls for a report, without the names of pods and containers",
				ArgsUsage: "[POD | CONTAINER]",
				Description: `The names and IDs of pods, namespaces and containers become pod-1, namespace-1, container-1, each the same
in all calls, also within inputs, results and errors. Networks, interfaces and paths keep their names. Read
the file before you send it.

examples:
  cnibox trace export > calls.json
  cnibox trace export default/web --addresses > calls.json`,
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "addresses", Usage: "replace IP addresses too; those of one /16 (IPv6: /48) stay in one"},
					&cli.BoolFlag{Name: "names", Usage: "keep the names"},
				},
				Action: p.traceExport,
			},
			p.replayCommand(),
		},
		Action: p.trace,
	}
}

// tracedCalls reads the calls of the container that the argument names, or all.
func (p *Process) tracedCalls(c *cli.Context) ([]*store.TracedCall, error) {
	if c.Args().Len() > 1 {
		return nil, advice.Usagef("cnibox help "+verbOf(c.Command), "want at most one pod or container")
	}
	h, done, err := p.host(c.Context, "")
	if err != nil {
		return nil, err
	}
	defer done()
	calls, damaged, err := h.Store.Traced()
	if err != nil {
		return nil, err
	}
	p.warnDamaged("trace", damaged)
	if name := c.Args().First(); name != "" {
		calls = slices.DeleteFunc(calls, func(t *store.TracedCall) bool { return !isContainer(t.Pod, t.ContainerID, name) })
		p.warnNone(verbOf(c.Command), name, len(calls))
	}
	return append([]*store.TracedCall{}, calls...), nil // not nil
}

func (p *Process) trace(c *cli.Context) error {
	last := c.Int("last")
	if c.IsSet("last") && last < 1 {
		return advice.Usagef("cnibox help trace", "--last %d: give 1 or more", last)
	}
	calls, err := p.tracedCalls(c)
	if err != nil {
		return err
	}
	if c.Bool("failed") {
		calls = slices.DeleteFunc(calls, func(t *store.TracedCall) bool { return t.Code == 0 })
	}
	if last > 0 {
		calls = calls[max(0, len(calls)-last):]
	}
	if c.Bool("json") {
		return writeJSON(p.Stdout, calls)
	}
	s := p.style(c)
	t := &table{head: []string{"TIME", "CALLER", "PLUGIN", "VERB", "CONTAINER", "IFNAME", "NETWORK", "MS", "STEPS", "ANSWER"}}
	t.paint = func(column int, cell string) string {
		if column == len(t.head)-1 && strings.HasPrefix(cell, "error ") {
			return red
		}
		return ""
	}
	for _, one := range calls {
		t.add(one.Time.Local().Format(stampLayout+".000"), dash(one.Caller), dash(one.Role), one.Verb, dash(s.name(one.Pod, one.ContainerID)),
			dash(one.IfName), dash(one.Network), milliseconds(one.Took), dash(steps(one.Steps)), answer(one))
	}
	return t.write(p.Stdout, s)
}

func (p *Process) traceExport(c *cli.Context) error {
	calls, err := p.tracedCalls(c)
	if err != nil {
		return err
	}
	trace.Scrub(calls, !c.Bool("names"), c.Bool("addresses"))
	return writeJSON(p.Stdout, calls)
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64)
}

// steps lists the steps that took at least 0.1 ms.
func steps(s store.Steps) string {
	var out []string
	for _, step := range []struct {
		name string
		took time.Duration
	}{{"lock", s.Lock}, {"ipam", s.IPAM}, {"netlink", s.Netlink}, {"nftables", s.Nftables}, {"delegate", s.Delegate}} {
		if step.took >= 100*time.Microsecond {
			out = append(out, step.name+" "+milliseconds(step.took))
		}
	}
	return strings.Join(out, ", ")
}

// answer returns the error of a call, or the addresses of its result.
func answer(c *store.TracedCall) string {
	if c.Code != 0 {
		return c.Fault()
	}
	if all := resultAddresses(c.Result); len(all) > 0 {
		return joinPrefixes(all)
	}
	return "ok"
}

// resultAddresses returns the addresses of a CNI result, and none if it is not complete.
func resultAddresses(result string) (all []netip.Prefix) {
	var r struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if json.Unmarshal([]byte(result), &r) != nil {
		return nil
	}
	for _, ip := range r.IPs {
		all = append(all, ip.Address)
	}
	return all
}
