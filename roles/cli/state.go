package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
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
	// Ports are the published ports of the host: "8080/tcp", "192.0.2.1:8000-8010/udp".
	Ports   []string    `json:"ports,omitempty"`
	Routes  []string    `json:"routes,omitempty"`
	State   store.State `json:"state"`
	Created time.Time   `json:"created"`
	// Alive is false if the container certainly no longer exists. LinkMissing is true if its
	// interface on the host does not.
	Alive       bool `json:"alive"`
	LinkMissing bool `json:"linkMissing,omitempty"`
	// Error is that of the last ADD or DEL of a plugin, if it failed. State is then "failed": the attachment is not complete.
	Error string `json:"error,omitempty"`
	// made are the recorded changes. isMasqueraded means that these, or those that its network shares, masquerade it.
	made          []netops.Change
	isMasqueraded bool
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
	dump *store.Dump
}

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
				return usagef("cnibox help state", "want at most one container")
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
	state, err := readState(c.Context, h)
	if err == nil {
		err = state.addFailures(h)
	}
	if err != nil {
		return err
	}
	name := c.Args().First()
	if name != "" {
		if err := state.onlyContainer(name); err != nil {
			return withHint(err, stateVerb(c.Command, name))
		}
	}
	if n := c.String("network"); n != "" {
		state.only(func(network, _ string) bool { return network == n })
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
	var he *hintError
	if errors.As(unknownSub(cmd, word), &he) {
		return he.hint
	}
	return ""
}

// only removes what is not of a network and container.
func (s *nodeState) only(keep func(network, id string) bool) {
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a attached) bool { return !keep(a.Network, a.ContainerID) })
	s.Leases = slices.DeleteFunc(s.Leases, func(l store.Lease) bool { return !keep(l.Owner.Network, l.Owner.ContainerID) })
	s.Claims = slices.DeleteFunc(s.Claims, func(c store.Claim) bool { return !keep(c.Owner.Network, c.Owner.ContainerID) })
	s.Cloud = nil
}

// onlyContainer removes what is not of the container with a name: its ID, the beginning of
// its ID, or its pod.
func (s *nodeState) onlyContainer(name string) error {
	if name == "" {
		return roles.Usagef("the name of the container is empty: want its ID, the beginning of it, or a pod")
	}
	var ids []string
	pods := map[string]string{}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		ids, pods[a.Pod] = append(ids, a.ContainerID), a.ContainerID
	}
	for i := range s.Leases {
		ids, pods[s.Leases[i].Pod] = append(ids, s.Leases[i].Owner.ContainerID), s.Leases[i].Owner.ContainerID
	}
	if id, ok := pods[name]; ok {
		name = id
	}
	id, err := completeID(ids, name)
	if err != nil {
		return err
	}
	s.only(func(_, one string) bool { return one == id })
	if len(s.Attachments)+len(s.Leases) == 0 {
		return fmt.Errorf("container or pod %q is not attached: %w", name, store.ErrNotFound)
	}
	return nil
}

// completeID returns the only ID that begins with a prefix, or the prefix if there is none.
func completeID(ids []string, prefix string) (string, error) {
	found := map[string]bool{}
	for _, id := range ids {
		if id == prefix {
			return id, nil
		}
		if strings.HasPrefix(id, prefix) {
			found[id] = true
		}
	}
	all := slices.Sorted(maps.Keys(found))
	switch len(all) {
	case 0:
		return prefix, nil
	case 1:
		return all[0], nil
	}
	return "", roles.Usagef("%q is the beginning of %d container IDs, %s and %s: give more of it", prefix, len(all), all[0], all[1])
}

