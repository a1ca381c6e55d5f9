// Package advice keeps the commands that are printed for people from removing what attachments stand on. Each fix that the command line
// or the agent's status prints passes [Records.Fix].
package advice

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/store"
)

// Records are the objects that attachments of this node stand on.
type Records struct {
	holders []holder
	// links are the host's.
	links []netops.LinkInfo
}

// holder is an attachment, or a network with the objects that its attachments share.
type holder struct {
	network, name string
	netns, mac    string
	hostLink      string
	addresses     []netip.Prefix
	objects       []netops.Object
}

// New reads the records. caches are the cached results of runtimes, which also describe the attachments of other plugins. Doctor reports a
// record that cannot be decoded. links are the host's.
func New(dump *store.Dump, caches map[string]*recovery.CacheEntry, links []netops.LinkInfo) *Records {
	r := &Records{links: links}
	if dump != nil {
		for i := range dump.Attachments {
			a := &dump.Attachments[i]
			h := holder{network: a.Network, name: a.ContainerID, netns: a.Netns.Path, mac: a.MAC, hostLink: a.HostLink, addresses: a.Addresses}
			if a.Pod != "" {
				h.name = a.Pod
			}
			changes, _ := attachment.Changes(a)
			h.add(changes)
			r.holders = append(r.holders, h)
		}
		for _, n := range dump.Networks {
			h := holder{network: n.Name, name: "network " + n.Name}
			changes, _ := attachment.DecodeChanges(n.Shared)
			h.add(changes)
			r.holders = append(r.holders, h)
		}
	}
	for _, c := range caches {
		isRecorded := func(a netip.Prefix) bool { // by the attachment, or by one of those to which a meta role delegated
			return slices.ContainsFunc(r.holders, func(h holder) bool { return h.netns == c.Netns && slices.Contains(h.addresses, a) })
		}
		if all := slices.DeleteFunc(c.Addresses(), isRecorded); c.Netns != "" && len(all) > 0 {
			r.holders = append(r.holders, holder{network: c.Network, name: c.ContainerID, netns: c.Netns, addresses: all})
		}
	}
	return r
}

// Fix returns a command, or if that would take something from attachments, what to do instead, and why. of are the networks whose fault
// it mends. A nil Records knows no attachment.
func (r *Records) Fix(line string, of ...string) (fix, harm string) {
	if r == nil || line == "" {
		return line, ""
	}
	found := r.harm(line)
	if found == nil {
		return line, ""
	}
	networks := slices.Concat(of, found.networks)
	slices.Sort(networks)
	if networks = slices.Compact(networks); len(networks) > 1 {
		return "give the networks " + strings.Join(networks, " and ") + " different subnets", found.what
	}
	return "cnibox state", found.what
}

// Split returns a line as what mends a fault, or as what only shows more of it.
func Split(line string) (fix, see string) {
	c := parse(line)
	shows := []string{"cnibox agent status", "cnibox diff", "cnibox drops", "cnibox lint", "cnibox policy list", "cnibox state", "df", "fuser"}
	mends := []string{"cnibox state reap", "cnibox state repair"}
	if slices.ContainsFunc(shows, c.has) && !slices.ContainsFunc(mends, c.has) {
		return "", line
	}
	return line, ""
}

// harm is what a command would take, and from which networks.
type harm struct {
	what     string
	networks []string
}

// add adds the objects of changes. The inverse of a shared object's change is what removes it.
func (h *holder) add(changes []netops.Change) {
	for _, c := range changes {
		h.objects = append(h.objects, c.Do.Object)
		if c.Undo != nil {
			h.objects = append(h.objects, c.Undo.Object)
		}
	}
}

// command is one command without options, and the namespace in which it runs, or "" for the host's.
type command struct {
	netns string
	words []string
	// repairs means that the line ends with `cnibox repair`, which makes missing addresses again.
	repairs bool
}

// has reports whether the command begins with words.
func (c *command) has(words string) bool {
	want := strings.Fields(words)
	return len(c.words) >= len(want) && slices.Equal(c.words[:len(want)], want)
}

// operand returns the word behind an object and a verb, as in `ip addr del ADDRESS`, or "".
func (c *command) operand() string {
	const before = 3
	if before < len(c.words) {
		return c.words[before]
	}
	return ""
}

// after returns the word that follows another, or "".
func (c *command) after(word string) string {
	if i := slices.Index(c.words, word); i >= 0 && i+1 < len(c.words) {
		return c.words[i+1]
	}
	return ""
}

