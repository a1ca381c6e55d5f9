package hostlocal

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
)

// setBuilder parses the range sets of a configuration and collects the faults.
type setBuilder struct {
	faults *roles.Faults
	// exclude applies to all ranges.
	exclude []leasing.Interval
	sets    []pendingSet
	// count is the number of configured sets, including invalid ones.
	count int
}

type pendingSet struct {
	path   string
	ranges []pendingRange
}

type pendingRange struct {
	leasing.Range
	path string
	cuts []leasing.Interval
}

// addOld adds the range of the older form. Without a subnet it ignores the other keys, as the
// reference does.
func (b *setBuilder) addOld(c *IPAM) {
	if c.Subnet == "" {
		return
	}
	b.count++
	r := Range{Subnet: c.Subnet, RangeStart: c.RangeStart, RangeEnd: c.RangeEnd, Gateway: c.Gateway}
	if p, ok := b.parseRange("ipam", r); ok {
		b.sets = append(b.sets, pendingSet{"ipam.subnet", []pendingRange{p}})
	}
}

// Limits of a list of range sets. The kernel compares each new address of an interface with
// all others, so an ADD with 8192 sets takes seconds.
const (
	maxSets   = 1024
	maxRanges = 8192
)

// addAll adds the range sets at a JSON path, unless there are too many.
func (b *setBuilder) addAll(path string, sets [][]Range) {
	ranges := 0
	for _, s := range sets {
		ranges += len(s)
	}
	if len(sets) > maxSets || ranges > maxRanges {
		b.count += len(sets)
		b.faults.Addf(path, "has %d range sets with %d ranges, at most %d sets with %d ranges are supported: a container gets an address of each set; move ranges into one set, and merge adjacent subnets",
			len(sets), ranges, maxSets, maxRanges)
		return
	}
	for i, s := range sets {
		b.add(fmt.Sprintf("%s[%d]", path, i), s)
	}
}

// add adds one range set.
func (b *setBuilder) add(path string, ranges []Range) {
	b.count++
	if len(ranges) == 0 {
		b.faults.Addf(path, "is an empty range set")
		return
	}
	set := pendingSet{path: path}
	for i, r := range ranges {
		p, ok := b.parseRange(fmt.Sprintf("%s[%d]", path, i), r)
		if !ok {
			continue
		}
		if len(set.ranges) > 0 && set.ranges[0].Bounds.Lo.BitLen() != p.Bounds.Lo.BitLen() {
			b.faults.Addf(p.path+".subnet", "%s is of another address family than %s: move it to a separate range set", p.Subnet, set.ranges[0].Subnet)
			continue
		}
		set.ranges = append(set.ranges, p)
	}
	if len(set.ranges) > 0 {
		b.sets = append(b.sets, set)
	}
}

// parseRange parses a range and sets the defaults that depend on its subnet.
func (b *setBuilder) parseRange(path string, r Range) (pendingRange, bool) {
	subnet, ok := b.parseSubnet(path+".subnet", r.Subnet)
	if !ok {
		return pendingRange{}, false
	}
	p := pendingRange{path: path}
	p.Subnet = subnet
	hosts := leasing.Hosts(subnet)
	p.Bounds = hosts
	p.Gateway = hosts.Lo
	if subnet.IsSingleIP() {
		p.Gateway = netip.Addr{}
	}
	good := b.address(path+".rangeStart", r.RangeStart, &p.Bounds.Lo)
	good = b.address(path+".rangeEnd", r.RangeEnd, &p.Bounds.Hi) && good
	hasGateway := b.address(path+".gateway", r.Gateway, &p.Gateway)
	inside := func(key string, a netip.Addr) {
		if !subnet.Contains(a) {
			b.faults.Addf(path+key, "%s is not in %s", a, subnet)
			good = false
		}
	}
	if good {
		inside(".rangeStart", p.Bounds.Lo)
		inside(".rangeEnd", p.Bounds.Hi)
	}
	if good && p.Bounds.Hi.Less(p.Bounds.Lo) {
		b.faults.Addf(path+".rangeEnd", "%s is before rangeStart %s", p.Bounds.Hi, p.Bounds.Lo)
		good = false
	}
	// A subnet without room for a gateway may have it elsewhere. A link-local gateway is on each link.
	mayBeElsewhere := subnet.Bits() >= subnet.Addr().BitLen()-1 || p.Gateway.IsLinkLocalUnicast()
	if hasGateway && r.Gateway != "" && (!mayBeElsewhere || p.Gateway.Is4() != subnet.Addr().Is4()) {
		inside(".gateway", p.Gateway)
	}
	p.cuts = leasing.ParseExclude(b.faults, path+".exclude", r.Exclude)
	for i, c := range p.cuts {
		if c.Lo.IsValid() && !c.Overlaps(leasing.Whole(subnet)) {
			b.faults.Addf(fmt.Sprintf("%s.exclude[%d]", path, i), "%s is not in %s", c, subnet)
		}
	}
	if subnet.Addr().Is4() {
		p.cuts = append(p.cuts, leasing.Subtract(leasing.Whole(subnet), []leasing.Interval{hosts})...)
	}
	return p, good
}

