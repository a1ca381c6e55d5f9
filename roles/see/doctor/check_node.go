package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
)

const (
	forwardingKey4 = "net/ipv4/ip_forward"
	forwardingKey6 = "net/ipv6/conf/all/forwarding"
	trackedKey     = "net/netfilter/nf_conntrack_count"
	trackedMaxKey  = "net/netfilter/nf_conntrack_max"
	bridgeCallKey  = "net/bridge/bridge-nf-call-iptables"
)

// linkForwardingKey is that of one interface, which the node's setting changes, too.
func linkForwardingKey(link string) string { return "net/ipv4/conf/" + link + "/forwarding" }

// settingChecks look at the host's settings.
func settingChecks() []Check {
	const sysctls = "sysctls; node.db"
	return []Check{
		{ID: "forwarding4", Title: "the node does not forward IPv4", Reads: sysctls, Severity: Error, find: func(f *Facts, add add) {
			f.checkForwarding(add, forwardingKey4, netip.Addr.Is4)
			for _, l := range f.Links {
				if key := linkForwardingKey(l.Name); f.Sysctls[key] == "0" && f.Sysctls[forwardingKey4] != "0" {
					add(key, "0, and 1 for the node", "sysctl -w "+key+"=1")
				}
			}
		}},
		{ID: "forwarding6", Title: "the node does not forward IPv6", Reads: sysctls, Severity: Error, find: func(f *Facts, add add) {
			f.checkForwarding(add, forwardingKey6, netip.Addr.Is6)
		}},
		{ID: "rp-filter", Title: "the node drops packets whose sender has another route", Reads: "sysctls; interfaces", Severity: Info, find: func(f *Facts, add add) {
			for _, l := range f.Links {
				key := "net/ipv4/conf/" + l.Name + "/rp_filter"
				effective := max(f.Sysctls["net/ipv4/conf/all/rp_filter"], f.Sysctls[key])
				if l.Kind == kindVXLAN && effective == "1" {
					add(l.Name, "rp_filter is 1: packets of other nodes' host addresses are dropped", "sysctl -w "+key+"=2")
				}
			}
		}},
		{ID: "conntrack-full", Title: "the table of tracked connections is full: new connections are dropped", Reads: "sysctls", Severity: Error, find: func(f *Facts, add add) {
			most, err := strconv.Atoi(f.Sysctls[trackedMaxKey])
			count, _ := strconv.Atoi(f.Sysctls[trackedKey])
			if err == nil && most > 0 && count >= most-most/50 { // the kernel removes some early
				add(trackedMaxKey, fmt.Sprintf("%d of %d", count, most), fmt.Sprintf("sysctl -w %s=%d", trackedMaxKey, 2*most))
			}
		}},
		{ID: "bridge-calls", Title: "services do not work between pods of this node", Reads: "sysctls; kube-proxy's rules", Severity: Warning, find: func(f *Facts, add add) {
			bridged := slices.ContainsFunc(f.Links, func(l netops.LinkInfo) bool { return l.Kind == "bridge" && f.isOwn(&l) })
			if !f.Firewall.KubeProxy || !bridged || f.Sysctls[bridgeCallKey] == "1" {
				return
			}
			if f.Sysctls[bridgeCallKey] == "" {
				add(bridgeCallKey, "the module br_netfilter is not loaded", "modprobe br_netfilter")
			} else {
				add(bridgeCallKey, "0: iptables does not see packets between ports of a bridge", "sysctl -w "+bridgeCallKey+"=1")
			}
		}},
	}
}

