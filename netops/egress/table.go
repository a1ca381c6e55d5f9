package egress

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/reach"
)

// markBits are the bits of a packet's mark that have the index of its egress address, with markSet. Package podtable lists the bits
// that others use.
const (
	markBits = 0x3f
	markSet  = 0x20
)

func markOf(index int) uint32 { return markSet | uint32(index) }

// Priorities of the chains. Packets are marked after the translation of services' addresses. Their source is translated before all
// other chains, because the first one decides, and checked behind all of them.
const (
	priorityMark  = -100 + 1 // NF_IP_PRI_NAT_DST
	priorityNAT   = nft.PrioritySourceNAT - 2
	priorityCheck = 300 // NF_IP_PRI_CONNTRACK_HELPER
)

// Names of chains.
const (
	insideChain  = "inside"
	refusedChain = "refused"
	strayChain   = "stray"
)

func ownTable() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox_egress"} }

// Mark returns the mark of the packets that leave with the address.
func (a *Address) Mark() uint32 { return markOf(a.Index) }

func addressChain(index int) string { return fmt.Sprintf("address_%d", index) }

func announce(link int, mac []byte, a netip.Addr) error {
	return reach.Announce(link, net.HardwareAddr(mac), a)
}

// shape returns the part of a Spec from which the rules are made. The rest are elements.
func (s *Spec) shape() Spec {
	return Spec{
		Networks: slices.Clone(s.Networks), Near: slices.Clone(s.Near), Tunnels: slices.Clone(s.Tunnels), Arrivals: slices.Clone(s.Arrivals), Addresses: slices.Clone(s.Addresses),
	}
}

func equalShapes(a, b Spec) bool { return reflect.DeepEqual(a, b) }

// family has what differs between IPv4 and IPv6.
type family struct {
	v6             bool
	l3             byte
	pods, remote   *nft.Set
	nodes          *nft.Set
	source, target func() nft.Part
	offset, size   uint32 // of the source address in the header
	nexthop        uint32 // NFT_RT_NEXTHOP*
}

func families() [2]family {
	set := func(name string, key []nft.Field, data ...nft.Field) *nft.Set {
		return &nft.Set{Table: ownTable(), Name: name, Key: key, Data: data}
	}
	pod := func(address nft.Field) []nft.Field { return []nft.Field{nft.IfName, nft.EtherAddr, address} }
	return [2]family{
		{
			l3: unix.NFPROTO_IPV4, source: nft.Source4, target: nft.Destination4, offset: 12, size: 4, nexthop: unix.NFT_RT_NEXTHOP4,
			pods: set("pods4", pod(nft.IP4Addr), nft.Verdict), remote: set("remote4", []nft.Field{nft.IP4Addr}, nft.Verdict), nodes: set("nodes4", []nft.Field{nft.IP4Addr}),
		},
		{
			v6: true, l3: unix.NFPROTO_IPV6, source: nft.Source6, target: nft.Destination6, offset: 8, size: 16, nexthop: unix.NFT_RT_NEXTHOP6,
			pods: set("pods6", pod(nft.IP6Addr), nft.Verdict), remote: set("remote6", []nft.Field{nft.IP6Addr}, nft.Verdict), nodes: set("nodes6", []nft.Field{nft.IP6Addr}),
		},
	}
}

// feature returns the table's sets and chains.
func (s *Spec) feature() *nft.Feature {
	f := &nft.Feature{Table: ownTable()}
	chains := []nft.Chain{s.inside()}
	for _, fam := range families() {
		f.Sets = append(f.Sets, fam.pods, fam.remote, fam.nodes)
	}
	refuse := nft.Chain{Rules: []nft.Rule{nft.NewRule(nft.Jump(insideChain)), nft.NewRule(nft.Counter(), nft.Drop())}}
	for _, name := range []string{refusedChain, strayChain} {
		c := refuse
		c.Name = name
		chains = append(chains, c)
	}
	for _, a := range s.Addresses {
		c := refuse
		if a.Held || a.Via.IsValid() {
			mark := nft.SetMark(markBits, markOf(a.Index))
			c.Rules = []nft.Rule{nft.NewRule(nft.Jump(insideChain)), nft.NewRule(nft.Comment(a.Addr.String()), nft.Counter(), mark)}
		}
		c.Name = addressChain(a.Index)
		chains = append(chains, c)
	}
	chains = append(chains, s.marking(), s.translating(), s.checking())
	f.Chains = func() []nft.Chain { return chains }
	return f
}

// inside accepts packets that stay as they are: replies, and those to destinations of the cluster. A packet of no tracked connection is
// treated as if it began one.
func (s *Spec) inside() nft.Chain {
	c := nft.Chain{Name: insideChain, Rules: []nft.Rule{nft.NewRule(isReply(), nft.Accept()), nft.NewRule(nft.ToThisNode(), nft.Accept())}}
	for _, p := range slices.Concat(s.Networks, s.Near) {
		c.Rules = append(c.Rules, nft.NewRule(nft.DestinationIn(p.String()), nft.Accept()))
	}
	for _, fam := range families() {
		c.Rules = append(c.Rules, nft.NewRule(fam.target(), nft.In(fam.nodes), nft.Accept()))
	}
	return c
}

