package check

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/look"
)

// Packets are those that a rule of another program should let pass: those between two addresses, or else of devices.
type Packets struct {
	From, To netip.Addr
	// Original is the destination before NAT, if it differs.
	Original netip.Addr
	// In and Out are devices by which they arrive and leave.
	In, Out []string
	// AreAnswers means that only answers should pass, if the chain knows connections.
	AreAnswers bool
}

// Exception returns the command that lets packets pass a rule that drops them. Chains of the families netdev, bridge and arp see less than
// others.
func Exception(d *look.Drop, p Packets) string {
	family, _, _ := strings.Cut(d.Chain, " ")
	switch {
	case family == "bridge" || family == "arp":
		nft, _ := p.devices(family)
		return d.Exception(nft, "")
	case family == "netdev" && (d.IsAlways || !p.From.IsValid()): // it drops ARP, too
		return d.Exception("", "")
	case family == "netdev":
		both, _ := Between(p.From, p.To)
		from, _, _ := strings.Cut(both, " ip") // NAT has yet to give an answer its destination
		return d.Exception(from, "")
	case p.From.IsValid() && d.SeesOriginal:
		return d.Exception(Between(p.From, p.Original))
	case p.From.IsValid():
		return d.Exception(Between(p.From, p.To))
	}
	nft, iptables := p.devices(family)
	if p.AreAnswers {
		nft, iptables = nft+" ct state established,related", iptables+" -m conntrack --ctstate ESTABLISHED,RELATED"
	}
	return d.Exception(nft, iptables)
}

// devices returns conditions on the devices. Those of iptables are on the first ones, and so are those of its chains in nftables: it would
// list a rule with a set without its condition.
func (p *Packets) devices(family string) (nft, iptables string) {
	var all, short []string
	for _, one := range []struct {
		nft, iptables string
		links         []string
	}{{"iifname ", "-i ", p.In}, {"oifname ", "-o ", p.Out}} {
		links := slices.DeleteFunc(slices.Clone(one.links), func(l string) bool { return l == "" })
		if len(links) == 0 {
			continue
		}
		short = append(short, one.iptables+links[0])
		if len(links) > 1 && !strings.HasPrefix(family, "ip") {
			links[0] = "'{ " + strings.Join(links, ", ") + " }'"
		}
		all = append(all, one.nft+links[0])
	}
	return strings.Join(all, " "), strings.Join(short, " ")
}

// Between returns conditions on packets between two addresses.
func Between(from, to netip.Addr) (nft, iptables string) {
	family := map[bool]string{true: "ip6", false: "ip"}[to.Is6()]
	return fmt.Sprintf("%s saddr %s %[1]s daddr %[3]s", family, from, to), fmt.Sprintf("-s %s -d %s", from, to)
}
