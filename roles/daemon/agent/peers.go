package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// Backends that the agent programs.
const (
	backendVXLAN  = "vxlan"
	backendHostGW = "host-gw"
)

// peers is what a node makes of a snapshot: whom it sends to, by family, and
// who is left out.
type peers struct {
	v4, v6 []overlay.Peer
	left   []leftOut
	// sources4 and sources6 are their addresses.
	sources4, sources6 []netip.Addr
	// conflict tells whose subnet this node's overlaps, if that one's claim is the
	// better one.
	conflict error
}

// leftOut is a node, or one family of it, that nothing is programmed for.
type leftOut struct {
	Name   string
	Reason string
}

// verdict is what one node's record comes to by itself, in either family, or why
// it comes to nothing.
type verdict struct {
	node    *cluster.Node
	v4, v6  half
	reasons []string
}

// half is one family of a verdict: ok if there is a peer, whose VTEP has that MAC.
type half struct {
	ok  bool
	mac string
}

func (v *verdict) of(v6 bool) *half {
	if v6 {
		return &v.v6
	}
	return &v.v4
}

// verdicts are kept from one snapshot to the next: few records change.
type verdicts struct {
	config cluster.Config
	own    cluster.Node
	all    []verdict
	// settled: lost4 and lost6 are what the contest between all came to.
	settled      bool
	lost4, lost6 map[int]string
}

// choosePeers judges every node of a snapshot. own is this node as it was
// acquired. The same snapshot gives every node the same answer to who holds a
// subnet that two ask for: the first by name.
func choosePeers(snap *cluster.Snapshot, config *cluster.Config, own *cluster.Node, known *verdicts) *peers {
	all := known.judge(snap.Nodes, config, own)
	p := &peers{}
	if config.EnableIPv4 {
		p.v4 = make([]overlay.Peer, 0, len(all))
	}
	if config.EnableIPv6 {
		p.v6 = make([]overlay.Peer, 0, len(all))
	}
	if !known.settled {
		known.lost4, known.lost6, known.settled = contest(all, own, false), contest(all, own, true), true
	}
	lost4, lost6 := known.lost4, known.lost6
	for i := range all {
		v := &all[i]
		why4, gone4 := lost4[i]
		why6, gone6 := lost6[i]
		if v.node.Name == own.Name {
			if gone4 || gone6 {
				p.conflict = fmt.Errorf("%w: %s", cluster.ErrConflict, cmp.Or(why4, why6))
			}
			continue
		}
		for _, reason := range v.reasons {
			p.left = append(p.left, leftOut{v.node.Name, reason})
		}
		if gone4 {
			p.left = append(p.left, leftOut{v.node.Name, familyName(false) + ": " + why4})
		} else if v.v4.ok {
			p.v4 = append(p.v4, known.peer(v, false))
		}
		if gone6 {
			p.left = append(p.left, leftOut{v.node.Name, familyName(true) + ": " + why6})
		} else if v.v6.ok {
			p.v6 = append(p.v6, known.peer(v, true))
		}
	}
	for _, name := range sortedKeys(snap.Faults) {
		if isConfig(name) {
			continue
		}
		p.left = append(p.left, leftOut{name, snap.Faults[name].Error()})
	}
	return p
}

// judge gives the verdicts on nodes, which are in order of their names. A contest
// stays settled where every claim stays in its place.
func (k *verdicts) judge(nodes []cluster.Node, config *cluster.Config, own *cluster.Node) []verdict {
	if k.config != *config || !k.own.Same(own) {
		*k = verdicts{config: *config, own: *own}
	}
	all, old := make([]verdict, len(nodes)), k.all
	k.settled = k.settled && len(all) == len(k.all)
	for i := range nodes {
		n := &nodes[i]
		for len(old) > 0 && old[0].node.Name < n.Name {
			old = old[1:]
		}
		if len(old) > 0 && unchanged(old[0].node, n) {
			all[i], all[i].node = old[0], n
		} else {
			all[i] = k.judgeNode(n)
		}
		k.settled = k.settled && all[i].claimsLike(&k.all[i])
	}
	k.all = all
	return all
}

