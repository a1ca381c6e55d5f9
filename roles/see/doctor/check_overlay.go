package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles/see/check"
)

// agentChecks look at the agent.
func agentChecks() []Check {
	const agent = "the agent's files and socket"
	return []Check{
		{ID: "agent-down", Title: "no agent runs on the node", Reads: agent, Severity: Error, find: func(f *Facts, add add) {
			o := &f.Overlay
			if o.Agent == nil && o.AgentErr != nil && (o.File != nil || f.usesOverlay() && len(o.Env) == 0) {
				add("agent", o.AgentErr.Error(), f.agentFix())
			}
		}},
		{ID: "agent-unready", Title: "the agent is not ready: pods are not attached", Reads: agent, Severity: Error, find: func(f *Facts, add add) {
			if a := f.Overlay.Agent; a != nil && !a.Ready && f.hasUnderlay() && !f.tunnelFault() {
				add("agent", a.Reason, "cnibox agent status")
			}
		}},
		{ID: "policy-fault", Title: "network policies are not in force as they should be", Reads: agent, Severity: Error, find: warned("network policies: ")},
		{ID: "egress-fault", Title: "pods do not leave the cluster with the egress address of their namespace", Reads: agent, Severity: Error, find: warned("egress addresses: ")},
		{ID: "agent-file", Title: "the agent's file is old or cannot be read", Reads: agent, Severity: Error, find: func(f *Facts, add add) {
			o := &f.Overlay
			switch {
			case o.FileErr != nil:
				add("overlay.json", o.FileErr.Error(), f.agentFix())
			case o.File != nil && o.File.BootID != o.BootID && o.Agent != nil:
				add("overlay.json", "it was written before the last reboot", f.agentFix())
			}
		}},
		{ID: "registry-unreachable", Title: "the agent cannot read the registry", Reads: agent, Severity: Warning, find: func(f *Facts, add add) {
			if a := f.Overlay.Agent; a != nil && a.Ready && a.RegistryError != "" {
				add(a.Registry, fmt.Sprintf("since %s: %s; pods start, and the %d known nodes are reached; new nodes are not", a.RegistrySince.Format(time.RFC3339), a.RegistryError, a.Peers.Programmed), "cnibox agent status")
			}
		}},
		{ID: "registry-empty", Title: "the registry has no other node", Reads: agent, Severity: Info, find: func(f *Facts, add add) {
			if a := f.Overlay.Agent; a != nil && a.Ready && a.RegistryError == "" && a.Peers.Wanted == 0 {
				add(a.Registry, "0 peers", "cnibox agent status")
			}
		}},
		{ID: "peer-missing", Title: "another node's entries are not in the kernel", Reads: agent, Severity: Error, find: func(f *Facts, add add) {
			if a := f.Overlay.Agent; a != nil && f.hasUnderlay() && !f.tunnelFault() {
				for _, p := range a.Nodes {
					if !p.Route || !p.Direct && p.Key == "" && (!p.FDB || !p.Neighbour) {
						add(p.Peer, strings.TrimSpace(fmt.Sprintf("route %t, fdb %t, neighbour %t: %s %s", p.Route, p.FDB, p.Neighbour, p.State, p.Error)), "cnibox agent status")
					}
				}
			}
		}},
	}
}

// warned returns a search for the agent's warnings with a prefix.
func warned(prefix string) func(*Facts, add) {
	return func(f *Facts, add add) {
		if a := f.Overlay.Agent; a != nil {
			for _, w := range a.Warnings {
				if fault, is := strings.CutPrefix(w, prefix); is {
					add("agent", fault, "cnibox agent status")
				}
			}
		}
	}
}

