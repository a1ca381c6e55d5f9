package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// statusTime is the maximum time to wait for an answer.
const statusTime = 30 * time.Second

// peerStatus is a peer in one address family.
type peerStatus struct {
	Peer   string `json:"peer"`
	Family string `json:"family,omitempty"`
	// VTEP is the node's public address. MAC is the address of its device.
	VTEP *netip.Addr `json:"vtep,omitempty"`
	MAC  string      `json:"mac,omitempty"`
	// Subnet is the node's pod network. Route is true if the kernel has the route to it.
	Subnet    *netip.Prefix `json:"subnet,omitempty"`
	Route     bool          `json:"route"`
	FDB       bool          `json:"fdb"`
	Neighbour bool          `json:"neighbour"`
	// Endpoint, Handshake, Received and Sent are WireGuard's: the address that packets are sent to now,
	// the time of the last handshake, which is absent if there was none, and numbers of bytes.
	Endpoint  string    `json:"endpoint,omitempty"`
	Key       string    `json:"publicKey,omitempty"`
	Handshake time.Time `json:"handshake,omitzero"`
	Received  uint64    `json:"received,omitempty"`
	Sent      uint64    `json:"sent,omitempty"`
	// Direct is true if packets are sent without a tunnel.
	Direct bool `json:"direct,omitempty"`
	// Loss is how many percent of the last 64 requests through the VXLAN tunnel the node did not answer.
	Loss int `json:"lossPercent,omitempty"`
	// State is "programmed", "pending", "failed", or "left out". Error has the reason.
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	Error string    `json:"error,omitempty"`
	Retry time.Time `json:"retry,omitzero"`
}

// stateLeftOut is the state of a node that the agent does not program.
const stateLeftOut = "left out"

// maxFaults bounds the warnings of objects of network policies.
const maxFaults = 20

// policyWarnings returns why network policies are not in force as they should be.
func policyWarnings(k *policy.Keeper) (texts []string) {
	if k == nil {
		return nil
	}
	const prefix = "network policies: " // doctor knows it
	if k.Fault() != "" {
		texts = append(texts, prefix+k.Fault())
	}
	faults := k.Faults()
	for _, f := range faults[:min(len(faults), maxFaults)] {
		texts = append(texts, prefix+f.String())
	}
	if more := len(faults) - maxFaults; more > 0 {
		texts = append(texts, fmt.Sprintf("%s%d more objects are not in force as they are written: 'cnibox policy list' names them", prefix, more))
	}
	return texts
}

