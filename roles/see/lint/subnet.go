package lint

import (
	"cmp"
	"fmt"
	"net/netip"
)

// bridge is a bridge of the node with addresses.
type bridge struct {
	name, network, file string
	subnets             []netip.Prefix
}

// subnets reports a bridge whose subnet overlaps that of another bridge: the node has one route to it, so the pods of one of them get no
// answers. Bridges without an address on the node are networks of their own.
func (c *check) subnets(network string, plugins []*pluginInfo) {
	for _, p := range plugins {
		isRouted := p.value.get("isGateway").isTrue() || p.value.get("isDefaultGateway").isTrue() || p.value.get("ipMasq").isTrue()
		if p.typ != "bridge" || !isRouted {
			continue
		}
		b := bridge{name: cmp.Or(p.value.get("bridge").string(), "cni0"), network: network, file: c.file}
		ipam, path := p.value.get("ipam"), join(p.path, "ipam")
		add := func(r *value, where string) {
			if s, err := netip.ParsePrefix(r.get("subnet").string()); err == nil {
				b.subnets = append(b.subnets, s.Masked())
				c.compare(&b, r.get("subnet"), where+".subnet")
			}
		}
		add(ipam, path)
		if sets := ipam.get("ranges"); sets != nil {
			for i, set := range sets.items {
				for j, r := range set.items {
					add(r, fmt.Sprintf("%s.ranges[%d][%d]", path, i, j))
				}
			}
		}
		c.bridges = append(c.bridges, b)
	}
}

// egress reports an egressAddress in a subnet that the network's IPAM plugin gives containers: ADD refuses it.
func (c *check) egress(plugins []*pluginInfo) {
	for _, p := range plugins {
		given := p.value.get("egressAddress")
		if given == nil || p.typ != "bridge" && p.typ != "ptp" {
			continue
		}
		ipam := p.value.get("ipam")
		subnets := []*value{ipam.get("subnet")}
		if sets := ipam.get("ranges"); sets != nil {
			for _, set := range sets.items {
				for _, r := range set.items {
					subnets = append(subnets, r.get("subnet"))
				}
			}
		}
		if addresses := ipam.get("addresses"); addresses != nil {
			for _, a := range addresses.items {
				subnets = append(subnets, a.get("address"))
			}
		}
		for i, v := range append([]*value{given}, given.items...) {
			path := join(p.path, "egressAddress")
			if i > 0 {
				path += fmt.Sprintf("[%d]", i-1)
			}
			a, err := netip.ParseAddr(v.string())
			for _, of := range subnets {
				if s, parseErr := netip.ParsePrefix(of.string()); err == nil && parseErr == nil && s.Contains(a) {
					c.fault(v, path, "use an address of the node outside of it", "%s is in the containers' own subnet %s", a, s.Masked())
				}
			}
		}
	}
}

// compare compares the last subnet of a bridge with those of other bridges.
func (c *check) compare(b *bridge, at *value, path string) {
	s := b.subnets[len(b.subnets)-1]
	for _, other := range c.bridges {
		if other.name == b.name || other.file == b.file && other.network == b.network {
			continue
		}
		for _, o := range other.subnets {
			if o.Overlaps(s) {
				c.fault(at, path, "give each bridge a subnet of its own", "%s of %s overlaps %s of %s, the bridge of the network %q in %s: the pods of one of them have no egress", s, b.name, o, other.name, other.network, other.file)
			}
		}
	}
}