// unchanged tells whether a record is as it was.
func unchanged(a, b *cluster.Node) bool {
	return a.Name == b.Name && a.PublicIP == b.PublicIP && a.PublicIPv6 == b.PublicIPv6 && a.BackendType == b.BackendType &&
		slices.Equal(a.PodCIDRs, b.PodCIDRs) && bytes.Equal(a.BackendData, b.BackendData) && bytes.Equal(a.BackendV6Data, b.BackendV6Data)
}

// claimsLike tells whether two verdicts are of one node with the same subnets.
func (v *verdict) claimsLike(o *verdict) bool {
	return v.node.Name == o.node.Name && v.v4.ok == o.v4.ok && v.v6.ok == o.v6.ok && slices.Equal(v.node.PodCIDRs, o.node.PodCIDRs)
}

// judgeNode judges one record. This node's own has its subnets only.
func (k *verdicts) judgeNode(n *cluster.Node) verdict {
	v := verdict{node: n}
	for _, v6 := range []bool{false, true} {
		if (v6 && !k.config.EnableIPv6) || (!v6 && !k.config.EnableIPv4) {
			continue
		}
		if n.Name == k.own.Name {
			_, v.of(v6).ok = subnetOf(&k.own, v6)
			continue
		}
		mac, err := k.judgeFamily(n, v6)
		if err != nil {
			v.reasons = append(v.reasons, familyName(v6)+": "+err.Error())
			continue
		}
		*v.of(v6) = half{true, mac}
	}
	switch { // what both families suffer from is told once
	case n.Name == k.own.Name:
	case n.BackendType != k.config.Backend.Type:
		v = verdict{node: n, reasons: []string{fmt.Sprintf("its backend is %.40q, this node's is %q", n.BackendType, k.config.Backend.Type)}}
	case len(n.PodCIDRs) == 0:
		v = verdict{node: n, reasons: []string{"it has no pod network"}}
	}
	return v
}

// peer is one family of a node that was judged to be one.
func (k *verdicts) peer(v *verdict, v6 bool) overlay.Peer {
	p := overlay.Peer{
		Name: v.node.Name, Gateway: v.node.PublicIP, MAC: v.of(v6).mac,
		Direct: k.config.Backend.Type != backendVXLAN || k.config.Backend.DirectRouting,
	}
	if v6 {
		p.Gateway = v.node.PublicIPv6
	}
	p.Subnet, _ = subnetOf(v.node, v6)
	return p
}

// judgeFamily judges one family of a node, and tells its VTEP's address.
func (k *verdicts) judgeFamily(n *cluster.Node, v6 bool) (mac string, err error) {
	gateway, ownGateway, network := n.PublicIP, k.own.PublicIP, k.config.Network
	if v6 {
		gateway, ownGateway, network = n.PublicIPv6, k.own.PublicIPv6, k.config.IPv6Network
	}
	subnet, ok := subnetOf(n, v6)
	switch {
	case !ok:
		return "", fmt.Errorf("it has no pod network")
	case !network.Contains(subnet.Addr()) || subnet.Bits() <= network.Bits():
		return "", fmt.Errorf("its pod network %s is not within %s", subnet, network)
	case !gateway.IsValid():
		return "", fmt.Errorf("it has no public address")
	case gateway == ownGateway:
		return "", fmt.Errorf("its public address %s is this node's", gateway)
	case network.Contains(gateway):
		return "", fmt.Errorf("its public address %s is within the pod network %s", gateway, network)
	}
	if k.config.Backend.Type != backendVXLAN {
		return "", nil
	}
	return k.mac(n, v6)
}

// mac is the address of a node's VTEP.
func (k *verdicts) mac(n *cluster.Node, v6 bool) (string, error) {
	raw, own := n.BackendData, k.own.BackendData
	if v6 {
		raw, own = n.BackendV6Data, k.own.BackendV6Data
	}
	vtep, err := cluster.ParseVTEP(raw)
	if err != nil {
		return "", err
	}
	if !vtep.Is(k.config.Backend.VNI) {
		return "", fmt.Errorf("its VNI is %d, this node's is %d", vtep.VNI, k.config.Backend.VNI)
	}
	if mine, err := cluster.ParseVTEP(own); err == nil && bytes.Equal(mine.MAC, vtep.MAC) {
		return "", fmt.Errorf("its VTEP's address %s is this node's", vtep.MAC)
	}
	return vtep.MAC.String(), nil
}