// filterChecks look for rules of other programs that drop packets of pods.
func filterChecks() []Check {
	const rules = "nftables and iptables; node.db"
	return []Check{
		{ID: "forward-rule", Title: "a packet filter of another program drops packets of pods", Reads: rules, Severity: Error, find: func(f *Facts, add add) {
			for _, p := range f.Firewall.Programs {
				add(p.Name, "it drops all packets", p.Fix)
			}
			missing := slices.ContainsFunc(f.Differences, func(d Difference) bool { _, is := d.Of.(*netops.Forward); return is })
			for i := range f.Firewall.Rules {
				r := &f.Firewall.Rules[i]
				if missing && r.isIPTables() {
					continue // the check filter-missing
				}
				option, short, more, what := "iifname", "-i ", "", "what pods on %s send"
				if r.To {
					option, short, more, what = "oifname", "-o ", " ct state established,related", "the answers to pods on %s"
				}
				links := r.Links[0]
				family, _, _ := strings.Cut(r.Chain, " ")
				if len(r.Links) > 1 && !strings.HasPrefix(family, "ip") { // iptables would list the rule without a set's condition
					links = "'{ " + strings.Join(r.Links, ", ") + " }'"
				}
				iptables := short + r.Links[0]
				if r.To {
					iptables += " -m conntrack --ctstate ESTABLISHED,RELATED"
				}
				switch family {
				case "netdev":
					option, links, more = "", "", ""
				case "bridge", "arp":
					more = "" // they track no connections
				}
				add(r.Rule, "it drops "+fmt.Sprintf(what, few(r.Links)), r.Exception(strings.TrimSpace(option+" "+links+more), iptables))
			}
		}},
		{ID: "forward-unknown", Title: "it is not known whether a packet filter of another program drops packets of pods", Reads: rules, Severity: Info, find: func(f *Facts, add add) {
			for chain, probe := range f.Firewall.Unknown {
				if len(f.Firewall.Rules) == 0 {
					add(chain, "it drops packets on conditions that only the kernel knows", probe)
				}
			}
		}},
		{ID: "pod-limited", Title: "a queueing discipline of another program limits the packets of pods", Reads: "the host's queueing disciplines; node.db", Severity: Warning, find: func(f *Facts, add add) {
			for _, q := range f.Firewall.Limits {
				add(q.Name, q.Limits, q.Fix)
			}
		}},
		{ID: "egress", Title: "the node routes no packets of pods to other networks", Reads: "routes, policy rules and interfaces; node.db", Severity: Error, find: func(f *Facts, add add) {
			f.addEgress(add, false)
		}},
		{ID: "egress-route", Title: "pods have a default route, and the node has none", Reads: "routes and interfaces; node.db", Severity: Warning, find: func(f *Facts, add add) {
			f.addEgress(add, true)
		}},
		{ID: "stray-trace", Title: "a killed probe left its nftables table, which costs a little time for each packet", Reads: "nftables", Severity: Info, find: func(f *Facts, add add) {
			if f.Firewall.StrayTrace {
				add("inet cnibox_trace", "the table has no owner", "nft delete table inet cnibox_trace")
			}
		}},
	}
}

