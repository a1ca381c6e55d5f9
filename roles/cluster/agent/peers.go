package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// Backends that the agent supports.
const (
	backendVXLAN     = "vxlan"
	backendHostGW    = "host-gw"
	backendWireGuard = "wireguard"
)

// peers are the nodes of a snapshot that this node sends to, by family, and the nodes that are left
// out.
type peers struct {
	v4, v6 []overlay.Peer
	left   []leftOut
	// sources4 and sources6 are the public addresses of the peers. gateways computes them once.
	sources4, sources6 []netip.Addr
	// conflict is set if this node's subnet overlaps another node's that has precedence.
	conflict error
}

// family returns the peers of one family.
func (p *peers) family(v6 bool) []overlay.Peer {
	if v6 {
		return p.v6
	}
	return p.v4
}

// leftOut is a node, or one family of it, that the agent does not program.
type leftOut struct {
	Name   string
	Reason string
}

// verdict is the evaluation of one node's record, independent of other records: the usable
// families, or the reasons why there is none.
type verdict struct {
	node    *cluster.Node
	v4, v6  familyVerdict
	reasons []string
}

// familyVerdict is one family of a verdict. ok is true if the family is usable. mac is the VTEP's
// MAC address. key and port are WireGuard's.
type familyVerdict struct {
	ok   bool
	port uint16
	mac  overlay.MAC
	key  string
}

func (v *verdict) family(v6 bool) *familyVerdict {
	if v6 {
		return &v.v6
	}
	return &v.v4
}

// verdicts are kept between snapshots, because few records change from one to the next.
type verdicts struct {
	config cluster.Config
	own    cluster.Node
	all    []verdict
	// resolved is true if lost4 and lost6 hold the result of resolveOverlaps for all.
	resolved     bool
	lost4, lost6 map[int]string
	// v4 and v6 are the last result of choosePeers. The next one takes their memory: with 10,000 nodes
	// it is 1.4 MB.
	v4, v6 []overlay.Peer
}

// choosePeers evaluates every node of a snapshot. own is this node as it was published. All nodes
// get the same result from the same snapshot: if two nodes have the same subnet, the first by name has
// it. The result is valid until the next call with the same verdicts.
func choosePeers(snap *cluster.Snapshot, config *cluster.Config, own *cluster.Node, known *verdicts) *peers {
	all := known.evaluate(snap.Nodes, config, own)
	p := &peers{}
	if config.EnableIPv4 {
		p.v4 = slices.Grow(known.v4[:0], len(all))
	}
	if config.EnableIPv6 {
		p.v6 = slices.Grow(known.v6[:0], len(all))
	}
	if !known.resolved {
		known.lost4, known.lost6, known.resolved = resolveOverlaps(all, own, false), resolveOverlaps(all, own, true), true
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
		}
		if gone6 {
			p.left = append(p.left, leftOut{v.node.Name, familyName(true) + ": " + why6})
		}
		use4, use6 := v.v4.ok && !gone4, v.v6.ok && !gone6
		if use4 != use6 && config.SharesDevice() {
			continue // both families are needed: see overlay.Peer
		}
		if use4 {
			p.v4 = append(p.v4, known.peer(v, false))
		}
		if use6 {
			p.v6 = append(p.v6, known.peer(v, true))
		}
	}
	known.v4, known.v6 = p.v4, p.v6
	for _, name := range sortedKeys(snap.Faults) {
		if isConfig(name) {
			continue
		}
		p.left = append(p.left, leftOut{name, snap.Faults[name].Error()})
	}
	return p
}

// evaluate returns the verdicts of nodes, which are sorted by name. The overlaps stay resolved if
// no subnet has changed.
func (k *verdicts) evaluate(nodes []*cluster.Node, config *cluster.Config, own *cluster.Node) []verdict {
	if k.config != *config || !k.own.Same(own) {
		*k = verdicts{config: *config, own: *own}
	}
	if !slices.EqualFunc(k.all, nodes, func(v verdict, n *cluster.Node) bool { return v.node.Name == n.Name }) {
		k.all, k.resolved = alignVerdicts(k.all, nodes), false
	}
	for i, n := range nodes {
		v := &k.all[i]
		if v.node != nil && unchanged(v.node, n) {
			v.node = n
			continue
		}
		now := k.evaluateNode(n)
		k.resolved = k.resolved && now.sameSubnets(v)
		*v = now
	}
	return k.all
}

