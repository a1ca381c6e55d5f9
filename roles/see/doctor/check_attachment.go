package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/store"
)

// The checks that `cnibox doctor --fix` mends in a way of their own.
const (
	RulesFlushed = "rules-flushed"
	LeaseLeaked  = "lease-leaked"
)

// kind is a kind of difference of an attachment, and the check of this ID.
type kind struct {
	id, title string
	severity  Severity
	// level orders causes before their consequences: the interface's differences explain those
	// of its addresses and routes. 0 explains nothing and is explained by nothing.
	level int
}

// kinds are the kinds of differences.
func kinds() []kind {
	return []kind{
		{"container-ended", "an ended container has a record and addresses", Warning, 0},
		{"namespace-gone", "the namespace of a container does not exist", Warning, 0},
		{"bridge-missing", "a bridge of pods was deleted", Error, 1},
		{"bridge-changed", "a bridge of pods is down or changed", Error, 1},
		{"bridge-address", "a bridge of pods lost its address", Error, 2},
		{"link-missing", "the interface of a pod was deleted", Error, 3},
		{"link-changed", "the interface of a pod is down or changed", Error, 3},
		{"port-vlan", "the bridge's port of a pod is in other VLANs", Error, 3},
		{"ipv6-disabled", "IPv6 is disabled in a pod that has an address of it", Error, 3},
		{"address-missing", "a pod lost its address", Error, 4},
		{"route-missing", "a pod lost a route", Error, 5},
		{"neighbour-missing", "a neighbour entry of a pod is missing", Error, 5},
		{"neighbour-wrong", "the node's permanent entry for a pod has another MAC", Error, 5},
		{"setting-changed", "a kernel setting of an attachment was changed", Warning, 0},
		{"masquerade-missing", "a rule that masquerades pods is missing", Error, 0},
		{"hostport-missing", "a rule of a published port is missing", Error, 0},
		{"connection-stale", "UDP packets to a published port go elsewhere, as before the container came", Warning, 0},
		{"pod-route", "the node's route to a pod leads elsewhere", Error, 6},
		{"filter-missing", "a packet filter rule of a pod is missing", Error, 5},
		{"attachment-changed", "an attachment differs from its specification", Error, 5},
		{"check-failed", "CHECK of an attachment fails", Error, 0},
	}
}

// kindOf returns the ID of a difference's kind.
func (d *Difference) kindOf() string {
	absent := d.Have == "absent"
	shared := d.Of != nil && d.Of.IsShared()
	switch o := d.Of.(type) {
	case nil:
		switch what, _, _ := strings.Cut(d.Object, " "); what {
		case "container":
			return "container-ended"
		case "CHECK":
			return "check-failed"
		case "route":
			return "pod-route"
		case "neighbour":
			return "neighbour-wrong"
		case "sysctl":
			return "ipv6-disabled"
		}
		return "namespace-gone"
	case *netops.Link:
		switch {
		case shared && absent:
			return "bridge-missing"
		case shared:
			return "bridge-changed"
		case absent:
			return "link-missing"
		}
		return "link-changed"
	case *netops.Addr:
		if shared {
			return "bridge-address"
		}
		return "address-missing"
	case *netops.Route:
		return "route-missing"
	case *netops.Neigh:
		return "neighbour-missing"
	case *netops.PortVLANs:
		return "port-vlan"
	case *netops.Sysctl:
		return "setting-changed"
	case *netops.Flows:
		return "connection-stale"
	case *netops.Forward:
		return "filter-missing"
	case *netops.Element:
		switch {
		case strings.HasPrefix(o.Set, "masq"), strings.HasPrefix(o.Set, netops.EgressSet):
			return "masquerade-missing"
		case strings.HasPrefix(o.Set, "port"):
			return "hostport-missing"
		}
		return "filter-missing"
	}
	return "attachment-changed"
}