// tunnelChecks look at the agent's objects in the kernel, also without an agent.
func tunnelChecks() []Check {
	const agent, tunnels = "the agent's files and socket", "interfaces; entries of VXLAN devices"
	return []Check{
		{ID: "tunnel-gap", Title: "a route into the tunnel has no neighbour or forwarding entry", Reads: tunnels + "; routes", Severity: Error, find: func(f *Facts, add add) {
			if f.tunnelFault() {
				return
			}
			for _, r := range f.routes() {
				l := f.link(r.Link)
				if l == nil || l.Kind != check.KindVXLAN || !r.Via.IsValid() {
					continue
				}
				t, err := f.Host.TunnelEntries(r.Link)
				f.unread("entries of "+r.Link, err)
				if err != nil {
					continue
				}
				mac, known := t.Neighbours[r.Via]
				if !known {
					add(r.Dst.String(), check.NoNeighbour(r.Link, r.Via), f.tunnelFix())
				} else if _, known := t.Forwarding[mac]; !known {
					add(r.Dst.String(), check.NoForwarding(r.Link, mac), f.tunnelFix())
				}
			}
		}},
		{ID: "tunnel-missing", Title: "the agent's tunnel device is missing, down or has no address", Reads: tunnels, Severity: Error, find: func(f *Facts, add add) {
			f.eachTunnelFault(func(device, evidence string) { add(device, evidence, f.tunnelFix()) })
		}},
		{ID: "tunnel-dropped", Title: "a rule of another program drops packets between nodes", Reads: tunnels + "; nftables and iptables", Severity: Error, find: func(f *Facts, add add) {
			f.addTunnelFaults(add, tunnel.SentDropped, tunnel.ReceivedDropped)
		}},
		{ID: "tunnel-refused", Title: "no route leads to another node, or a policy rule refuses it", Reads: tunnels + "; routes and policy rules", Severity: Error, find: func(f *Facts, add add) {
			if f.hasUnderlay() {
				f.addTunnelFaults(add, tunnel.PeerUnreachable)
			}
		}},
		{ID: "underlay-down", Title: "the interface to the other nodes is down", Reads: "interfaces; " + agent, Severity: Error, find: func(f *Facts, add add) {
			if evidence, fix := f.underlayFault(); evidence != "" {
				add(f.underlay(), evidence, fix)
			}
		}},
		{ID: "tunnel-checksum", Title: "packets of other nodes have wrong checksums", Reads: agent, Severity: Error, find: func(f *Facts, add add) {
			if a := f.Overlay.Agent; a != nil && a.Checksums != nil {
				add(f.underlay(), a.Checksums.Evidence, a.Checksums.Fix)
			}
		}},
		{ID: "tunnel-peer", Title: "another node does not answer through the tunnel", Reads: agent, Severity: Error, find: func(f *Facts, add add) {
			if a := f.Overlay.Agent; a != nil && f.hasUnderlay() && !f.tunnelFault() && len(f.tunnelFaults()) == 0 {
				for _, u := range a.Unheard {
					evidence, fix := f.hop(u.Peer)
					add(f.Node+" and "+u.Peer, "no answer since "+u.Since.Format(time.RFC3339)+", and "+cmp.Or(evidence, "this node has no fault"),
						cmp.Or(fix, fmt.Sprintf("run 'cnibox doctor' on %s; without a fault there, open the tunnel's UDP port between the nodes", u.Peer)))
				}
			}
		}},
		{ID: "mtu-tunnel", Title: "a tunnel's MTU is too large for the interface below it", Reads: tunnels, Severity: Warning, find: func(f *Facts, add add) {
			for _, l := range f.links() {
				if fits, below := f.tunnelMTU(&l); below != nil && fits > 0 && l.MTU > fits {
					add(l.Name, fmt.Sprintf("%d, and %s has %d", l.MTU, below.Name, below.MTU), fmt.Sprintf("ip link set %s mtu %d", l.Name, fits))
				}
			}
			f.addTunnelFaults(add, tunnel.RouteMTU)
		}},
		{ID: "mtu-pod", Title: "pods' interfaces have a larger MTU than the tunnel", Reads: tunnels + "; node.db", Severity: Warning, find: mtuOfPods},
		{ID: "subnet-changed", Title: "the node's pod network changed: pods have addresses of the former one", Reads: agent + "; node.db", Severity: Error, find: func(f *Facts, add add) {
			for _, n := range f.Networks {
				former := f.outside(n)
				if n.Overlay && len(former) > 0 {
					add(n.Name, fmt.Sprintf("the node has %v, and %s are outside", f.Overlay.subnets(), few(former)), "restart the pods with these addresses")
				}
			}
		}},
	}
}