// marking gives packets the mark of their egress address: those of this node's pods, and those of other nodes' pods that arrive here.
// The latter are dropped if this node does not hold the address of the pod.
func (s *Spec) marking() nft.Chain {
	c := nft.Chain{Name: "prerouting", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityMark}
	isEthernet := nft.CompareMeta(unix.NFT_META_IIFTYPE, unix.NFT_CMP_EQ, []byte{unix.ARPHRD_ETHER, 0})
	for _, fam := range families() {
		c.Rules = append(c.Rules, nft.NewRule(isEthernet, nft.InputLink(), nft.SourceMAC(), fam.source(), nft.VerdictFrom(fam.pods)))
		for _, device := range s.Arrivals {
			arrives := nft.CompareMeta(unix.NFT_META_IIFNAME, unix.NFT_CMP_EQ, nameBytes(device))
			c.Rules = append(c.Rules, nft.NewRule(arrives, fam.source(), nft.VerdictFrom(fam.remote)))
			for _, p := range s.Networks {
				if p.Addr().Is6() == fam.v6 {
					c.Rules = append(c.Rules, nft.NewRule(arrives, nft.SourceIn(p.String()), nft.Goto(strayChain)))
				}
			}
		}
	}
	return c
}

// translating gives packets their egress address on its holder. On the pod's node they keep the pod's address: a translation to it, so
// that no other chain translates it.
func (s *Spec) translating() nft.Chain {
	c := nft.Chain{Name: "postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: priorityNAT}
	for _, a := range s.Addresses {
		fam := families()[familyIndex(a.Addr)]
		source := keepSource(fam)
		if a.Held {
			source = nft.SourceTo(a.Addr.AsSlice(), fam.l3)
		}
		c.Rules = append(c.Rules, nft.NewRule(s.marked(&a), source))
	}
	return c
}

// checking drops marked packets that do not leave as the mark says: on the holder with an address that the node has no more, and on the pod's
// node to anything but the holder, or with an address of the node.
func (s *Spec) checking() nft.Chain {
	c := nft.Chain{Name: "leaving", Kind: "filter", Hook: unix.NF_INET_POST_ROUTING, Priority: priorityCheck}
	for _, a := range s.Addresses {
		fam := families()[familyIndex(a.Addr)]
		begin := s.marked(&a)
		switch {
		case a.Held:
			c.Rules = append(c.Rules, nft.NewRule(begin, nft.FromThisNode(unix.NFT_CMP_NEQ), nft.Counter(), nft.Drop()),
				nft.NewRule(begin, fam.source(), nft.Compared(unix.NFT_CMP_NEQ, a.Addr.AsSlice()), nft.Counter(), nft.Drop()))
		case a.Via.IsValid():
			c.Rules = append(c.Rules, nft.NewRule(begin, nft.Nexthop(fam.nexthop), nft.Compared(unix.NFT_CMP_NEQ, a.Via.AsSlice()), nft.Counter(), nft.Drop()),
				nft.NewRule(begin, nft.FromThisNode(unix.NFT_CMP_EQ), nft.Counter(), nft.Drop()))
		}
	}
	return c
}

// marked matches forwarded packets with the mark of an address, for rules of its family. A VXLAN device gives the mark of a packet to the one of the
// node that carries it, which leaves as if it had arrived on the device.
func (s *Spec) marked(a *Address) nft.Part {
	isForwarded := nft.CompareMeta(unix.NFT_META_IIF, unix.NFT_CMP_NEQ, make([]byte, 4))
	parts := []nft.Part{nft.OfFamily(families()[familyIndex(a.Addr)].l3), isForwarded, nft.CompareMark(markBits, unix.NFT_CMP_EQ, markOf(a.Index))}
	if !a.Held {
		for _, device := range s.Tunnels {
			parts = append(parts, nft.CompareMeta(unix.NFT_META_IIFNAME, unix.NFT_CMP_NEQ, nameBytes(device)))
		}
	}
	return nft.Together(parts...)
}

// isReply matches packets of the direction reply.
func isReply() nft.Part {
	return func(b *nft.Builder) {
		b.Ct(unix.NFT_CT_DIRECTION, b.Next)
		b.Compare(unix.NFT_CMP_EQ, b.Next, []byte{1}) // IP_CT_DIR_REPLY
	}
}

func keepSource(fam family) nft.Part {
	return nft.Together(nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, fam.offset, sizeField(fam), fam.l3), nft.SourceLoaded(fam.l3))
}

func sizeField(fam family) nft.Field {
	if fam.v6 {
		return nft.IP6Addr
	}
	return nft.IP4Addr
}

func familyIndex(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// nameBytes returns a name as the kernel compares it.
func nameBytes(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// entries returns the elements of the sets by what identifies them.
func (s *Spec) entries(f *nft.Feature) (map[string]*nft.Entry, error) {
	all := map[string]*nft.Entry{}
	add := func(e *nft.Element) error {
		n, err := nft.EntryOf(nft.Schema{*f}, e)
		if err == nil {
			all[n.ID()] = n
		}
		return err
	}
	fams := families()
	chainOf := func(index int) []string {
		if index == 0 {
			return []string{"goto " + refusedChain}
		}
		return []string{"goto " + addressChain(index)}
	}
	for _, p := range s.Pods {
		if err := add(&nft.Element{Set: fams[familyIndex(p.Addr)].pods.Name, Key: []string{p.Device, p.MAC, p.Addr.String()}, Value: chainOf(p.Index)}); err != nil {
			return nil, err
		}
	}
	for a, index := range s.Remote {
		if err := add(&nft.Element{Set: fams[familyIndex(a)].remote.Name, Key: []string{a.String()}, Value: chainOf(index)}); err != nil {
			return nil, err
		}
	}
	for _, a := range s.Nodes {
		if err := add(&nft.Element{Set: fams[familyIndex(a)].nodes.Name, Key: []string{a.String()}}); err != nil {
			return nil, err
		}
	}
	return all, nil
}