// attachmentChecks look at the attachments of the node.
func attachmentChecks() []Check {
	var all []Check
	for _, k := range kinds() {
		all = append(all, Check{
			ID: k.id, Title: k.title, Reads: "the attachments and the kernel, as 'cnibox diff'", Severity: k.severity,
			Safe: k.id != "check-failed" && k.id != "namespace-gone",
			find: func(f *Facts, add add) { f.addDifferences(k, add) },
		})
	}
	return all
}

// recordChecks compare the records with each other and with the node.
func recordChecks() []Check {
	return []Check{
		{ID: RulesFlushed, Title: "another program deleted cnibox's nftables tables or rules", Reads: "nftables; node.db", Severity: Error, Safe: true, find: func(f *Facts, add add) {
			if lost := f.lost(); len(lost) > 0 {
				add("nftables", fmt.Sprintf("no table or rules of the sets %s; attachments: %d", few(lost), len(f.attachments())), "cnibox repair")
			}
		}},
		{ID: "call-running", Title: "a call takes long: its plugin hangs or waits", Reads: "the environments of processes", Severity: Warning, find: func(f *Facts, add add) {
			for _, c := range f.Calls {
				add(c.Plugin, c.What, c.Fix)
			}
		}},
		{ID: "interface-unrecorded", Title: "an interface of a pod has no record", Reads: "the labels of interfaces; node.db", Severity: Warning, find: func(f *Facts, add add) {
			if len(f.attachments()) == 0 {
				return // state-lost
			}
			for _, l := range f.unrecorded() {
				add(l, f.link(l).Alias, "cnibox state repair --force")
			}
		}},
		{ID: "rule-unrecorded", Title: "a host port or another rule of a pod has no record", Reads: "the labels of nftables elements and rules; node.db", Severity: Error, find: func(f *Facts, add add) {
			for _, o := range f.Firewall.Unrecorded {
				add(o.String(), "no attachment has it: packets may reach another pod", "cnibox repair")
			}
		}},
		{ID: LeaseLeaked, Title: "an address is leased to a container that no longer exists", Reads: "node.db; the namespaces' paths", Severity: Warning, Safe: true, find: func(f *Facts, add add) {
			f.eachLease(func(l *store.Lease, attached bool) {
				if !attached && !l.Imported && f.isNetnsGone(l.Netns) {
					add(l.Address.String(), fmt.Sprintf("%s of container %s on %s: %s does not exist", l.Owner.IfName, l.Owner.ContainerID, l.Owner.Network, l.Netns.Path), "cnibox state reap", l.Owner)
				}
			})
		}},
		{ID: "address-twice", Title: "two attachments have one address", Reads: "node.db; /var/lib/cni/results", Severity: Error, find: addressTwice},
		{ID: "range-full", Title: "all addresses of a range are in use", Reads: "node.db; the networks' files", Severity: Error, find: func(f *Facts, add add) {
			f.eachUsage(func(n *Network, r Range, used int) {
				if used >= r.Size {
					add(r.Subnet.String(), fmt.Sprintf("%d of %d addresses of %s", used, r.Size, n.Name), "cnibox ipam show "+n.Name)
				}
			})
		}},
		{ID: "range-nearly-full", Title: "more than 90% of a range are in use", Reads: "node.db; the networks' files", Severity: Warning, find: func(f *Facts, add add) {
			f.eachUsage(func(n *Network, r Range, used int) {
				if used < r.Size && used*10 > r.Size*9 {
					add(r.Subnet.String(), fmt.Sprintf("%d of %d addresses of %s", used, r.Size, n.Name), "cnibox ipam show "+n.Name)
				}
			})
		}},
	}
}

// name returns the pod's name or the container's ID.
func name(pod string, k store.Key) string { return cmp.Or(pod, k.ContainerID) }

// The commands that end a pod or container.
const (
	deletePod        = "kubectl delete pod "
	restartContainer = "restart container "
)