// linkChecks look at what networks need of the node.
func linkChecks() []Check {
	return []Check{
		{ID: "kernel-feature", Title: "the kernel lacks a feature that a network needs", Reads: "the kernel's features; the networks' files", Severity: Error, find: func(f *Facts, add add) {
			for name, evidence := range f.Missing {
				module := strings.Replace(name, "link-", "rtnl-link-", 1)
				if strings.HasPrefix(name, "nftables") {
					module = "nf_tables"
				}
				add(name, evidence, "modprobe "+module)
			}
		}},
		{ID: "port-blocked", Title: "a bridge passes no packets of a pod", Reads: "interfaces; node.db", Severity: Error, find: func(f *Facts, add add) {
			for _, a := range f.attachments() {
				l := f.link(a.HostLink)
				if l == nil || !l.Blocked || !f.isUp(l.Master) {
					continue
				}
				evidence, fix := "the port "+l.Name+" of "+l.Master+" is not in the state forwarding", "bridge link set dev "+l.Name+" state 3"
				if f.link(l.Master).STP {
					if l.Starting { // STP opens the port within half a minute
						continue
					}
					evidence, fix = evidence+", by the bridge's STP, and the kernel lets nobody else change it", "bridge -d link show dev "+l.Name
				}
				add(name(a.Pod, a.Key), evidence, fix, a.Key)
			}
		}},
		{ID: "forwarding-wrong", Title: "a bridge has a static entry for a pod that leads to another port", Reads: "the forwarding tables of bridges; node.db", Severity: Error, find: func(f *Facts, add add) {
			static := map[string][]netops.BridgeEntry{} // by MAC: a node has two entries for each of its own
			for _, e := range f.Forwarding {
				static[e.MAC] = append(static[e.MAC], e)
			}
			for _, a := range f.attachments() {
				for _, e := range static[a.MAC] {
					port := f.link(a.HostLink)
					i := slices.IndexFunc(f.Links, func(l netops.LinkInfo) bool { return l.Index == e.Link })
					if port == nil || port.Master == "" || i < 0 || e.Link == port.Index {
						continue
					}
					if other := &f.Links[i]; other.Master == port.Master || other.Name == port.Master {
						add(name(a.Pod, a.Key), fmt.Sprintf("%s sends packets for %s to %s, want %s", port.Master, a.MAC, other.Name, port.Name), e.Fix(other.Name, other.Name == port.Master), a.Key)
					}
				}
			}
		}},
		{ID: "mtu-ipv6", Title: "an interface has no IPv6, because its MTU is less than 1280", Reads: "interfaces; node.db", Severity: Error, find: func(f *Facts, add add) {
			for i := range f.Links {
				l := &f.Links[i]
				most, has6 := 0, false
				for _, a := range f.attachments() {
					if port := f.link(a.HostLink); port != nil && port.Master == l.Name {
						most = max(most, port.MTU)
						has6 = has6 || slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
					}
				}
				if has6 && f.isOwn(l) && f.tooSmall(l.Name) && most >= leastMTU {
					add(l.Name, fmt.Sprintf("its MTU is %d, and IPv6 needs %d", l.MTU, leastMTU), fmt.Sprintf("ip link set %s mtu %d && cnibox repair", l.Name, most))
				}
			}
		}},
		{ID: "bridge-kind", Title: "the name of a network's bridge belongs to another device", Reads: "interfaces; the networks' files", Severity: Error, find: func(f *Facts, add add) {
			for _, n := range f.Networks {
				if l := f.link(n.Bridge); n.Bridge != "" && l != nil && l.Kind != "bridge" {
					add(n.Bridge, fmt.Sprintf("a device of kind %q; %s names it as bridge", l.Kind, n.Path), "edit "+n.Path) // the device can be what connects the node
				}
			}
		}},
		{ID: "hostport-address", Title: "a port is published on an address that the node does not have", Reads: "interfaces, the local routes; node.db", Severity: Warning, find: func(f *Facts, add add) {
			for _, p := range f.Strayed {
				add(p.What, p.Evidence, "give the node the address, or publish the port on another one", p.Owner)
			}
		}},
		{ID: "bridge-taken", Title: "a network's bridge has an address of another network", Reads: "interfaces; the networks' files", Severity: Error, find: func(f *Facts, add add) {
			for _, n := range f.Networks {
				for _, a := range f.foreignAddresses(n) {
					add(n.Bridge, fmt.Sprintf("it has %s, %s has %s", a, n.Path, n.Ranges[0].Subnet), f.foreignFix(n, a))
				}
			}
		}},
	}
}

// foreignAddresses returns the addresses of a network's bridge with which ADD would fail. Those of the
// overlay's former subnet are not foreign while it has pods.
func (f *Facts) foreignAddresses(n *Network) (all []netip.Prefix) {
	l := f.link(n.Bridge)
	if l == nil || l.Kind != "bridge" || len(n.Ranges) == 0 {
		return nil
	}
	for _, a := range l.Addresses {
		own := slices.ContainsFunc(n.Ranges, func(r Range) bool { return r.Subnet == a.Masked() || r.Subnet.Addr().Is4() != a.Addr().Is4() })
		former := n.Overlay && slices.ContainsFunc(f.pods(a.Contains), func(p netip.Prefix) bool { return p.Bits() == a.Bits() })
		if !own && !former && !a.IsSingleIP() && a.Addr().IsGlobalUnicast() && !f.otherNetworkHas(n, a) {
			all = append(all, a)
		}
	}
	return all
}