func (b *setBuilder) parseSubnet(path, text string) (netip.Prefix, bool) {
	if text == "" {
		b.faults.Addf(path, "is required, a CIDR such as 10.1.0.0/16")
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		b.faults.Addf(path, "%q is not a CIDR, such as 10.1.0.0/16", text)
		return netip.Prefix{}, false
	case p != p.Masked():
		b.faults.Addf(path, "%s has host bits set: the network is %s", p, p.Masked())
		return netip.Prefix{}, false
	}
	return p, b.faults.Check(path, roles.CheckNetwork(p))
}

// address replaces a default by the configured address, if there is one.
func (b *setBuilder) address(path, text string, into *netip.Addr) bool {
	if text == "" {
		return true
	}
	a, err := roles.ParseAddr(text)
	if err == nil {
		*into = a
	}
	return b.faults.Check(path, err)
}

// finish compares the sets with each other and computes the addresses to allocate.
func (b *setBuilder) finish(cniVersion string) []leasing.Set {
	b.checkFamilies(cniVersion)
	b.checkOverlaps()
	common := slices.Clone(b.exclude)
	for _, s := range b.sets {
		for _, r := range s.ranges {
			if r.Gateway.IsValid() {
				common = append(common, leasing.Single(r.Gateway))
			}
		}
	}
	common = leasing.Merge(common)
	var out []leasing.Set
	for _, s := range b.sets {
		var set leasing.Set
		usable := false
		for _, r := range s.ranges {
			r.Free = leasing.Subtract(r.Bounds, append(r.cuts, leasing.Overlapping(common, r.Bounds)...))
			usable = usable || len(r.Free) > 0
			set = append(set, r.Range)
		}
		if !usable {
			b.faults.Addf(s.path, "has no usable address: all are gateways or excluded")
		}
		out = append(out, set)
	}
	return out
}

// checkFamilies reports a second set of a family before spec 0.3.0, whose results have one address
// of each family.
func (b *setBuilder) checkFamilies(cniVersion string) {
	if !strings.HasPrefix(cniVersion, "0.1.") && !strings.HasPrefix(cniVersion, "0.2.") {
		return
	}
	seen := map[int]bool{}
	for _, s := range b.sets {
		family := s.ranges[0].Bounds.Lo.BitLen()
		if seen[family] {
			b.faults.Addf(s.path, "cniVersion %s allows one address of each family: use 0.3.0 or newer", cniVersion)
		}
		seen[family] = true
	}
}

func (b *setBuilder) checkOverlaps() {
	var all []pendingRange
	for _, s := range b.sets {
		all = append(all, s.ranges...)
	}
	for _, pair := range leasing.Conflicts(len(all), func(i int) leasing.Interval { return all[i].Bounds }) {
		r, o := all[pair[0]], all[pair[1]]
		b.faults.Addf(r.path, "%s overlaps with %s of %s", r.Bounds, o.Bounds, o.path)
	}
}