// harm returns what a command would take from attachments, or nil if it takes nothing. A command that removes something that no record
// explains is harmful, too.
func (r *Records) harm(line string) *harm {
	for part := range strings.SplitSeq(line, "&&") {
		c := parse(part)
		c.repairs = strings.HasSuffix(line, "&& cnibox repair")
		for _, one := range []struct {
			words string
			check func(*command) *harm
		}{
			{"ip addr del", r.address},
			{"ip route prepend", r.route},
			{"ip route add", r.route},
			{"ip route replace", r.route},
			{"ip rule add", r.rule},
			{"ip neigh replace", r.neighbour},
			{"ip neigh change", r.neighbour},
			{"ip neigh flush to", r.neighbour},
			{"ip link set", r.link},
			{"tc qdisc del", r.qdisc},
			{"bridge fdb replace", r.forwarding},
			{"bridge fdb del", r.forwarding},
			{"nft delete table inet cnibox_trace", nothing},
			{"kubectl delete pod", nothing}, // a last resort, which the caller names last
			{"kubectl -n kube-system delete pod -l app.kubernetes.io/name=cnibox", nothing}, // the agent's, which starts again
			{"", r.other},
		} {
			if !c.has(one.words) {
				continue
			}
			if found := one.check(&c); found != nil {
				return found
			}
			break
		}
	}
	return nil
}

func nothing(*command) *harm { return nil }

func parse(line string) (c command) {
	c.words = strings.Fields(line)
	if len(c.words) > 2 && c.words[0] == "nsenter" {
		c.netns, c.words = strings.TrimPrefix(c.words[1], "--net="), c.words[2:]
	}
	for len(c.words) > 1 && c.words[0] == "ip" && strings.HasPrefix(c.words[1], "-") {
		c.words = slices.Delete(c.words, 1, 2)
	}
	return c
}

// other refuses what removes objects in a way that no check knows.
func (r *Records) other(c *command) *harm {
	for _, word := range c.words {
		if slices.Contains([]string{"del", "delete", "flush", "destroy", "nomaster", "-D", "-F", "-X"}, word) {
			return &harm{what: "it is not known which attachments need what it removes"}
		}
	}
	return nil
}

// address is for `ip addr del ADDRESS dev LINK`. An address of the host goes only if the records have it elsewhere, or with another prefix
// length, or if it is a bridge's and no attachment has an address of its network.
func (r *Records) address(c *command) *harm {
	p := prefixOf(c.operand())
	dev := c.after("dev")
	if !p.IsValid() || dev == "" {
		return r.other(c)
	}
	same := func(a netip.Prefix) bool { return a.Addr() == p.Addr() }
	if c.netns != "" {
		return r.held("address "+p.String(), func(h *holder) bool { return h.netns == c.netns && slices.ContainsFunc(h.addresses, same) })
	}
	leaves := r.held(fmt.Sprintf("address %s, with which packets leave the node,", p.Addr()), func(h *holder) bool {
		return slices.ContainsFunc(h.objects, func(o netops.Object) bool { a, is := netops.EgressOf(o); return is && a == p.Addr() })
	})
	if leaves != nil {
		return leaves
	}
	elsewhere := false
	found := r.held(fmt.Sprintf("address %s of %s", p, dev), func(h *holder) bool {
		elsewhere = elsewhere || slices.ContainsFunc(h.addresses, same)
		return slices.ContainsFunc(h.objects, func(o netops.Object) bool {
			a, is := o.(*netops.Addr)
			if !is || a.In != netops.Host || !same(a.Address) {
				return false
			}
			elsewhere = elsewhere || a.Link != dev || a.Address != p && c.repairs
			return a.Link == dev && (a.Address == p || !c.repairs)
		})
	})
	if found == nil && (!elsewhere || !c.repairs) {
		within := func(a netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a.Addr()) }
		found = r.held(fmt.Sprintf("address %s of %s", p, dev), func(h *holder) bool {
			isBehind := h.hostLink == "" && r.kind(dev) == "bridge" || h.hostLink == dev || r.master(h.hostLink) == dev
			return isBehind && slices.ContainsFunc(h.addresses, within)
		})
	}
	if found == nil && !elsewhere && r.kind(dev) != "bridge" {
		return &harm{what: fmt.Sprintf("the address %s of %s is the node's own", p, dev)}
	}
	return found
}

// route is for `ip route prepend ADDRESS dev LINK`, which takes the packets to an address from another attachment that has it.
func (r *Records) route(c *command) *harm {
	p := prefixOf(c.operand())
	if c.netns != "" || !p.IsValid() {
		return nil
	}
	return r.several(p)
}

// rule is for `ip rule add to ADDRESS lookup main`, and for packets from addresses.
func (r *Records) rule(c *command) *harm {
	for _, selector := range []string{"to", "from"} {
		if p := prefixOf(c.after(selector)); p.IsValid() && c.netns == "" {
			return r.several(p)
		}
	}
	return nil
}

