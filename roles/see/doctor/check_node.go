package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/see/check"
	"github.com/cnibox/cnibox/store"
)

const (
	forwardingKey4 = "net/ipv4/ip_forward" // explained leaves them to checks of their own
	forwardingKey6 = "net/ipv6/conf/all/forwarding"
	trackedKey     = "net/netfilter/nf_conntrack_count"
	trackedMaxKey  = "net/netfilter/nf_conntrack_max"
	bridgeCallKey  = "net/bridge/bridge-nf-call-iptables"
)

// settingChecks look at the host's settings.
func settingChecks() []Check {
	const sysctls = "sysctls; node.db"
	return []Check{
		{ID: "forwarding4", Title: "the node does not forward IPv4", Reads: sysctls, Severity: Error, find: func(f *Facts, add add) {
			f.checkForwarding(add, false)
		}},
		{ID: "forwarding6", Title: "the node does not forward IPv6", Reads: sysctls, Severity: Error, find: func(f *Facts, add add) {
			f.checkForwarding(add, true)
		}},
		{ID: "rp-filter", Title: "the node drops packets whose sender has another route", Reads: "sysctls; interfaces", Severity: Info, find: func(f *Facts, add add) {
			for _, l := range f.links() {
				if l.Kind != check.KindVXLAN {
					continue
				}
				mode, fix, err := check.ReversePath(&f.Host.Namespace, l.Name)
				f.unread("sysctls", err)
				if mode == check.SourceStrict {
					add(l.Name, "rp_filter is 1: packets of other nodes' host addresses are dropped", fix)
				}
			}
		}},
		{ID: "conntrack-full", Title: "the table of tracked connections is full: new connections are dropped", Reads: "sysctls", Severity: Error, find: func(f *Facts, add add) {
			most, err := strconv.Atoi(f.sysctl(trackedMaxKey))
			count, _ := strconv.Atoi(f.sysctl(trackedKey))
			if err == nil && most > 0 && count >= most-most/50 { // the kernel removes some early
				add(trackedMaxKey, fmt.Sprintf("%d of %d", count, most), fmt.Sprintf("sysctl -w %s=%d", trackedMaxKey, 2*most))
			}
		}},
		{ID: "bridge-calls", Title: "services do not work between pods of this node", Reads: "sysctls; kube-proxy's rules", Severity: Warning, find: func(f *Facts, add add) {
			bridged := slices.ContainsFunc(f.links(), func(l netops.LinkInfo) bool { return l.Kind == "bridge" && f.isOwn(&l) })
			if !f.Firewall.KubeProxy || !bridged || f.sysctl(bridgeCallKey) == "1" {
				return
			}
			if f.sysctl(bridgeCallKey) == "" {
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
			for _, p := range f.podFilters().programs {
				add(p.Name, "it drops all packets", p.Fix)
			}
			missing := slices.ContainsFunc(f.Differences, func(d Difference) bool { _, is := d.Of.(*netops.Forward); return is })
			for i := range f.podFilters().rules {
				r := &f.podFilters().rules[i]
				if missing && r.isIPTables() {
					continue // the check filter-missing
				}
				what, packets := "what pods on %s send", check.Packets{In: r.links}
				if r.to {
					what, packets = "the answers to pods on %s", check.Packets{Out: r.links, AreAnswers: true}
				}
				add(r.Rule, "it drops "+fmt.Sprintf(what, few(r.links)), check.Exception(&r.Drop, packets))
			}
		}},
		{ID: "forward-unknown", Title: "it is not known whether a packet filter of another program drops packets of pods", Reads: rules, Severity: Info, find: func(f *Facts, add add) {
			for chain, probe := range f.podFilters().unknown {
				if len(f.podFilters().rules) == 0 {
					add(chain, "it drops packets on conditions that only the kernel knows", probe)
				}
			}
		}},
		{ID: "pod-limited", Title: "a queueing discipline of another program limits the packets of pods", Reads: "the host's queueing disciplines; node.db", Severity: Warning, find: func(f *Facts, add add) {
			for _, q := range f.podFilters().limits {
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
				if l == nil || !f.isUp(l.Master) || l.Starting && f.link(l.Master).STP { // STP opens the port within half a minute
					continue
				}
				if fault := judged(f, "interfaces")(check.Port(f.Host, l)); fault != nil {
					add(name(a.Pod, a.Key), fault.Text, fault.Fix, a.Key)
				}
			}
		}},
		{ID: "forwarding-wrong", Title: "a bridge has a static entry for a pod that leads to another port", Reads: "the forwarding tables of bridges; node.db", Severity: Error, find: func(f *Facts, add add) {
			for _, a := range f.attachments() {
				port := f.link(a.HostLink)
				if port == nil {
					continue
				}
				if fault := judged(f, "forwarding entries")(check.StaticEntry(f.Host, port, a.MAC, name(a.Pod, a.Key))); fault != nil {
					add(name(a.Pod, a.Key), fault.Text, fault.Fix, a.Key)
				}
			}
		}},
		{ID: "mtu-ipv6", Title: "an interface has no IPv6, because its MTU is less than 1280", Reads: "interfaces; node.db", Severity: Error, find: func(f *Facts, add add) {
			for _, l := range f.links() {
				most, has6 := 0, false
				for _, a := range f.attachments() {
					if port := f.link(a.HostLink); port != nil && port.Master == l.Name {
						most = max(most, port.MTU)
						has6 = has6 || slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
					}
				}
				if has6 && f.isOwn(&l) && f.tooSmall(l.Name) && most >= leastMTU {
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
		{ID: "mtu-uplink", Title: "pods have a larger MTU than the interface by which they leave the node", Reads: "interfaces, routes, policy rules; nftables and iptables; node.db", Severity: Warning, find: func(f *Facts, add add) {
			f.addSmallerUplinks(add)
		}},
		{ID: "egress-address", Title: "the node does not have the egressAddress of pods", Reads: "interfaces, the local routes; node.db; the networks' files", Severity: Error, find: func(f *Facts, add add) {
			f.addEgressAddresses(add)
		}},
		{ID: "hostport-address", Title: "a port is published on an address that the node does not have", Reads: "interfaces, the local routes; node.db", Severity: Warning, find: func(f *Facts, add add) {
			if f.State.Dump == nil {
				return
			}
			for _, c := range f.State.Dump.Claims {
				if fault := judged(f, "routes")(check.PublishedAt(f.Host, c.Resource().Ports.Address)); fault != nil {
					add(c.Resource().String(), fmt.Sprintf("%s; container %s on %s", fault.Text, c.Owner.ContainerID, c.Owner.Network), fault.Fix, c.Owner)
				}
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
		slices.ContainsFunc(f.routes(), func(r netops.Route) bool { return r.Link == bridge && r.Via.IsValid() && a.Contains(r.Via) })
}

// addEgress adds the faults that the checks of the underlay do not report. It asks for one pod of each device and address family.
func (f *Facts) addEgress(add add, isAbsent bool) {
	if !f.hasUnderlay() {
		return
	}
	type family struct {
		device string
		is6    bool
	}
	asked := map[family]bool{}
	devices := map[check.Fault][]string{}
	var order []check.Fault
	for _, one := range f.attachments() {
		l := f.link(one.HostLink)
		if l == nil {
			continue
		}
		device := cmp.Or(l.Master, l.Name)
		for _, p := range one.Addresses {
			k := family{device, p.Addr().Is6()}
			routes := slices.ContainsFunc(one.Routes, func(text string) bool {
				return strings.HasPrefix(text, map[bool]string{true: "::/0", false: "0.0.0.0/0"}[k.is6])
			})
			if asked[k] || !routes {
				continue
			}
			asked[k] = true
			e, err := check.Egress(f.Host, device, p)
			f.unread("routes", err)
			if e == nil || e.IsAbsent != isAbsent {
				continue
			}
			if devices[e.Fault] == nil {
				order = append(order, e.Fault)
			}
			if !slices.Contains(devices[e.Fault], device) {
				devices[e.Fault] = append(devices[e.Fault], device)
			}
		}
	}
	for _, fault := range order {
		add(fault.Object, fault.Text+"; pods on "+few(devices[fault]), fault.Fix)
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
func (d *podDrop) isIPTables() bool { return strings.HasSuffix(d.Chain, " filter FORWARD") }

// checkForwarding judges the links of pods if one has an address of the family.
func (f *Facts) checkForwarding(add add, is6 bool) {
	if len(f.pods(func(a netip.Addr) bool { return a.Is6() == is6 })) == 0 {
		return
	}
	added := map[string]bool{}
	for _, l := range f.links() {
		if !f.isRouted(&l) {
			continue
		}
		if fault := judged(f, "sysctls")(check.Forwarding(f.Host, l.Name, is6)); fault != nil && !added[fault.Object] {
			add(fault.Object, fault.Text, fault.Fix)
			added[fault.Object] = true
		}
	}
}

// judged returns a function that returns a fault, and notes that a fact could not be read.
func judged(f *Facts, what string) func(*check.Fault, error) *check.Fault {
	return func(fault *check.Fault, err error) *check.Fault {
		f.unread(what, err)
		return fault
	}
}

// isRouted reports whether a link has packets of pods that the node routes.
func (f *Facts) isRouted(l *netops.LinkInfo) bool {
	return check.IsTunnel(l) || f.isOwn(l) && (l.Kind == "bridge" && len(l.Addresses) > 0 || l.IsPairEnd() && l.Master == "")
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

// addEgressAddresses adds one finding for each egressAddress that the node does not have. Containers have it
// by their records, and the next one by its network's file.
func (f *Facts) addEgressAddresses(add add) {
	var order []netip.Addr
	keys, networks := map[netip.Addr][]store.Key{}, map[netip.Addr][]string{}
	note := func(a netip.Addr, network string) {
		if !slices.Contains(order, a) {
			order = append(order, a)
		}
		if !slices.Contains(networks[a], network) {
			networks[a] = append(networks[a], network)
		}
	}
	all := f.attachments()
	for i := range all {
		changes, err := attachment.Changes(&all[i])
		f.unread("attachments", err)
		for _, c := range changes {
			if a, is := netops.EgressOf(c.Do.Object); is {
				note(a, all[i].Network)
				keys[a] = append(keys[a], all[i].Key)
			}
		}
	}
	for _, n := range f.Networks {
		for _, a := range n.Egress {
			note(a, n.Name)
		}
	}
	for _, a := range order {
		if fault := judged(f, "interfaces")(check.EgressAddress(f.Host, a)); fault != nil {
			add(fault.Object, fmt.Sprintf("%s; networks: %s", fault.Text, few(networks[a])), fault.Fix, keys[a]...)
		}
	}
}
