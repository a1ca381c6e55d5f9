package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/inventory"
	"github.com/cnibox/cnibox/store"
)

func (p *Process) stateCommand() *cli.Command {
	return &cli.Command{
		Name:      "state",
		Usage:     "show attachments, leases and the cloud's pools of this node, or one container whole",
		ArgsUsage: "[CONTAINER]",
		Description: `CONTAINER is a container's ID or the beginning of one, or a pod as NAMESPACE/NAME. LINK
reports whether the interface on the host exists, ALIVE whether the container does.
"cnibox state reap" removes the attachments and leases of containers that do not exist. On a node of a cloud,
a third table lists the addresses that the cloud assigns to the node; "cnibox cloud
show" prints more.

examples:
  cnibox state                     all
  cnibox state 3f8a                the container whose ID begins with 3f8a, with all it has
  cnibox state --network web
  cnibox state --watch             until it is interrupted`,
		Flags: append(tableFlags(),
			&cli.StringFlag{Name: "network", Usage: "only what is of this network"},
			&cli.BoolFlag{Name: "watch", Usage: "print it again when it changes"},
		),
		Subcommands: []*cli.Command{
			p.exportCommand(),
			p.importCommand(),
			p.repairCommand(),
			p.reapCommand(),
			p.metricsCommand(),
		},
		Action: p.onNode(func(c *cli.Context, h *roles.Host) error {
			if c.Args().Len() > 1 {
				return advice.Usagef("cnibox help state", "want at most one container")
			}
			if c.Bool("watch") {
				return p.watch(c.Context, h, func() error { return p.showState(c, h) })
			}
			return p.showState(c, h)
		}),
	}
}

// showState prints the state, or the part that the arguments name.
func (p *Process) showState(c *cli.Context, h *roles.Host) error {
	state, err := inventory.Read(c.Context, h)
	if err == nil {
		err = state.AddFailures(h)
	}
	if err != nil {
		return err
	}
	name := c.Args().First()
	if name != "" {
		if err := state.OnlyContainer(name); err != nil {
			return advice.With(err, stateVerb(c.Command, name))
		}
	}
	if n := c.String("network"); n != "" {
		state.Only(func(network, _ string) bool { return network == n })
	}
	return p.output(c, state, func(s style) error {
		if name != "" {
			return p.writeContainer(state, h.Now(), s)
		}
		return p.writeState(state, h.Now(), s)
	})
}

// stateVerb returns the hint for a word that is no container.
func stateVerb(cmd *cli.Command, word string) string {
	var he *advice.Error
	if errors.As(unknownSub(cmd, word), &he) {
		return he.Try
	}
	return ""
}

func (p *Process) writeState(state *inventory.Inventory, now time.Time, s style) error {
	if err := p.writeAttachments(state.Attachments, now, s); err != nil {
		return err
	}
	l := table{head: []string{"ADDRESS", "NETWORK", "CONTAINER", "IFNAME", "SET", "AGE", "ORIGIN"}}
	sorting.Stable(state.Leases, func(a, b store.Lease) int { return a.Address.Compare(b.Address) })
	for i := range state.Leases {
		x := &state.Leases[i]
		l.add(x.Address.String(), x.Owner.Network, s.name(x.Pod, x.Owner.ContainerID), x.Owner.IfName,
			strconv.Itoa(x.Set), age(now, x.Time), state.Origin(x))
	}
	fmt.Fprintln(p.Stdout)
	if err := l.write(p.Stdout, s); err != nil {
		return err
	}
	return p.writeCloud(state.Cloud, now, s)
}

