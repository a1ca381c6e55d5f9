package cli

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cli/lab"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/path"
)

// hostName is the name of this node's own namespace as an end of a path.
const hostName = "host"

func (p *Process) pathCommand() *cli.Command {
	return &cli.Command{
		Name:      "path",
		Usage:     "follow a packet from a container to an address, and say what stops it",
		ArgsUsage: "FROM TO[:PORT], or with --dns FROM",
		Description: `FROM is a container's ID or the beginning of one, a pod as NAMESPACE/NAME, a container's
address, a namespace's path, or "host". TO is one of these or any address; with PORT also
a published port of this node, or a service of kube-proxy (not with iptables-legacy). With
a port an IPv6 address is in brackets: [2001:db8::9]:80. The
kernel answers each question: routes in every namespace, neighbours, forwarding tables,
rules that drop by addresses or devices. Nothing is sent and nothing is changed. A chain of
another program that drops by its policy is mentioned.

--probe also sends packets for at most a second: an ARP request, ICMP echo requests, a
large one with DF, and a TCP SYN if a port is given, or with --udp an empty UDP datagram. It
reports the answers, every hook of nftables that the packets reach, and the rule that decides. For that time nftables tables
"cnibox_trace" without verdicts are in the namespaces of FROM, the node and TO. Rules of
iptables-legacy are not seen. If a packet is lost without a rule, the kernel's reason is
named where "cnibox drops" has reports.

--udp is for a port of UDP. --dns sends TO, a name server, one query and names its answer. Without
TO it asks the first server of FROM's resolv.conf.

A path through the overlay ends where the packet leaves for the other node. There
"cnibox path --in flannel.1 FROM TO" goes on. In a node of a lab this happens by itself.

examples:
  cnibox path default/web 10.244.2.7
  cnibox path --in flannel.1 10.244.0.5 default/db
  cnibox path --probe default/web default/db:5432
  cnibox path host 192.0.2.10:8080`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "probe", Usage: "send packets and trace them"},
			&cli.BoolFlag{Name: "udp", Usage: "the port is one of UDP"},
			&cli.BoolFlag{Name: "forget", Usage: "with --udp, delete tracked connections that lead packets past a service"},
			&cli.StringFlag{Name: "dns", Usage: "ask TO, a server, for the addresses of `NAME`"},
			&cli.StringFlag{Name: "in", Usage: "FROM is an address elsewhere, and its packet arrives on `LINK`"},
			&cli.StringFlag{Name: "lab", Value: lab.DefaultDir, Usage: "the directory of a lab"},
		}, tableFlags()...),
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			in, probe, to := c.String("in"), c.Bool("probe"), c.Args().Get(1)
			if n := c.Args().Len(); n != 2 && (n != 1 || c.String("dns") == "") {
				return advice.Usagef("cnibox help path", "want FROM and TO")
			}
			if in != "" && probe {
				return advice.Usagef("cnibox help path", "--in and --probe exclude each other: FROM sends the probe")
			}
			dns := c.String("dns")
			if dns != "" && (in != "" || probe) {
				return advice.Usagef("cnibox help path", "--dns excludes --in and --probe: it sends a query of its own")
			}
			r := path.Request{
				From: c.Args().First(), To: to, In: in, IsUDP: c.Bool("udp"), Forgets: c.Bool("forget"), Probe: probe, DNS: dns, Table: p.Table,
				Networks: func() ([]*doctor.Network, error) {
					runtimes, _, err := p.runtimes()
					return doctor.Choose(p.Table, runtimes), err
				},
				Denied: func(links []netops.LinkInfo, f netpolicy.Flow) (*netpolicy.Verdict, error) {
					policies, err := readPolicies(c.Context, h, links)
					return policies.denial(f, true), err
				},
			}
			if p.Self != nil && in == "" {
				l := &lab.Lab{Dir: c.String("lab"), Self: p.Self, Net: h.Net}
				r.Node = func(a netip.Addr) (*path.Node, error) { return nodeOfLab(c.Context, l, a) }
			}
			known, done := p.view(c.Context, h)
			defer done()
			found, err := path.Follow(c.Context, h, known, r)
			if err != nil {
				return err
			}
			err = p.output(c, found, func(s style) error { return p.writePath(found, s) })
			if err == nil && found.Stopped != "" {
				err = problem("the packet does not arrive")
			}
			return err
		}),
	}
}

func (p *Process) writePath(found *path.Path, s style) error {
	t := table{head: []string{"WHERE", "WHAT", ""}}
	for _, step := range found.Steps {
		t.add(step.Where, step.What, step.Text)
	}
	if err := t.write(p.Stdout, s); err != nil {
		return err
	}
	if found.Stopped == "" {
		return nil
	}
	fmt.Fprintln(p.Stdout, s.paint(red, "stopped: "+printable(found.Stopped)))
	return p.writeNext("", found.Fix, found.See)
}

// nodeOfLab returns the node of a lab with an address, or nil.
func nodeOfLab(ctx context.Context, l *lab.Lab, a netip.Addr) (*path.Node, error) {
	n, err := l.NodeAt(a)
	if n == nil {
		return nil, err
	}
	out := &path.Node{
		Name: n.Name, Netns: filepath.Join(netops.NamespaceDir, n.Netns),
		Run: func(args ...string) ([]byte, error) { return l.Run(ctx, n, args...) },
	}
	for _, p := range n.Pods {
		out.Pods = append(out.Pods, path.Pod{Name: p.Name, Netns: filepath.Join(netops.NamespaceDir, p.Netns), Address: p.Address})
	}
	return out, nil
}