// alignVerdicts returns the old verdict of each node, and an empty one for each new node.
func alignVerdicts(old []verdict, nodes []*cluster.Node) []verdict {
	all := make([]verdict, len(nodes))
	for i, n := range nodes {
		for len(old) > 0 && old[0].node.Name < n.Name {
			old = old[1:]
		}
		if len(old) > 0 && old[0].node.Name == n.Name {
			all[i] = old[0]
		}
	}
	return all
}

// unchanged reports whether two records are equal.
func unchanged(a, b *cluster.Node) bool {
	return a == b || a.Name == b.Name && a.PublicIP == b.PublicIP && a.PublicIPv6 == b.PublicIPv6 && a.BackendType == b.BackendType &&
		slices.Equal(a.PodCIDRs, b.PodCIDRs) && bytes.Equal(a.BackendData, b.BackendData) && bytes.Equal(a.BackendV6Data, b.BackendV6Data)
}

// sameSubnets reports whether two verdicts are of the same node with the same subnets.
func (v *verdict) sameSubnets(o *verdict) bool {
	return v.node.Name == o.node.Name && v.v4.ok == o.v4.ok && v.v6.ok == o.v6.ok && slices.Equal(v.node.PodCIDRs, o.node.PodCIDRs)
}

// evaluateNode evaluates one record. For this node's own record it only finds the subnets.
func (k *verdicts) evaluateNode(n *cluster.Node) verdict {
	v := verdict{node: n}
	for _, v6 := range []bool{false, true} {
		if _, enabled := k.config.Family(v6); !enabled {
			continue
		}
		if n.Name == k.own.Name {
			_, v.family(v6).ok = k.own.PodCIDR(v6)
			continue
		}
		f, err := k.evaluateFamily(n, v6)
		if err != nil {
			v.reasons = append(v.reasons, familyName(v6)+": "+err.Error())
			continue
		}
		*v.family(v6) = f
	}
	switch { // a fault of both families is reported once
	case n.Name == k.own.Name:
	case n.BackendType != k.config.Backend.Type:
		v = verdict{node: n, reasons: []string{fmt.Sprintf("its backend is %.40q, this node's is %q", n.BackendType, k.config.Backend.Type)}}
	case len(n.PodCIDRs) == 0:
		v = verdict{node: n, reasons: []string{"it has no pod network"}}
	}
	return v
}

// peer returns one usable family of a node as a peer.
func (k *verdicts) peer(v *verdict, v6 bool) overlay.Peer {
	p := overlay.Peer{
		Name: v.node.Name, Gateway: k.endpoint(v.node, v6), MAC: v.family(v6).mac, Key: v.family(v6).key, Port: v.family(v6).port,
		Direct: k.config.Backend.Type == backendHostGW || k.config.Backend.DirectRouting,
	}
	p.Subnet, _ = v.node.PodCIDR(v6)
	if k.config.SharesDevice() {
		p.OtherSubnet, _ = v.node.PodCIDR(!v6)
	}
	return p
}

// evaluateFamily evaluates one family of a node.
func (k *verdicts) evaluateFamily(n *cluster.Node, v6 bool) (f familyVerdict, err error) {
	gateway := k.endpoint(n, v6)
	network, _ := k.config.Family(v6)
	outer, _ := k.config.Family(gateway.Is6())
	subnet, ok := n.PodCIDR(v6)
	switch {
	case !ok:
		return f, fmt.Errorf("it has no pod network")
	case !network.Contains(subnet.Addr()) || subnet.Bits() <= network.Bits():
		return f, fmt.Errorf("its pod network %s is not within %s", subnet, network)
	case !gateway.IsValid():
		return f, fmt.Errorf("it has no public address")
	case gateway == k.own.PublicIP || gateway == k.own.PublicIPv6:
		return f, fmt.Errorf("its public address %s is this node's", gateway)
	case outer.Contains(gateway):
		return f, fmt.Errorf("its public address %s is within the pod network %s", gateway, outer)
	}
	switch k.config.Backend.Type {
	case backendVXLAN:
		f.mac, err = k.mac(n, v6)
	case backendWireGuard:
		var w cluster.WireGuard
		w, err = k.wireGuardPeer(n, v6)
		f.key, f.port = w.PublicKey, w.Port
	}
	f.ok = err == nil
	return f, err
}