// restart returns the command that starts a container again, as far as its pod is known.
func restart(pod string, k store.Key) string {
	isName := strings.Trim(pod, "abcdefghijklmnopqrstuvwxyz0123456789.-/") == "" // the text comes from a call
	if ns, name, ok := strings.Cut(pod, "/"); ok && isName {
		return deletePod + "-n " + ns + " " + name
	}
	return restartContainer + k.ContainerID
}

// lost returns the sets that another program deleted and attachments need.
func (f *Facts) lost() []string {
	needed := slices.Clone(f.Firewall.Labelled) // with a flushed table the elements are there
	for i := range f.Differences {
		needed = append(needed, f.Differences[i].Of)
	}
	for _, o := range needed {
		if e, ok := o.(*netops.Element); ok && slices.Contains(f.Firewall.Lost, e.Set) {
			return f.Firewall.Lost
		}
	}
	return nil
}

// group are the differences of one finding.
type group struct {
	object, fix string
	texts       []string
	keys        []store.Key
}

// evidence returns the first differences, and how many others there are.
func (g *group) evidence() string {
	const most = 3
	text := strings.Join(g.texts[:min(most, len(g.texts))], "; ")
	if more := len(g.texts) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if len(g.keys) > 1 {
		text += fmt.Sprintf("; %d attachments", len(g.keys))
	}
	return text
}

// addDifferences adds one finding for each shared object, and one for each attachment with other
// differences of a kind.
func (f *Facts) addDifferences(k kind, add add) {
	byObject := map[string]*group{}
	var order []*group
	causes := map[store.Key]int{}
	for i := range f.Differences {
		d := &f.Differences[i]
		if l := levelOf(d); l > 0 && !f.explained(d, 0) && (causes[d.Key] == 0 || l < causes[d.Key]) {
			causes[d.Key] = l
		}
	}
	for i := range f.Differences {
		d := &f.Differences[i]
		if d.kindOf() != k.id || f.explained(d, causes[d.Key]) {
			continue
		}
		object := fmt.Sprintf("%s %s on %s", name(d.Pod, d.Key), d.Key.IfName, d.Key.Network)
		if d.Of != nil && d.Of.IsShared() {
			object = d.Of.String()
		}
		g := byObject[object]
		text := fmt.Sprintf("want %s, have %s", d.Want, d.Have)
		if d.Object != object {
			text = d.Object + ": " + text
		}
		if g == nil {
			g = &group{object: object, fix: d.Fix}
			byObject[object], order = g, append(order, g)
		}
		if !slices.Contains(g.texts, text) {
			g.texts = append(g.texts, text)
		}
		if d.Fix == "" {
			g.fix = restart(d.Pod, d.Key)
		}
		if !slices.Contains(g.keys, d.Key) {
			g.keys = append(g.keys, d.Key)
		}
	}
	for _, g := range order {
		add(g.object, g.evidence(), g.fix, g.keys...)
	}
}

// explained reports whether another finding is the cause of a difference: the lost tables, a
// check of its own, or a difference of a lower level of the same attachment. cause is the lowest one.
func (f *Facts) explained(d *Difference, cause int) bool {
	switch o := d.Of.(type) {
	case *netops.Element:
		if slices.Contains(f.Firewall.Lost, o.Set) {
			return true
		}
	case *netops.Addr:
		if o.Address.Addr().Is6() && f.tooSmall(o.Link) {
			return true
		}
		taken := func(n *Network) bool { return n.Bridge == o.Link && len(f.foreignAddresses(n)) > 0 }
		if d.Of.IsShared() && slices.ContainsFunc(f.Networks, taken) {
			return true
		}
	case *netops.Flows:
		return len(f.Firewall.Lost) > 0
	case *netops.Forward: // packets pass without it
		return len(f.podFilters().unknown) == 0 && !slices.ContainsFunc(f.podFilters().rules, func(d podDrop) bool { return d.isIPTables() })
	case *netops.Sysctl:
		device, isIPv6 := strings.CutPrefix(strings.TrimSuffix(o.Key, "/disable_ipv6"), "net/ipv6/conf/")
		return isIPv6 && f.tooSmall(device) || o.Key == forwardingKey4 || o.Key == forwardingKey6
	case nil:
		if d.Object != "CHECK" {
			break
		}
		return !f.Overlay.serves() && slices.ContainsFunc(f.Networks, func(n *Network) bool { return n.Overlay && n.Name == d.Key.Network })
	}
	return levelOf(d) > cause && cause > 0
}

