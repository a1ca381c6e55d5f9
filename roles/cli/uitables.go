package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/topo"
	"github.com/cnibox/cnibox/roles/see/ui"
)

// The page shows the newest denials, and some connections of a node that has not too many for a list every few seconds.
const (
	uiDenials     = 50
	uiConnections = 200
	mostTracked   = 20_000
)

// deniedTable lists who was denied. Without names it says how to get them, if the policies have denied something.
func deniedTable(ctx context.Context, h *roles.Host, t *topo.Topology) []ui.Table {
	answer, err := control.DeniedAfter(ctx, h.Store, 0)
	if err != nil {
		return nil // no agent enforces policies, or doctor has the fault
	}
	if !answer.IsOn {
		if slices.ContainsFunc(t.Attachments, func(a topo.Attachment) bool { return a.DeniedPackets > 0 }) {
			return []ui.Table{{Title: "Policies have denied packets. With -policy-log the agent says of which pods."}}
		}
		return nil
	}
	if len(answer.Denied) == 0 {
		return nil
	}
	return []ui.Table{deniedRows(answer.Denied)}
}

func deniedRows(all []control.Denied) ui.Table {
	out := ui.Table{Title: "denied by network policies, the newest first", Head: []string{"TIME", "PROTOCOL", "FROM", "TO", "PACKETS", "WHY"}}
	for _, d := range slices.Backward(all[max(0, len(all)-uiDenials):]) {
		out.Rows = append(out.Rows, []string{
			d.Time.Local().Format(stampLayout), strings.ToLower(d.Protocol), endOf(d.ClientPod, d.Client.String()), endOf(d.ServerPod, d.Target()), strconv.FormatInt(d.Packets, 10), d.Why,
		})
	}
	return out
}

// endOf returns an end of a connection with the name of its pod. A protocol without ports has port 0.
func endOf(pod, address string) string {
	if at, err := netip.ParseAddrPort(address); err == nil && at.Port() == 0 {
		address = at.Addr().String()
	}
	if pod == "" {
		return address
	}
	return pod + " (" + address + ")"
}

// peersTable lists the other nodes, those with a fault first, and adds them to the drawing.
func (p *Process) peersTable(ctx context.Context, h *roles.Host, t *topo.Topology) []ui.Table {
	agent, err := doctor.AskAgent(ctx, h, p.Table)
	if err != nil || agent == nil || len(agent.Nodes) == 0 {
		return nil
	}
	t.Nodes = map[netip.Addr]topo.Node{}
	out := ui.Table{Title: counted(len(agent.Nodes), "other node"), Head: []string{"", "NODE", "ADDRESS", "PODS", "STATE", "TUNNEL"}}
	for _, n := range agent.Nodes {
		severity, answers, problem := "", "answers", ""
		if n.Direct {
			answers = "without a tunnel"
		} else if n.Loss > 0 {
			answers = fmt.Sprintf("answers, %d %% lost", n.Loss)
		}
		for _, u := range agent.Unheard {
			if u.Peer == n.Peer {
				answers = "silent since " + u.Since.Local().Format(time.TimeOnly)
				severity, problem = string(doctor.Error), answers
			}
		}
		state := n.State
		if n.Error != "" {
			state += ": " + n.Error
			severity, problem = string(doctor.Error), state
		}
		t.Nodes[n.VTEP] = topo.Node{Name: n.Peer, Problem: problem}
		out.Rows = append(out.Rows, []string{severity, n.Peer, n.VTEP.String(), n.Subnet.String(), state, answers})
	}
	sorting.Stable(out.Rows, func(a, b []string) int { return strings.Compare(b[0], a[0]) })
	return []ui.Table{out}
}

// connectionsTable lists the tracked connections of pods, and which policy allows or denies each now.
func connectionsTable(ctx context.Context, h *roles.Host, t *topo.Topology, view *policyView) ([]ui.Table, error) {
	count, err := h.Net.Sysctl(ctx, nil, "net/netfilter/nf_conntrack_count")
	if err != nil {
		return nil, nil //nolint:nilerr // the kernel tracks no connections
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return nil, err
	}
	if n > mostTracked {
		return []ui.Table{{Title: "This node tracks " + count + " connections, too many for a list."}}, nil
	}
	names := map[netip.Addr]string{}
	for i := range t.Attachments {
		for _, a := range t.Attachments[i].Addresses {
			names[a.Addr()] = t.Attachments[i].Title()
		}
	}
	all, err := h.Net.Connections(ctx, 0)
	if err != nil {
		return nil, err
	}
	out := ui.Table{Head: []string{"PROTOCOL", "FROM", "TO", "SERVER", "POLICY"}}
	pods := 0
	for i := range all {
		c := &all[i]
		if names[c.Client] == "" && names[c.Server] == "" {
			continue
		}
		pods++
		if pods > uiConnections {
			continue
		}
		server := "-"
		if c.Server != c.To.Addr() {
			server = endOf(names[c.Server], netip.AddrPortFrom(c.Server, c.Port).String())
		}
		out.Rows = append(out.Rows, []string{
			netops.ProtocolName(c.Protocol), endOf(names[c.Client], netip.AddrPortFrom(c.Client, c.ClientPort).String()), endOf(names[c.To.Addr()], c.To.String()), server, judged(view, c),
		})
	}
	if pods == 0 {
		return nil, nil
	}
	out.Title = counted(pods, "connection") + " of pods"
	if pods > uiConnections {
		out.Title += fmt.Sprintf(", of which %d are listed", uiConnections)
	}
	return []ui.Table{out}, nil
}

// judged returns the policies that decide about a connection, or "-" if none applies.
func judged(view *policyView, c *netops.Connection) string {
	f := netpolicy.Flow{Client: c.Client, Server: c.Server, Protocol: strings.ToUpper(netops.ProtocolName(c.Protocol)), Port: c.Port}
	if view == nil || !isFiltered(view.links, &f) || c.Protocol == unix.IPPROTO_ICMP || c.Protocol == unix.IPPROTO_ICMPV6 {
		return "-"
	}
	var texts []string
	for _, v := range view.explainer.Explain(f).Verdicts {
		if len(v.Policies) == 0 {
			continue
		}
		word := map[bool]string{true: "allowed by ", false: "denied by "}[v.Allowed]
		by := v.Policy
		if by == "" {
			by = strings.Join(v.Policies, ", ")
		}
		texts = append(texts, v.Direction+" "+word+by)
	}
	return dash(strings.Join(texts, "; "))
}