// contest finds out who has subnets that overlap, and tells of those who have
// not, by their place, why. Of two subnets one holds the other or they are apart:
// in order, those that overlap follow the largest of them.
func contest(all []verdict, own *cluster.Node, v6 bool) map[int]string {
	claims := make([]claim, 0, len(all)+1)
	for i := range all {
		if !all[i].of(v6).ok {
			continue
		}
		subnet, _ := subnetOf(all[i].node, v6)
		if all[i].node.Name == own.Name {
			subnet, _ = subnetOf(own, v6)
		}
		claims = append(claims, claim{subnet, i})
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(a.subnet.Addr().Compare(b.subnet.Addr()), cmp.Compare(a.subnet.Bits(), b.subnet.Bits()), cmp.Compare(a.at, b.at))
	})
	losers := map[int]string{}
	mine, have := subnetOf(own, v6)
	for len(claims) > 0 {
		n := 1
		for n < len(claims) && claims[0].subnet.Contains(claims[n].subnet.Addr()) {
			n++
		}
		if group := claims[:n]; n > 1 || have && group[0].subnet.Overlaps(mine) {
			settle(all, group, own, mine, losers)
		}
		claims = claims[n:]
	}
	return losers
}

// claim is that of the node at a place in a list to a subnet.
type claim struct {
	subnet netip.Prefix
	at     int
}

// settle gives each subnet of a group to the first by name, but this node's to
// this node alone: there it is on a bridge.
func settle(all []verdict, group []claim, own *cluster.Node, mine netip.Prefix, losers map[int]string) {
	slices.SortFunc(group, func(a, b claim) int { return cmp.Compare(a.at, b.at) })
	h := holdings{held: map[netip.Prefix]string{}, above: map[netip.Prefix]string{}, top: largest(group)}
	for _, c := range group {
		name := all[c.at].node.Name
		holder, ok := h.take(c.subnet, name)
		switch {
		case name != own.Name && mine.IsValid() && c.subnet.Overlaps(mine):
			losers[c.at] = fmt.Sprintf("its pod network %s overlaps this node's %s", c.subnet, mine)
		case !ok && name == own.Name:
			losers[c.at] = fmt.Sprintf("pod network %s overlaps that of node %q", c.subnet, holder)
		case !ok:
			losers[c.at] = fmt.Sprintf("its pod network %s overlaps that of node %q", c.subnet, holder)
		}
	}
}

// largest is the length of a group's largest subnet.
func largest(group []claim) int {
	return slices.MinFunc(group, func(a, b claim) int { return cmp.Compare(a.subnet.Bits(), b.subnet.Bits()) }).subnet.Bits()
}

// holdings tell who holds which subnets of a group.
type holdings struct {
	held map[netip.Prefix]string
	// above has every network that holds a held one, with one of its holders, up
	// to the length top.
	above map[netip.Prefix]string
	top   int
}

// take gives a subnet to a node, unless it overlaps another's, whom it tells.
func (h *holdings) take(p netip.Prefix, name string) (holder string, ok bool) {
	if holder, taken := h.above[p]; taken {
		return holder, false
	}
	for bits := p.Bits(); bits >= h.top; bits-- {
		up, _ := p.Addr().Prefix(bits)
		if holder, taken := h.held[up]; taken {
			return holder, false
		}
	}
	h.held[p] = name
	for bits := p.Bits(); bits >= h.top; bits-- {
		up, _ := p.Addr().Prefix(bits)
		if _, known := h.above[up]; known {
			break // and so is all above it
		}
		h.above[up] = name
	}
	return "", true
}

// subnetOf is a node's pod network of one family.
func subnetOf(n *cluster.Node, v6 bool) (netip.Prefix, bool) {
	for _, p := range n.PodCIDRs {
		if p.Addr().Is6() == v6 {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// sortedKeys are a map's keys in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, strings.Compare)
	return keys
}