// foreignFix returns what to do about an address of foreignAddresses.
func (f *Facts) foreignFix(n *Network, a netip.Prefix) string {
	fix := fmt.Sprintf("ip addr del %s dev %s", a, n.Bridge)
	switch {
	case f.isNodes(n.Bridge, a):
		fix = "edit " + n.Path
	case len(f.pods(a.Contains)) > 0: // pods use it as their gateway, with another prefix length
		fix += " && cnibox repair"
	}
	return fix
}

// defaultBridge is the bridge of networks that name none.
const defaultBridge = "cni0"

// isNodes reports whether an address of a bridge can be the node's own: another program made the bridge, or a route leads
// over it to a gateway of the address's network.
func (f *Facts) isNodes(bridge string, a netip.Prefix) bool {
	return !f.isOwn(f.link(bridge)) && bridge != defaultBridge ||
		slices.ContainsFunc(f.Routes, func(r netops.Route) bool { return r.Link == bridge && r.Via.IsValid() && a.Contains(r.Via) })
}

// addEgress adds the faults that the checks of the underlay do not report.
func (f *Facts) addEgress(add add, absent bool) {
	for _, e := range f.Egress {
		if e.IsAbsent == absent && f.hasUnderlay() {
			add(e.Object, e.Evidence+"; pods on "+few(e.Devices), e.Fix)
		}
	}
}

// isUp reports whether a link is there and up.
func (f *Facts) isUp(link string) bool {
	l := f.link(link)
	return l != nil && l.Up
}

// leastMTU is that of IPv6 (RFC 8200, section 5).
const leastMTU = 1280

// tooSmall reports whether the kernel has disabled IPv6 on a link because of its MTU.
func (f *Facts) tooSmall(link string) bool {
	l := f.link(link)
	return l != nil && l.MTU < leastMTU
}

// isIPTables reports whether a rule of cnibox can accept the packets before it.
func (d *PodDrop) isIPTables() bool { return strings.HasSuffix(d.Chain, " filter FORWARD") }

// checkForwarding compares a setting of the node if a pod has an address of the family.
func (f *Facts) checkForwarding(add add, key string, is func(netip.Addr) bool) {
	pods := f.pods(is)
	needed := slices.ContainsFunc(f.Links, func(l netops.LinkInfo) bool { return f.isRouted(&l) })
	if f.Sysctls[key] == "0" && len(pods) > 0 && needed {
		add(key, fmt.Sprintf("0; addresses of pods: %d", len(pods)), "sysctl -w "+key+"=1")
	}
}

// isRouted reports whether a link has packets of pods that the node routes.
func (f *Facts) isRouted(l *netops.LinkInfo) bool {
	return isTunnel(l) || f.isOwn(l) && (l.Kind == "bridge" && len(l.Addresses) > 0 || l.Kind == "veth" && l.Master == "")
}

// pods returns the addresses of attachments.
func (f *Facts) pods(is func(netip.Addr) bool) (all []netip.Prefix) {
	for _, a := range f.attachments() {
		for _, p := range a.Addresses {
			if is(p.Addr()) {
				all = append(all, p)
			}
		}
	}
	return all
}

// otherNetworkHas reports whether another network with the same bridge has an address; then the
// check bridge-shared reports both.
func (f *Facts) otherNetworkHas(n *Network, a netip.Prefix) bool {
	return slices.ContainsFunc(f.Networks, func(m *Network) bool {
		return m != n && m.Bridge == n.Bridge && slices.ContainsFunc(m.Ranges, func(r Range) bool { return r.Subnet.Contains(a.Addr()) })
	})
}