// neighbour is for `ip neigh replace ADDRESS lladdr MAC dev LINK`. The kernel asks for other entries again, but not for the permanent ones
// of tunnels, which are the agent's.
func (r *Records) neighbour(c *command) *harm {
	dev, mac := c.after("dev"), c.after("lladdr")
	if k := r.kind(dev); c.netns == "" && (k == "vxlan" || k == "wireguard") {
		return &harm{what: "the entries of " + dev + " are the agent's, and the kernel cannot ask there for others"}
	}
	p := prefixOf(c.operand())
	if c.netns != "" || mac == "" || !p.IsValid() {
		return nil
	}
	return r.held("address "+p.Addr().String(), func(h *holder) bool {
		return h.mac != "" && h.mac != mac && (h.hostLink == dev || r.master(h.hostLink) == dev) &&
			slices.ContainsFunc(h.addresses, func(a netip.Prefix) bool { return a.Addr() == p.Addr() })
	})
}

// leastMTU is that of IPv6 (RFC 8200, section 5).
const leastMTU = 1280

// link is for `ip link set LINK …` with down, another name, another master, or an MTU with which the kernel removes IPv6.
func (r *Records) link(c *command) *harm {
	name := c.operand()
	if name == "dev" {
		name = c.after("dev")
	}
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsGlobalUnicast() }
	if mtu, err := strconv.Atoi(c.after("mtu")); err == nil && mtu < leastMTU && c.netns == "" && slices.ContainsFunc(r.find(name).Addresses, is6) {
		return &harm{what: fmt.Sprintf("with an MTU below %d %s loses its IPv6 addresses", leastMTU, name)}
	}
	if c.netns != "" || !slices.ContainsFunc(c.words, func(w string) bool { return slices.Contains([]string{"down", "name", "nomaster", "netns"}, w) }) {
		return nil
	}
	return r.held("interface "+name, func(h *holder) bool {
		return h.hostLink == name || r.master(h.hostLink) == name || slices.ContainsFunc(h.objects, func(o netops.Object) bool {
			l, is := o.(*netops.Link)
			return is && (l.Name == name && l.In == netops.Host || l.Parent == name || l.Master == name)
		})
	})
}

// qdisc is for `tc qdisc del dev LINK …`.
func (r *Records) qdisc(c *command) *harm {
	dev := c.after("dev")
	return r.held("queueing discipline of "+dev, func(h *holder) bool {
		return slices.ContainsFunc(h.objects, func(o netops.Object) bool {
			q, is := o.(*netops.Qdisc)
			isThere := is && q.In == netops.Host
			if c.netns != "" {
				isThere = is && q.In == netops.Container && h.netns == c.netns
			}
			return isThere && q.Link == dev
		})
	})
}

// forwarding is for `bridge fdb`. A bridge learns an entry again, a tunnel does not.
func (r *Records) forwarding(c *command) *harm {
	dev := c.after("dev")
	if c.netns == "" && r.kind(dev) == "vxlan" {
		return &harm{what: "the entries of " + dev + " are the agent's"}
	}
	mac := c.operand()
	return r.held("forwarding entry of "+mac, func(h *holder) bool {
		return slices.ContainsFunc(h.objects, func(o netops.Object) bool {
			n, is := o.(*netops.Neigh)
			return is && n.FDB && n.In == netops.Host && n.MAC == mac && n.Link == dev
		})
	})
}

// several returns the harm of a route or rule for addresses of which two containers or networks have some.
func (r *Records) several(p netip.Prefix) *harm {
	var first *holder
	for i := range r.holders {
		h := &r.holders[i]
		if !slices.ContainsFunc(h.addresses, func(a netip.Prefix) bool { return p.Contains(a.Addr()) }) {
			continue
		}
		if first == nil {
			first = h
			continue
		}
		if first.netns != h.netns && (p.IsSingleIP() || first.network != h.network) {
			return &harm{fmt.Sprintf("%s on %s and %s on %s have addresses of %s", first.name, first.network, h.name, h.network, short(p)), []string{first.network, h.network}}
		}
	}
	return nil
}

// held returns what the holders that has reports would lose, or nil.
func (r *Records) held(what string, has func(*holder) bool) *harm {
	var names []string
	found := &harm{}
	for i := range r.holders {
		if h := &r.holders[i]; has(h) {
			found.networks = append(found.networks, h.network)
			if !slices.Contains(names, h.name) {
				names = append(names, h.name)
			}
		}
	}
	const most = 3
	switch more := len(names) - most; {
	case len(names) == 0:
		return nil
	case more > 0:
		found.what = fmt.Sprintf("the %s is of %s and %d more", what, strings.Join(names[:most], ", "), more)
	default:
		found.what = fmt.Sprintf("the %s is of %s", what, strings.Join(names, ", "))
	}
	return found
}

func (r *Records) find(link string) *netops.LinkInfo {
	if i := slices.IndexFunc(r.links, func(l netops.LinkInfo) bool { return l.Name == link }); i >= 0 {
		return &r.links[i]
	}
	return &netops.LinkInfo{}
}

func (r *Records) kind(link string) string { return r.find(link).Kind }

func (r *Records) master(link string) string { return r.find(link).Master }

// prefixOf parses an address with or without a prefix length.
func prefixOf(text string) netip.Prefix {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	p, _ := netip.ParsePrefix(text)
	return p
}

// short omits the length of a single address.
func short(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