func (p *Process) writeAttachments(attachments []inventory.Attachment, now time.Time, s style) error {
	t := table{
		head: []string{"CONTAINER", "NETWORK", "IFNAME", "ADDRESSES", "PORTS", "HOST LINK", "ROLES", "STATE", "AGE", "LINK", "ALIVE"},
		paint: func(column int, cell string) string {
			switch {
			case cell == "no", cell == "missing", cell == string(inventory.Failed):
				return red
			case column == 7 && cell != string(store.Done):
				return yellow
			}
			return ""
		},
	}
	for i := range attachments {
		a := &attachments[i]
		t.add(s.name(a.Pod, a.ContainerID), a.Network, a.IfName, dash(joinPrefixes(a.Addresses)), dash(strings.Join(a.Ports, " ")), dash(a.HostLink),
			dash(strings.Join(a.Roles, "+")), string(a.State), age(now, a.Created), linkState(a), yesNo(a.Alive))
	}
	return t.write(p.Stdout, s)
}

func joinPrefixes(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, a := range all {
		texts[i] = a.String()
	}
	return strings.Join(texts, " ")
}

// linkState is the state of the interface on the host.
func linkState(a *inventory.Attachment) string {
	switch {
	case a.LinkMissing:
		return "missing"
	case a.HostLink != "":
		return "ok"
	}
	return dash("")
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// writeContainer prints everything of one container: the attachments with what was made for
// them, and the leases and claims.
func (p *Process) writeContainer(state *inventory.Inventory, now time.Time, s style) error {
	for i := range state.Attachments {
		a := &state.Attachments[i]
		fmt.Fprintf(p.Stdout, "%s on %s\n", s.paint(bold, printable(a.IfName)), printable(a.Network))
		for _, line := range [][2]string{
			{"container", a.ContainerID},
			{"pod", a.Pod},
			{"alive", yesNo(a.Alive)},
			{"namespace", a.Netns},
			{"addresses", joinPrefixes(a.Addresses)},
			{"routes", strings.Join(a.Routes, ", ")},
			{"ports", strings.Join(a.Ports, " ")},
			{"mac", a.MAC},
			{"host link", a.HostLink},
			{"link", linkState(a)},
			{"roles", strings.Join(a.Roles, "+")},
			{"state", string(a.State)},
			{"error", a.Error},
			{"age", age(now, a.Created)},
		} {
			if line[1] != "" {
				fmt.Fprintf(p.Stdout, "  %-10s %s\n", line[0], printable(line[1]))
			}
		}
		for _, c := range a.Made {
			fmt.Fprintf(p.Stdout, "  %-10s %s\n", "made", changeLine(c, s))
		}
	}
	for i := range state.Leases {
		l := &state.Leases[i]
		fmt.Fprintf(p.Stdout, "%s %s of %s, since %s\n", s.paint(bold, "lease"), l.Address, printable(l.Owner.Network), age(now, l.Time))
	}
	for _, c := range state.Claims {
		fmt.Fprintf(p.Stdout, "%s %s %s\n", s.paint(bold, "claim"), printable(c.Kind), printable(c.Name))
	}
	return nil
}

// age returns a duration in its largest unit.
func age(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	d := max(now.Sub(then), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// writeCloud prints nothing on a node without a cloud.
func (p *Process) writeCloud(pools []inventory.CloudPool, now time.Time, s style) error {
	if len(pools) == 0 {
		return nil
	}
	t := table{
		head: []string{"SUBNET", "NIC", "LINK", "GATEWAY", "ADDRESSES", "USED", "WITHDRAWN", "SOURCE", "AGE"},
		paint: func(column int, cell string) string {
			if column == 6 && cell != "0" {
				return yellow
			}
			return ""
		},
	}
	for _, x := range pools {
		gateway := ""
		if x.Gateway.IsValid() {
			gateway = x.Gateway.String()
		}
		t.add(x.Subnet.String(), x.NIC, dash(x.Link), dash(gateway), x.Addresses, strconv.Itoa(x.Used),
			strconv.Itoa(x.Withdrawn), x.Source, age(now, x.Fetched))
	}
	fmt.Fprintln(p.Stdout)
	return t.write(p.Stdout, s)
}