func levelOf(d *Difference) int {
	id := d.kindOf()
	for _, k := range kinds() {
		if k.id == id {
			return k.level
		}
	}
	return 0
}

// eachLease calls each for all leases.
func (f *Facts) eachLease(each func(l *store.Lease, attached bool)) {
	if f.State.Dump == nil {
		return
	}
	attached := map[store.Key]bool{}
	for _, a := range f.attachments() {
		attached[a.Key] = true
	}
	for _, p := range f.State.Dump.Pools {
		for i := range p.Leases {
			each(&p.Leases[i], attached[p.Leases[i].Owner])
		}
	}
}

// eachUsage calls each for the ranges of a countable size.
func (f *Facts) eachUsage(each func(n *Network, r Range, used int)) {
	for _, n := range f.Networks {
		for _, r := range n.Ranges {
			used := 0
			f.eachLease(func(l *store.Lease, _ bool) {
				if l.Owner.Network == n.Name && r.Lo.Compare(l.Address) <= 0 && l.Address.Compare(r.Hi) <= 0 {
					used++
				}
			})
			if r.Size > 0 {
				each(n, r, used)
			}
		}
	}
}

// addressTwice compares the addresses of records, and of cached results that no record describes. The older attachment keeps the address.
func addressTwice(f *Facts, add add) {
	type holder struct {
		key     store.Key
		pod     string
		created time.Time
	}
	holders := map[netip.Addr]holder{}
	note := func(k store.Key, pod string, created time.Time, all []netip.Prefix) {
		for _, p := range all {
			a := p.Addr().Unmap()
			old, now := holders[a], holder{k, pod, created}
			if old.key.ContainerID != "" && old.key.ContainerID != k.ContainerID {
				if !created.IsZero() && created.Before(old.created) {
					old, now = now, old
				}
				add(a.String(), fmt.Sprintf("of container %s on %s and of container %s on %s", old.key.ContainerID, old.key.Network, now.key.ContainerID, now.key.Network),
					Separate(f.Networks, old.key, now.key, now.pod), old.key, now.key)
				now = old
			}
			holders[a] = now
		}
	}
	recorded := map[store.Key]bool{}
	for _, a := range f.attachments() {
		recorded[a.Key] = true
		note(a.Key, a.Pod, a.Created, a.Addresses)
	}
	for _, path := range slices.Sorted(maps.Keys(f.Caches)) {
		c := f.Caches[path]
		if !recorded[c.Key()] && f.State.Dump != nil && c.Netns != "" && !f.isGone(c.Netns) && !f.isDelegated(c.ContainerID) {
			note(c.Key(), "", time.Time{}, c.Addresses())
		}
	}
}

// Separate returns what keeps a second attachment from an address. As long as two networks give the same addresses, a pod that is made
// again can get another pod's.
func Separate(networks []*Network, old, now store.Key, pod string) string {
	if old.Network == now.Network {
		return restart(pod, now)
	}
	for _, n := range networks {
		if n.Name == now.Network {
			return "edit " + n.Path
		}
	}
	return "edit the network " + now.Network
}

// isDelegated reports whether a recorded attachment is of a container, whose cached result of a meta
// role has the same address.
func (f *Facts) isDelegated(container string) bool {
	return slices.ContainsFunc(f.attachments(), func(a store.Attachment) bool { return a.ContainerID == container })
}