// writeStatus answers with a line for the node, and one for each peer and family, which are computed for each request.
func (a *agent) writeStatus(ctx context.Context, r *service.Request) (any, error) {
	s := a.reporter.current.Load()
	sum := s.summary
	sum.Checksums, sum.Unheard = a.checksumFault(s), a.answers.silent()
	sum.Warnings = append(slices.Clip(sum.Warnings), policyWarnings(a.policies)...)
	sum.Egress = a.egress.keeper.Status()
	if sum.Egress != nil {
		for _, text := range sum.Egress.Faults {
			sum.Warnings = append(sum.Warnings, "egress addresses: "+text)
		}
	}
	if err := r.Line(&sum); err != nil {
		return nil, err
	}
	for i, o := range s.overlays {
		if o == nil {
			continue
		}
		loss := a.answers.loss(i)
		for _, p := range o.Peers(ctx) {
			line := statusOf(&p, i == 1)
			line.Loss = loss[p.Name]
			if err := r.Line(line); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range s.left {
		if err := r.Line(&peerStatus{Peer: l.Name, State: stateLeftOut, Error: l.Reason}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func statusOf(p *overlay.PeerState, v6 bool) *peerStatus {
	s := &peerStatus{
		Peer: p.Name, Family: familyName(v6), VTEP: &p.Gateway, MAC: p.MAC.String(), Subnet: &p.Subnet, Route: p.Route, FDB: p.FDB, Neighbour: p.Neighbour,
		Direct: !p.Tunnelled, State: string(p.State), Since: p.Since.UTC(), Retry: p.RetryAt,
		Key: p.Key, Handshake: p.Handshake, Received: p.Received, Sent: p.Sent,
	}
	if p.Endpoint.IsValid() {
		s.Endpoint = p.Endpoint.String()
	}
	if p.Err != nil {
		s.Error = p.Err.Error()
	}
	return s
}

// status is a complete answer.
type status struct {
	summary
	Nodes []peerStatus `json:"nodes"`
}

var (
	// errNoAgent means that no process listens on the socket.
	errNoAgent = errors.New("no agent runs on this node")
	// errNotReady means that no pods can be attached.
	errNotReady = errors.New("the agent is not ready")
	// errPeersMissing means that pods can be attached, but do not reach all nodes.
	errPeersMissing = errors.New("not all peers are programmed")
)

// askStatus requests the status from the agent.
func askStatus(ctx context.Context, h *roles.Host) (*status, error) {
	ctx, stop := context.WithTimeout(ctx, statusTime)
	defer stop()
	s := &status{Nodes: []peerStatus{}}
	first := true
	err := service.Ask(ctx, h.Store.AgentSocket(), service.Status, nil, func(line []byte) error {
		if first {
			first = false
			return service.Into(&s.summary)(line)
		}
		s.Nodes = append(s.Nodes, peerStatus{})
		return service.Into(&s.Nodes[len(s.Nodes)-1])(line)
	})
	if errors.Is(err, service.ErrAbsent) {
		return nil, fmt.Errorf("%w: %w", errNoAgent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return s, nil
}

// addTunnelFaults adds what keeps the datagrams of this node's tunnels from other nodes, or theirs from it, to the warnings.
// The agent itself does not look for it: it would read all rules of other programs after each change.
func (s *status) addTunnelFaults(ctx context.Context, h *roles.Host) error {
	host := view.NewHost(ctx, h.Net)
	all, err := host.Tunnels()
	if err != nil {
		return err
	}
	var records *advice.Records
	for i := range all {
		if !slices.ContainsFunc([]*familySummary{s.IPv4, s.IPv6}, func(f *familySummary) bool { return f != nil && f.Device == all[i].Name }) {
			continue
		}
		found, err := host.TunnelFaults(&all[i], true)
		if err != nil {
			return err
		}
		if len(found) > 0 && records == nil {
			if records, err = readRecords(ctx, h); err != nil {
				return err
			}
		}
		for _, f := range found {
			text := f.String()
			switch fix, harm := records.Fix(f.Fix); {
			case harm != "":
				text += ": no command is safe: " + harm
			case fix != "":
				text += ": run '" + fix + "'"
			}
			s.Warnings = append(s.Warnings, text)
		}
	}
	return nil
}

// readRecords reads what keeps fixes from removing what attachments need. Doctor reports a state file that cannot be read.
func readRecords(ctx context.Context, h *roles.Host) (*advice.Records, error) {
	dump, _ := store.Read(ctx, h.Store, (*store.Tx).Export)
	links, err := h.Net.Links(ctx, nil)
	return advice.New(dump, recovery.ReadCaches(h, recovery.CacheDirs(h.Store.RunDir())), links), err
}

// Table shows this node and then the kernel's entries for each peer.
func (s *status) Table() (head []string, rows [][]string) {
	head = []string{"PEER", "VTEP", "MAC", "ROUTE", "FDB", "NEIGHBOUR", "STATE", "SINCE"}
	if s.Backend == backendWireGuard {
		head = []string{"PEER", "ENDPOINT", "PUBLIC KEY", "ROUTE", "HANDSHAKE", "RECEIVED/SENT", "STATE", "SINCE"}
	}
	state := "ready"
	if !s.Ready {
		state = "not ready"
	}
	own := 0
	for i, f := range []*familySummary{s.IPv4, s.IPv6} {
		if f == nil {
			continue
		}
		for _, p := range s.PodCIDRs {
			if p.Addr().Is6() == (i == 1) {
				rows, own = append(rows, []string{s.Node + " (this node)", f.Local.String(), dash(f.MAC + f.PublicKey), p.String(), "-", "-", state, "-"}), own+1
			}
		}
	}
	if own == 0 {
		rows = append(rows, []string{s.Node + " (this node)", "-", "-", "-", "-", "-", state, "-"})
	}
	for i := range s.Nodes {
		rows = append(rows, s.Nodes[i].row())
	}
	return head, rows
}

// String returns the summary that the table does not show.
func (s *status) String() string {
	text := "not ready"
	if s.Ready {
		text = "ready"
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	if s.Backend != "" && s.Interface != "" {
		text += fmt.Sprintf("\n%s over %s", s.Backend, s.Interface)
		if s.Port != 0 {
			text += fmt.Sprintf(", UDP port %d", s.Port)
		}
		for _, f := range []*familySummary{s.IPv4, s.IPv6} {
			if f != nil {
				text += fmt.Sprintf(", %s MTU %d", f.Local, f.MTU)
			}
		}
	}
	text += fmt.Sprintf("\n%d of %d peers programmed; registry: %s", s.Peers.Programmed, s.Peers.Wanted, s.Registry)
	if s.RegistryError != "" {
		text += fmt.Sprintf(", which cannot be read since %s: %s", s.RegistrySince.Format(time.RFC3339), s.RegistryError)
		if s.Ready {
			text += "\npods start, and the programmed peers are reached; new peers are not"
		}
	}
	if c := s.Checksums; c != nil {
		text += fmt.Sprintf("\nwarning: packets of other nodes have wrong checksums: %s: %s", c.Evidence, c.Fix)
	}
	for _, u := range s.Unheard {
		text += fmt.Sprintf("\nwarning: %s does not answer %s through the tunnel since %s: run 'cnibox doctor' on both", u.Peer, s.Node, u.Since.Format(time.RFC3339))
	}
	if s.Egress != nil {
		for i := range s.Egress.Addresses {
			text += "\n" + s.Egress.Addresses[i].String()
		}
	}
	for _, w := range s.Warnings {
		text += "\nwarning: " + w
	}
	return text
}

// row returns a peer's row. An entry that the kernel should have but does not have is "missing".
func (p *peerStatus) row() []string {
	has := func(have bool, what string) string {
		if have {
			return what
		}
		return "missing"
	}
	state := p.State
	if p.Error != "" {
		state += ": " + p.Error
	}
	if p.State == stateLeftOut {
		return []string{p.Peer, "-", "-", "-", "-", "-", state, "-"}
	}
	route, fdb, neighbour := has(p.Route, p.Subnet.String()), "-", "-"
	if p.Key != "" {
		handshake := "none"
		if !p.Handshake.IsZero() {
			handshake = p.Handshake.Format(time.RFC3339)
		}
		return []string{
			p.Peer, dash(p.Endpoint), p.Key, route, handshake, fmt.Sprintf("%d/%d", p.Received, p.Sent), state, p.Since.Format(time.RFC3339),
		}
	}
	if !p.Direct {
		fdb, neighbour = has(p.FDB, p.VTEP.String()), has(p.Neighbour, p.Subnet.Addr().String())
	} else if p.Route {
		route += " direct"
	}
	return []string{p.Peer, p.VTEP.String(), dash(p.MAC), route, fdb, neighbour, state, p.Since.Format(time.RFC3339)}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
