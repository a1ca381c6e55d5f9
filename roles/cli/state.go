package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/roles/recovery"
	"github.com/cnibox/cnibox/store"
)

// attached is an attachment in the output of `cnibox state`.
type attached struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifname"`
	Pod         string         `json:"pod,omitempty"`
	Addresses   []netip.Prefix `json:"addresses,omitempty"`
	MAC         string         `json:"mac,omitempty"`
	HostLink    string         `json:"hostLink,omitempty"`
	Netns       string         `json:"netns,omitempty"`
	Roles       []string       `json:"roles,omitempty"`
	State       store.State    `json:"state"`
	Created     time.Time      `json:"created"`
	// Alive is false if the container certainly no longer exists. LinkMissing is true if its
	// interface on the host does not.
	Alive       bool `json:"alive"`
	LinkMissing bool `json:"linkMissing,omitempty"`
}

// nodeState is the output of `cnibox state --json`.
type nodeState struct {
	Attachments []attached    `json:"attachments"`
	Leases      []store.Lease `json:"leases"`
	Claims      []store.Claim `json:"claims"`
	// Cloud is empty without cloud networks.
	Cloud []cloudPool `json:"cloud,omitempty"`
	// nics are the host's interfaces by MAC address.
	nics map[string]netops.LinkInfo
}

func (p *Process) stateCommand() *cli.Command {
	return &cli.Command{
		Name:  "state",
		Usage: "show attachments, leases and the cloud's pools of this node",
		Description: `LINK reports whether the interface on the host exists, ALIVE whether the container does.
"cnibox state reap" removes the attachments and leases of containers that do not exist. On a node of a cloud,
a third table lists the addresses that the cloud assigns to the node; "cnibox cloud
show" prints more.`,
		Flags: tableFlags(),
		Subcommands: []*cli.Command{
			p.exportCommand(),
			p.importCommand(),
			p.repairCommand(),
			p.reapCommand(),
		},
		Action: func(c *cli.Context) error {
			h, done, err := p.host(c.Context, "")
			if err != nil {
				return err
			}
			defer done()
			state, err := readState(c.Context, h)
			if err != nil {
				return stateHint(err)
			}
			if c.Bool("json") {
				return writeJSON(p.Stdout, state)
			}
			return p.writeState(state, h.Now(), p.style(c))
		},
	}
}

// readState reads the store and then checks in the kernel which containers exist.
func readState(ctx context.Context, h *roles.Host) (*nodeState, error) {
	dump, err := rebuildAndExport(ctx, h)
	if err != nil {
		return nil, err
	}
	out := &nodeState{Attachments: []attached{}, Leases: []store.Lease{}, Claims: append([]store.Claim{}, dump.Claims...)}
	for _, p := range dump.Pools {
		out.Leases = append(out.Leases, p.Leases...)
	}
	if err := out.readCloud(ctx, h); err != nil {
		return nil, err
	}
	if len(dump.Attachments) == 0 {
		return out, nil
	}
	census, err := record.NewCensus(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	for i := range dump.Attachments {
		a := &dump.Attachments[i]
		one := attached{
			Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Pod: a.Pod, Addresses: a.Addresses, MAC: a.MAC,
			HostLink: a.HostLink, Netns: a.Netns.Path, State: store.Done, Created: a.Created, Alive: !census.Dead(a),
			LinkMissing: census.LinkMissing(a),
		}
		for _, part := range a.Parts {
			one.Roles = append(one.Roles, part.Role)
			if part.State != store.Done {
				one.State = part.State
			}
		}
		out.Attachments = append(out.Attachments, one)
	}
	return out, nil
}

// rebuildAndExport is like export, but rebuilds a missing state file first if the kernel has
// interfaces of cnibox. Without the rebuild the output would be empty.
func rebuildAndExport(ctx context.Context, h *roles.Host) (*store.Dump, error) {
	dump, err := export(ctx, h)
	if err != nil || len(dump.Attachments) > 0 {
		return dump, err
	}
	links, err := h.Net.Links(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	if !slices.ContainsFunc(links, record.Labelled) {
		return dump, nil
	}
	if err := recovery.Ensure(ctx, h); err != nil {
		return nil, err
	}
	return export(ctx, h)
}

// export reads everything in one transaction.
func export(ctx context.Context, h *roles.Host) (*store.Dump, error) {
	var dump *store.Dump
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		dump, err = tx.Export()
		return err
	})
	return dump, err
}

func (p *Process) writeState(state *nodeState, now time.Time, s style) error {
	if err := p.writeAttachments(state.Attachments, now, s); err != nil {
		return err
	}
	l := table{head: []string{"ADDRESS", "NETWORK", "CONTAINER", "IFNAME", "SET", "AGE", "ORIGIN"}}
	slices.SortStableFunc(state.Leases, func(a, b store.Lease) int { return a.Address.Compare(b.Address) })
	for i := range state.Leases {
		x := &state.Leases[i]
		l.add(x.Address.String(), x.Owner.Network, s.name(x.Pod, x.Owner.ContainerID), x.Owner.IfName,
			strconv.Itoa(x.Set), age(now, x.Time), state.origin(x))
	}
	fmt.Fprintln(p.Stdout)
	if err := l.write(p.Stdout, s); err != nil {
		return err
	}
	return p.writeCloud(state.Cloud, now, s)
}

func (p *Process) writeAttachments(attachments []attached, now time.Time, s style) error {
	t := table{
		head: []string{"CONTAINER", "NETWORK", "IFNAME", "ADDRESSES", "HOST LINK", "ROLES", "STATE", "AGE", "LINK", "ALIVE"},
		paint: func(column int, cell string) string {
			switch {
			case cell == "no", cell == "missing":
				return red
			case column == 6 && cell != string(store.Done):
				return yellow
			}
			return ""
		},
	}
	for _, a := range attachments {
		var addrs []string
		for _, x := range a.Addresses {
			addrs = append(addrs, x.String())
		}
		link := dash("")
		switch {
		case a.LinkMissing:
			link = "missing"
		case a.HostLink != "":
			link = "ok"
		}
		alive := "yes"
		if !a.Alive {
			alive = "no"
		}
		t.add(s.name(a.Pod, a.ContainerID), a.Network, a.IfName, dash(strings.Join(addrs, " ")), dash(a.HostLink),
			dash(strings.Join(a.Roles, "+")), string(a.State), age(now, a.Created), link, alive)
	}
	return t.write(p.Stdout, s)
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
