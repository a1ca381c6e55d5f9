package clusterrange

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/call/sticky"
	"github.com/cnibox/cnibox/store"
)

// newHandler parses a configuration. Its error joins all faults.
func newHandler(conf []byte) (*handler, error) {
	c := new(Conf)
	if err := roles.Decode(conf, c); err != nil {
		return nil, err
	}
	var f roles.Faults
	if c.IPAM == nil {
		f.Addf("ipam", "is required")
		return nil, f.Err()
	}
	ipam := c.IPAM
	h := &handler{network: c.Name, dns: ipam.DNS, pool: store.RangePool(c.Name, ipam.NetworkName, ipam.Overlapping == nil || *ipam.Overlapping)}
	if strings.ContainsRune(ipam.NetworkName, 0) {
		f.Addf("ipam.network_name", "holds a NUL byte")
	}
	if s := string(ipam.Addresses); s != "" && s != "null" && s != "[]" {
		f.Addf("ipam.addresses", "is not supported: attach a second network with ipam.type static")
	}
	p := &leasing.Plan{DataDir: store.RangeDir(h.pool), Reuse: &leasing.Reuse{Hint: "the agent leases blocks of the range for this node"}}
	p.Within = h.within
	h.Allocator = &leasing.Allocator{Plan: p, Life: leasing.NodeLiveness()}
	var gateway netip.Addr
	if ipam.Gateway != "" {
		var err error
		gateway, err = roles.ParseAddr(ipam.Gateway)
		f.Check("ipam.gateway", err)
	}
	if ipam.Range != "" || len(ipam.IPRanges) == 0 {
		h.add(&f, "ipam", Range{ipam.Range, ipam.RangeStart, ipam.RangeEnd, ipam.Exclude}, gateway)
	}
	for i, r := range ipam.IPRanges {
		h.add(&f, fmt.Sprintf("ipam.ipRanges[%d]", i), r, gateway)
	}
	h.checkFamilies(&f, c.CNIVersion)
	h.ipamClaim = c.Args.CNI.IPAMClaim
	if s := ipam.Sticky; s != nil {
		if s.Key == "none" {
			f.Addf("ipam.sticky.key", "%q keeps no address: use \"pod\", \"container-name\" or \"mac\"", s.Key)
		}
		h.sticky = sticky.Parse(&f, "ipam.sticky", &sticky.Conf{Key: s.Key, TTL: s.TTL})
	}
	h.routes = roles.ParseRoutes(&f, "ipam.routes", ipam.Routes)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return h, nil
}

// checkFamilies reports a second range of a family before spec 0.3.0, whose results have one address of
// each family.
func (a *handler) checkFamilies(f *roles.Faults, version string) {
	if version != "" && !strings.HasPrefix(version, "0.1.") && !strings.HasPrefix(version, "0.2.") {
		return
	}
	seen := map[bool]bool{}
	for _, s := range a.Plan.Sets {
		v4 := s[0].Subnet.Addr().Is4()
		if seen[v4] {
			f.Addf("ipam.ipRanges", "cniVersion %q allows one address of each family: use 0.3.0 or newer", version)
		}
		seen[v4] = true
	}
}

// add parses a range and adds it as a set. As whereabouts does, it ignores host bits in a range.
func (a *handler) add(f *roles.Faults, path string, c Range, gateway netip.Addr) {
	text := c.Range
	if first, rest, ok := strings.Cut(text, "-"); ok {
		if c.RangeStart != "" || c.RangeEnd != "" {
			f.Addf(path+".range", "has a first and a last address, and range_start or range_end too: give one of both")
			return
		}
		c.RangeStart = first
		c.RangeEnd, _, _ = strings.Cut(rest, "/")
		text = rest
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		f.Addf(path+".range", "%q is not a CIDR, such as 192.168.2.0/24, nor addresses as 192.168.2.10-192.168.2.99/24", c.Range)
		return
	}
	prefix = prefix.Masked()
	if !f.Check(path+".range", roles.CheckNetwork(prefix)) {
		return
	}
	r := leasing.Range{Subnet: prefix, Bounds: leasing.Hosts(prefix)}
	if gateway.IsValid() && gateway.BitLen() == prefix.Addr().BitLen() {
		r.Gateway = gateway
	}
	for _, bound := range []struct {
		key, text string
		to        *netip.Addr
	}{{".range_start", c.RangeStart, &r.Bounds.Lo}, {".range_end", c.RangeEnd, &r.Bounds.Hi}} {
		if bound.text == "" {
			continue
		}
		b, err := roles.ParseAddr(bound.text)
		switch {
		case err != nil:
			f.Addf(path+bound.key, "%v", err)
			return
		case !prefix.Contains(b):
			f.Addf(path+bound.key, "%s is not in %s", b, prefix)
			return
		case leasing.Hosts(prefix).Contains(b): // else the default, as with whereabouts
			*bound.to = b
		}
	}
	if r.Bounds.Hi.Less(r.Bounds.Lo) {
		f.Addf(path+".range_end", "%s is before range_start %s", r.Bounds.Hi, r.Bounds.Lo)
		return
	}
	cuts := leasing.ParseExclude(f, path+".exclude", c.Exclude)
	if r.Gateway.IsValid() {
		cuts = append(cuts, leasing.Single(r.Gateway))
	}
	r.Free = leasing.Subtract(r.Bounds, cuts)
	if len(r.Free) == 0 {
		f.Addf(path+".range", "%s has no usable address: all are excluded", prefix)
		return
	}
	a.Plan.Sets = append(a.Plan.Sets, leasing.Set{r})
}

// within returns a range for each block of this node, so that the first blocks are used up first and the last
// ones become empty.
func (a *handler) within(tx *store.Tx, h *roles.Host) ([]leasing.Set, error) {
	blocks, err := tx.RangeBlocks()
	if err != nil {
		return nil, err
	}
	out := make([]leasing.Set, len(a.Plan.Sets))
	for i, s := range a.Plan.Sets {
		for j := range blocks {
			b := &blocks[j]
			if b.Pool != a.pool || !b.Valid(h.Now(), h.SinceBoot()) {
				continue
			}
			r := s[0]
			r.Free = leasing.Within(s[0].Free, leasing.Interval{Lo: b.First, Hi: b.Last})
			if len(r.Free) > 0 {
				out[i] = append(out[i], r)
			}
		}
		if len(out[i]) == 0 {
			r := s[0]
			r.Free = nil
			out[i] = leasing.Set{r}
		}
	}
	return out, nil
}

// Demands returns what the network in a file, such as one of /etc/cni/net.d, will demand of the agent. It is nil if the file is not
// valid, or if no block is leased for the network, because it uses another role or keeps addresses for pods.
func Demands(file []byte) []store.RangeDemand {
	_, conf, err := leasing.PluginConf(file, names()...)
	if err != nil {
		return nil
	}
	a, err := newHandler(conf)
	if err != nil || a.moves() {
		return nil
	}
	return a.demands(time.Time{})
}

// demands returns what the network demands of the agent.
func (a *handler) demands(now time.Time) (out []store.RangeDemand) {
	for i, s := range a.Plan.Sets {
		d := store.RangeDemand{Network: a.network, Set: i, Pool: a.pool, Bits: s[0].Subnet.Bits(), Time: now.UTC()}
		for _, f := range s[0].Free {
			d.Free = append(d.Free, [2]netip.Addr{f.Lo, f.Hi})
		}
		out = append(out, d)
	}
	return out
}