// addTunnelFaults adds the faults of some kinds.
func (f *Facts) addTunnelFaults(add add, kinds ...tunnel.FaultKind) {
	for _, fault := range f.tunnelFaults() {
		if slices.Contains(kinds, fault.Kind) {
			add(fault.Tunnel+", "+fault.Nodes(), string(fault.Kind)+": "+fault.What, fault.Fix)
		}
	}
}

// tunnelFaults returns what keeps the packets of the tunnels from other nodes.
func (f *Facts) tunnelFaults() (all []tunnel.Fault) {
	tunnels, err := f.Host.Tunnels()
	f.unread("tunnels", err)
	for i := range tunnels {
		found, err := f.Host.TunnelFaults(&tunnels[i], f.Overlay.File != nil)
		f.unread("tunnels", err)
		all = append(all, found...)
	}
	return all
}

// hop returns the fault of the neighbour entry on the way to a node that does not answer, and what mends it.
func (f *Facts) hop(peer string) (evidence, fix string) {
	i := slices.IndexFunc(f.Overlay.Agent.Nodes, func(p Peer) bool { return p.Peer == peer && p.VTEP.IsValid() })
	if i < 0 {
		return "", ""
	}
	to := f.Overlay.Agent.Nodes[i].VTEP
	way, err := f.Host.Way(netops.Packet{To: to})
	if err != nil || way.Local {
		return "", "" // a fault of the tunnel
	}
	if way.Via.IsValid() {
		to = way.Via
	}
	entry, err := f.Host.Neighbour(way.Link, to)
	f.unread("neighbours", err)
	switch {
	case entry.Permanent: // it stays, and the kernel asks whether it is right
		return fmt.Sprintf("the permanent entry for %s on %s, %s, may be old", to, way.Link, entry.MAC), fmt.Sprintf("ip neigh change %s dev %s nud stale", to, way.Link)
	case entry.Failed || entry.Asked:
		return to.String() + " does not answer on " + way.Link + " (ARP or neighbour discovery)", ""
	}
	return "", ""
}

// tunnelFix returns what makes the objects of the tunnel again.
func (f *Facts) tunnelFix() string {
	if f.Overlay.File == nil && len(f.Overlay.Env) > 0 {
		return restartFlannel
	}
	return f.agentFix()
}

// agentFix returns the command that starts the agent again.
func (f *Facts) agentFix() string { return cmp.Or(f.Restart, restartUnit) }

// usesOverlay reports whether a runtime uses a network of several nodes.
func (f *Facts) usesOverlay() bool {
	return slices.ContainsFunc(f.Runtimes, func(r Runtime) bool { return r.Network != nil && r.Network.Overlay })
}

// families returns the agent's address families.
func (f *Facts) families() (all []*AgentFamily) {
	if a := f.Overlay.Agent; a != nil {
		for _, one := range []*AgentFamily{a.IPv4, a.IPv6} {
			if one != nil {
				all = append(all, one)
			}
		}
	}
	return all
}

// underlay returns the interface to the other nodes.
func (f *Facts) underlay() string {
	if f.Overlay.Agent != nil && f.Overlay.Agent.Interface != "" {
		return f.Overlay.Agent.Interface
	}
	for _, l := range f.links() {
		if l.Kind == check.KindVXLAN && l.ParentName != "" {
			return l.ParentName
		}
	}
	return ""
}

// hasUnderlay reports whether nothing is wrong with that interface.
func (f *Facts) hasUnderlay() bool {
	evidence, _ := f.underlayFault()
	return evidence == ""
}