// mac returns the MAC address of a node's VTEP.
func (k *verdicts) mac(n *cluster.Node, v6 bool) (m overlay.MAC, err error) {
	_, raw := n.Family(v6)
	_, own := k.own.Family(v6)
	vtep, err := cluster.ParseVTEP(raw)
	if err != nil {
		return m, err
	}
	if !vtep.Is(k.config.Backend.VNI) {
		return m, fmt.Errorf("its VNI is %d, this node's is %d", vtep.VNI, k.config.Backend.VNI)
	}
	if its, own := k.config.Backend.PeerPort(vtep.Port), k.config.Backend.VXLANPort(); its != own {
		return m, fmt.Errorf("its UDP port is %d, this node's is %d: give all nodes the same Backend.Port or -vxlan-port", its, own)
	}
	if mine, err := cluster.ParseVTEP(own); err == nil && bytes.Equal(mine.MAC, vtep.MAC) {
		return m, fmt.Errorf("its VTEP's address %s is this node's", vtep.MAC)
	}
	return overlay.MAC(vtep.MAC), nil
}

// resolveOverlaps finds subnets that overlap. It returns the reasons for the nodes that lose their
// subnet, by index. Two subnets are either disjoint or one contains the other. In sorted order, the
// subnets that overlap follow the largest of them.
func resolveOverlaps(all []verdict, own *cluster.Node, v6 bool) map[int]string {
	subnets := make([]nodeSubnet, 0, len(all)+1)
	for i := range all {
		if !all[i].family(v6).ok {
			continue
		}
		subnet, _ := all[i].node.PodCIDR(v6)
		if all[i].node.Name == own.Name {
			subnet, _ = own.PodCIDR(v6)
		}
		subnets = append(subnets, nodeSubnet{subnet, i})
	}
	sorting.Func(subnets, func(a, b nodeSubnet) int {
		return cmp.Or(a.subnet.Addr().Compare(b.subnet.Addr()), cmp.Compare(a.subnet.Bits(), b.subnet.Bits()), cmp.Compare(a.at, b.at))
	})
	losers := map[int]string{}
	mine, have := own.PodCIDR(v6)
	for len(subnets) > 0 {
		n := 1
		for n < len(subnets) && subnets[0].subnet.Contains(subnets[n].subnet.Addr()) {
			n++
		}
		if group := subnets[:n]; n > 1 || have && group[0].subnet.Overlaps(mine) {
			resolveGroup(all, group, own, mine, losers)
		}
		subnets = subnets[n:]
	}
	return losers
}

// nodeSubnet is a subnet of the node at index at.
type nodeSubnet struct {
	subnet netip.Prefix
	at     int
}

// resolveGroup gives each subnet of an overlapping group to the first node by name. This node's
// subnet always stays with this node, because its bridge uses it.
func resolveGroup(all []verdict, group []nodeSubnet, own *cluster.Node, mine netip.Prefix, losers map[int]string) {
	sorting.Func(group, func(a, b nodeSubnet) int { return cmp.Compare(a.at, b.at) })
	h := subnetOwners{assigned: map[netip.Prefix]string{}, above: map[netip.Prefix]string{}, top: largest(group)}
	for _, c := range group {
		name := all[c.at].node.Name
		holder, ok := h.assign(c.subnet, name)
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

// largest returns the prefix length of a group's largest subnet.
func largest(group []nodeSubnet) int {
	return slices.MinFunc(group, func(a, b nodeSubnet) int { return cmp.Compare(a.subnet.Bits(), b.subnet.Bits()) }).subnet.Bits()
}

// subnetOwners holds the owners of the subnets of a group.
type subnetOwners struct {
	assigned map[netip.Prefix]string
	// above has every network that contains an assigned subnet, up to the prefix length top, with
	// the name of one of the owners.
	above map[netip.Prefix]string
	top   int
}

// assign gives a subnet to a node. If the subnet overlaps an assigned one, assign returns the owner
// of that one and false.
func (h *subnetOwners) assign(p netip.Prefix, name string) (holder string, ok bool) {
	if holder, taken := h.above[p]; taken {
		return holder, false
	}
	for bits := p.Bits(); bits >= h.top; bits-- {
		up, _ := p.Addr().Prefix(bits)
		if holder, taken := h.assigned[up]; taken {
			return holder, false
		}
	}
	h.assigned[p] = name
	for bits := p.Bits(); bits >= h.top; bits-- {
		up, _ := p.Addr().Prefix(bits)
		if _, known := h.above[up]; known {
			break // all networks above it are known, too
		}
		h.above[up] = name
	}
	return "", true
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// sortedKeys returns a map's keys in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sorting.Func(keys, strings.Compare)
	return keys
}