// readState reads the store and then checks in the kernel which containers exist.
func readState(ctx context.Context, h *roles.Host) (*nodeState, error) {
	dump, err := rebuildAndExport(ctx, h)
	if err != nil {
		return nil, err
	}
	out := &nodeState{Attachments: []attached{}, Leases: []store.Lease{}, Claims: append([]store.Claim{}, dump.Claims...), dump: dump}
	for _, p := range dump.Pools {
		out.Leases = append(out.Leases, p.Leases...)
	}
	if err := out.readCloud(ctx, h); err != nil {
		return nil, err
	}
	if len(dump.Attachments) == 0 {
		return out, nil
	}
	census, err := attachment.NewCensus(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	shared := map[string][]netops.Change{}
	for _, n := range dump.Networks {
		changes, _ := attachment.DecodeChanges(n.Shared) // doctor reports a record that cannot be decoded
		shared[n.Name] = append(shared[n.Name], changes...)
	}
	for i := range dump.Attachments {
		a := &dump.Attachments[i]
		one := attached{
			Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Pod: a.Pod, Addresses: a.Addresses, MAC: a.MAC,
			HostLink: a.HostLink, Netns: a.Netns.Path, State: store.Done, Created: a.Created, Alive: !census.Dead(a),
			LinkMissing: census.LinkMissing(a), Routes: a.Routes, Ports: ports(dump.Claims, a.Key),
		}
		for _, part := range a.Parts {
			changes, err := attachment.DecodeChanges(part.Changes)
			if err != nil {
				return nil, err
			}
			one.made = append(one.made, changes...)
			one.Roles = append(one.Roles, part.Role)
			if part.State != store.Done {
				one.State = part.State
			}
		}
		one.isMasqueraded = slices.ContainsFunc(slices.Concat(one.made, shared[a.Network]), masquerades)
		out.Attachments = append(out.Attachments, one)
	}
	return out, nil
}

func masquerades(c netops.Change) bool { return netops.Masquerades(c.Do.Object) }

func (a *attached) key() store.Key {
	return store.Key{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}

// failed is the State of an attachment whose last call failed.
const failed store.State = "failed"

// addFailures adds errors from the trace: when a later plugin of a list fails, the runtime may leave what earlier ones have made.
func (s *nodeState) addFailures(h *roles.Host) error {
	calls, _, err := h.Store.Traced() // damaged lines are left out
	if err != nil {
		return err
	}
	last := map[store.Key]*store.TracedCall{}
	for _, c := range calls {
		if c.Verb == "ADD" || c.Verb == "DEL" {
			last[c.Key()] = c
		}
	}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		if c := last[a.key()]; c != nil && c.Code != 0 {
			a.State, a.Error = failed, c.Verb+" of "+dash(c.Role)+" failed: "+answer(c)
		}
	}
	return nil
}

// ports returns the published ports of an attachment, from portmap's claims.
func ports(claims []store.Claim, owner store.Key) []string {
	var out []string
	for _, c := range claims {
		p := c.Resource().Ports
		if p.First == 0 || c.Owner != owner {
			continue
		}
		port := p.Numbers() + "/" + p.Protocol
		if p.Address.IsValid() {
			port = p.Address.String() + ":" + port
		}
		if !slices.Contains(out, port) { // of both address families
			out = append(out, port)
		}
	}
	return out
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
	if !slices.ContainsFunc(links, attachment.Labelled) {
		return dump, nil
	}
	if err := recovery.Ensure(ctx, h); err != nil {
		return nil, err
	}
	return export(ctx, h)
}

// export reads everything in one transaction.
func export(ctx context.Context, h *roles.Host) (*store.Dump, error) {
	dump, err := store.Read(ctx, h.Store, (*store.Tx).Export)
	return dump, err
}

func (p *Process) writeState(state *nodeState, now time.Time, s style) error {
	if err := p.writeAttachments(state.Attachments, now, s); err != nil {
		return err
	}
	l := table{head: []string{"ADDRESS", "NETWORK", "CONTAINER", "IFNAME", "SET", "AGE", "ORIGIN"}}
	sorting.Stable(state.Leases, func(a, b store.Lease) int { return a.Address.Compare(b.Address) })
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
		head: []string{"CONTAINER", "NETWORK", "IFNAME", "ADDRESSES", "PORTS", "HOST LINK", "ROLES", "STATE", "AGE", "LINK", "ALIVE"},
		paint: func(column int, cell string) string {
			switch {
			case cell == "no", cell == "missing", cell == string(failed):
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
			dash(strings.Join(a.Roles, "+")), string(a.State), age(now, a.Created), a.link(), yesNo(a.Alive))
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

// link is the state of the interface on the host.
func (a *attached) link() string {
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
func (p *Process) writeContainer(state *nodeState, now time.Time, s style) error {
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
			{"link", a.link()},
			{"roles", strings.Join(a.Roles, "+")},
			{"state", string(a.State)},
			{"error", a.Error},
			{"age", age(now, a.Created)},
		} {
			if line[1] != "" {
				fmt.Fprintf(p.Stdout, "  %-10s %s\n", line[0], printable(line[1]))
			}
		}
		for _, c := range a.made {
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