// underlayFault returns what is wrong with that interface, or "", and what mends it.
func (f *Facts) underlayFault() (evidence, fix string) {
	name := f.underlay()
	l := f.link(name)
	switch {
	case name == "":
		return "", ""
	case l == nil:
		return "it does not exist", f.configure(name)
	}
	if fault := check.Up(&f.Host.Namespace, l, false); fault != nil {
		return fault.Text, fault.Fix
	}
	for _, a := range f.families() {
		if a.Local.IsValid() && !slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a.Local }) {
			return fmt.Sprintf("it lost its address %s", a.Local), f.configure(name)
		}
	}
	return "", ""
}

func (f *Facts) tunnelFault() (faulty bool) {
	f.eachTunnelFault(func(string, string) { faulty = true })
	return faulty
}

// eachTunnelFault compares the tunnel devices with what the agent reports, and those of an agent that
// does not run with the routes over them.
func (f *Facts) eachTunnelFault(each func(device, evidence string)) {
	for _, a := range f.families() {
		if a.Device != "" && f.link(a.Device) == nil {
			each(a.Device, "it does not exist")
		}
	}
	for _, l := range f.links() {
		isAgents := strings.HasPrefix(l.Name, "flannel") || slices.ContainsFunc(f.families(), func(a *AgentFamily) bool { return a.Device == l.Name })
		global := slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr().IsGlobalUnicast() })
		switch {
		case !check.IsTunnel(&l) || !isAgents:
		case !l.Up:
			each(l.Name, "it is down")
		case !global:
			each(l.Name, "it has no address")
		}
	}
}

// tunnelMTU returns the largest MTU of a tunnel, 0 if it is not known, and the interface below it. With
// WireGuard the overhead depends on the mode, which the agent has.
func (f *Facts) tunnelMTU(l *netops.LinkInfo) (mtu int, below *netops.LinkInfo) {
	switch l.Kind {
	case check.KindVXLAN:
		below = f.link(l.ParentName)
		if below != nil {
			mtu = below.MTU - f.overhead(l.Name)
		}
	case check.KindWireGuard:
		below = f.link(f.underlay())
		for _, a := range f.families() {
			if a.Device == l.Name {
				mtu = a.MTU
			}
		}
	}
	return mtu, below
}

// overhead returns the bytes that VXLAN adds to a packet: 50, or 70 over IPv6.
func (f *Facts) overhead(device string) int {
	for _, a := range f.families() {
		if a.Device == device && a.Local.Is6() {
			return 70
		}
	}
	return 50
}

// mtuOfPods compares the host's interfaces of pods whose packets enter the tunnel.
func mtuOfPods(f *Facts, add add) {
	links := f.links()
	tunnel := slices.IndexFunc(links, func(l netops.LinkInfo) bool {
		return slices.ContainsFunc(f.routes(), func(r netops.Route) bool {
			return r.Link == l.Name && (l.Kind == check.KindVXLAN && r.Via.IsValid() || l.Kind == check.KindWireGuard)
		})
	})
	if tunnel < 0 {
		return
	}
	var larger []string
	for _, a := range f.attachments() {
		isOverlays := slices.ContainsFunc(f.Networks, func(n *Network) bool { return n.Overlay && n.Name == a.Network })
		if l := f.link(a.HostLink); l != nil && isOverlays && l.MTU > links[tunnel].MTU {
			larger = append(larger, name(a.Pod, a.Key))
		}
	}
	if len(larger) > 0 {
		add(links[tunnel].Name, fmt.Sprintf("%d, and the interfaces of %s have more", links[tunnel].MTU, few(larger)), "restart the pods with this MTU")
	}
}

// outside returns the addresses of a network's pods that are not in the node's subnets.
func (f *Facts) outside(n *Network) (all []string) {
	subnets := f.Overlay.subnets()
	for _, a := range f.attachments() {
		for _, p := range a.Addresses {
			same := func(s netip.Prefix) bool { return s.Addr().Is4() == p.Addr().Is4() }
			within := func(s netip.Prefix) bool { return s.Contains(p.Addr()) }
			if a.Network == n.Name && slices.ContainsFunc(subnets, same) && !slices.ContainsFunc(subnets, within) {
				all = append(all, p.Addr().String())
			}
		}
	}
	return all
}
