package cloud

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/roles/ipam/cloud/feed"
	"github.com/cnibox/cnibox/store"
)

// anyMAC is in place of the MAC of a NIC whose MAC the cloud does not report.
const anyMAC = "*"

// planOf returns a plan for the cloud's addresses. It has one set for each family, whose ranges are
// the subnets of the NICs in order of preference. NICs that this host does not have and addresses
// of the host itself are left out. With nil links these are not checked. why explains an empty set.
func (s *settings) planOf(source *store.CloudSource, links []netops.LinkInfo) (p *leasing.Plan, why string) {
	c := s.plan
	p = &c
	p.Reuse = &leasing.Reuse{Cooldown: s.cooldown, Hint: hint(source)}
	p.Sets = make([]leasing.Set, len(s.bits))
	nics, why := s.nics(source, links)
	taken := ownAddresses(source, links)
	for i, bits := range s.bits {
		var all []ranked
		for _, n := range nics {
			for _, sub := range n.Subnets {
				if sub.Prefix.Addr().BitLen() != bits || s.subnet.IsValid() && sub.Prefix != s.subnet {
					continue
				}
				if r := rangeOf(source.Name, n.MAC, &sub, taken); len(r.Free) > 0 {
					all = append(all, ranked{r, n.Primary, n.Device, r.Count()})
				}
			}
		}
		sorting.Stable(all, ranked.compare)
		for _, r := range all {
			p.Sets[i] = append(p.Sets[i], r.Range)
		}
	}
	return p, why
}

func version(bits int) int {
	if bits == 32 {
		return 4
	}
	return 6
}

// hint returns the explanation for an exhausted pool.
func hint(source *store.CloudSource) string {
	return fmt.Sprintf("%d withdrawn by the cloud while in use; kubelet's max-pods must not exceed the pool", len(source.Withdrawn))
}

// ranked is a range with the values that determine its order.
type ranked struct {
	leasing.Range
	primary bool
	device  int
	size    uint64
}

// compare orders secondary NICs before the primary one, and larger subnets first, as
// azure-vnet-ipam does.
func (r ranked) compare(o ranked) int {
	if r.primary != o.primary {
		if r.primary {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(o.size, r.size), cmp.Compare(r.device, o.device), r.Subnet.Addr().Compare(o.Subnet.Addr()))
}

// isName reports whether ipam.nic is the name of a link.
func isName(nic string) bool {
	_, err := net.ParseMAC(nic)
	return nic != "" && err != nil
}

// nics returns the source's NICs that match the configuration and exist on this host. why explains
// the others.
func (s *settings) nics(source *store.CloudSource, links []netops.LinkInfo) (out []store.CloudNIC, why string) {
	mac := s.nic
	here := map[string]bool{}
	for _, l := range links {
		here[l.MAC] = true
		if l.Name == s.nic {
			mac = l.MAC
		}
	}
	if isName(mac) && links == nil {
		mac = ""
	}
	var absent, others []string
	for _, n := range source.NICs {
		switch {
		case n.MAC == anyMAC:
			out = append(out, n)
		case mac != "" && n.MAC != mac:
			others = append(others, n.MAC)
		case links != nil && !here[n.MAC]:
			absent = append(absent, n.MAC)
		default:
			out = append(out, n)
		}
	}
	if len(absent) > 0 {
		why += fmt.Sprintf("; no link has the MAC of its NIC %s", strings.Join(absent, ", "))
	}
	if s.subnet.IsValid() && !slices.ContainsFunc(out, func(n store.CloudNIC) bool {
		return slices.ContainsFunc(n.Subnets, func(sub store.CloudSubnet) bool { return sub.Prefix == s.subnet })
	}) {
		why += fmt.Sprintf("; it has no subnet %s, which ipam.subnet requires", s.subnet)
	}
	if len(others) > 0 {
		why += fmt.Sprintf("; NIC %s is not %s, which the configuration requires", strings.Join(others, ", "), s.nic)
	}
	return out, why
}

// serviceOf returns the address of the metadata service. A pod with that address would receive the
// next requests.
func serviceOf(source *store.CloudSource) netip.Addr {
	o, _ := feed.OptionsOf(source.Name)
	where := o.URL
	if p, ok := metadata.Lookup(cmp.Or(source.Provider, o.Provider)); ok && where == "" {
		where = p.Default
	}
	u, err := url.Parse(where)
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a
}

// ownAddresses returns addresses that pods must not get: the node's own according to the cloud and
// the kernel, those of the cloud's services, and those that the cloud has withdrawn.
func ownAddresses(source *store.CloudSource, links []netops.LinkInfo) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	for _, l := range links {
		for _, a := range l.Addresses {
			own[a.Addr()] = true
		}
	}
	for _, n := range source.NICs {
		for _, s := range n.Subnets {
			for _, a := range s.Own {
				own[a] = true
			}
			own[s.Gateway] = true
		}
		for _, a := range n.DNS {
			own[a] = true
		}
	}
	own[serviceOf(source)] = true
	for a := range source.Withdrawn {
		own[a] = true
	}
	return own
}

// rangeOf returns a subnet of a NIC as a range, without the taken addresses and those that a host
// cannot have.
func rangeOf(source, mac string, s *store.CloudSubnet, taken map[netip.Addr]bool) leasing.Range {
	r := leasing.Range{Subnet: s.Prefix, Bounds: leasing.Whole(s.Prefix), Gateway: s.Gateway, Source: source, NIC: mac}
	hosts := leasing.Hosts(s.Prefix)
	unusable := func(a netip.Addr) bool { return taken[a] || r.Bounds.Contains(a) && !hosts.Contains(a) }
	for _, a := range s.Addresses {
		if unusable(a) {
			continue
		}
		if last := len(r.Free) - 1; last >= 0 && r.Free[last].Hi.Next() == a { // addresses are usually consecutive
			r.Free[last].Hi = a
			continue
		}
		r.Free = append(r.Free, leasing.Single(a))
	}
	for _, p := range s.Ranges {
		whole := leasing.Whole(p)
		cuts := leasing.Subtract(r.Bounds, []leasing.Interval{hosts})
		for a := range taken {
			if a.IsValid() && whole.Contains(a) {
				cuts = append(cuts, leasing.Single(a))
			}
		}
		r.Free = append(r.Free, leasing.Subtract(whole, cuts)...)
	}
	r.Free = leasing.Merge(r.Free)
	for _, f := range r.Free {
		if f.Lo.Less(r.Bounds.Lo) {
			r.Bounds.Lo = f.Lo
		}
		if r.Bounds.Hi.Less(f.Hi) {
			r.Bounds.Hi = f.Hi
		}
	}
	return r
}
