package overlay

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

const (
	// kubeMasqueradeMark is kube-proxy's mark bit for the packets that it
	// masquerades.
	kubeMasqueradeMark = 0x4000
	// vxlanVNIOffset is the offset of the VNI from the start of the UDP header
	// (RFC 768, RFC 7348 section 5).
	vxlanVNIOffset = 8 + 4
)

func ownTable() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: "cnibox_overlay"} }

// sourceSet returns the set of nodes from which tunnelled packets are accepted.
func sourceSet(is6 bool) *nft.Set {
	if is6 {
		return &nft.Set{Table: ownTable(), Name: "vteps6", Key: []nft.Field{nft.IP6Addr}}
	}
	return &nft.Set{Table: ownTable(), Name: "vteps4", Key: []nft.Field{nft.IP4Addr}}
}

// exceptionSet returns the set of pairs (source, destination) whose packets keep
// their source.
func exceptionSet(is6 bool) *nft.Set {
	if is6 {
		return &nft.Set{Table: ownTable(), Name: "nomasq6", Key: []nft.Field{nft.IP6Prefix, nft.IP6Prefix}}
	}
	return &nft.Set{Table: ownTable(), Name: "nomasq4", Key: []nft.Field{nft.IP4Prefix, nft.IP4Prefix}}
}

// tableMessages returns the messages that replace the whole table. If want is
// empty, they only delete it.
func tableMessages(want []NAT, sources map[bool]*sources) ([]nlconn.Message, error) {
	// Deleting an absent table is an error, so make it first.
	msgs := []nlconn.Message{ownTable().Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE), ownTable().Message(unix.NFT_MSG_DELTABLE, 0)}
	f, entries, err := tableFeature(want, sources)
	if err != nil || len(f.Chains()) == 0 {
		return msgs, err
	}
	return slices.Concat(msgs, f.Messages(), nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, entries)), nil
}

// tableFeature returns the table's sets and chains as a feature, and its
// elements.
func tableFeature(want []NAT, sources map[bool]*sources) (*nft.Feature, []*nft.Entry, error) {
	f := &nft.Feature{Table: ownTable()}
	nat := nft.Chain{Name: "postrouting", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySourceNAT}
	input := nft.Chain{Name: "input", Kind: "filter", Hook: unix.NF_INET_LOCAL_IN, Priority: nft.PriorityFilter}
	received := nft.Chain{Name: "received", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: nft.PriorityRaw}
	sent := nft.Chain{Name: "sent", Kind: "filter", Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PriorityFilter}
	forward := nft.Chain{Name: "forward", Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: nft.PriorityFilter}
	var tunnelled []nft.Chain
	var entries []*nft.Entry
	for i := range want {
		w := &want[i]
		is6 := w.Network.Addr().Is6()
		if w.Masquerade {
			nat.Rules = append(nat.Rules, w.masqueradeRules()...)
		}
		if set := exceptionSet(is6); w.Masquerade && len(w.Exceptions) > 0 {
			f.Sets = append(f.Sets, set)
			for _, p := range w.Exceptions {
				n, err := nft.EntryOf(nft.Schema{*f}, &nft.Element{Set: set.Name, Key: []string{w.Network.Masked().String(), p.String()}})
				if err != nil {
					return nil, nil, err
				}
				entries = append(entries, n)
			}
		}
		if w.Encrypted != "" {
			received.Rules, sent.Rules = append(received.Rules, w.receivedRules()...), append(sent.Rules, w.sentRule())
		}
		if set := sourceSet(is6); w.Tunnel != nil {
			f.Sets = append(f.Sets, set)
			chain := nft.Chain{Name: "tunnelled" + set.Name[len("vteps"):], Rules: w.tunnelledRules(set)}
			tunnelled = append(tunnelled, chain)
			forward.Rules = append(forward.Rules, nft.NewRule(w.tunnelled(nft.Goto(chain.Name))...))
			input.Rules = append(input.Rules, w.inputRules(set)...)
			for _, a := range sorting.Sorted(slices.Collect(maps.Keys(sources[is6].all)), netip.Addr.Compare) {
				entries = append(entries, &nft.Entry{Set: set, Key: a.AsSlice()})
			}
		}
	}
	f.Chains = func() []nft.Chain {
		return slices.DeleteFunc(append(tunnelled, received, sent, nat, forward, input), func(c nft.Chain) bool { return len(c.Rules) == 0 })
	}
	return f, entries, nil
}

// masqueradeRules returns the rules of flannel's FLANNEL-POSTRTG chain in the
// same order.
func (w *NAT) masqueradeRules() []nft.Rule {
	network, subnet := w.Network.String(), w.Subnet.String()
	multicast, l3, source, destination := "224.0.0.0/4", byte(unix.NFPROTO_IPV4), nft.Source4, nft.Destination4
	is6 := w.Network.Addr().Is6()
	if is6 {
		multicast, l3, source, destination = "ff00::/8", unix.NFPROTO_IPV6, nft.Source6, nft.Destination6
	}
	rules := []nft.Rule{
		nft.NewRule(nft.OfFamily(l3), nft.CompareMark(kubeMasqueradeMark, unix.NFT_CMP_EQ, kubeMasqueradeMark), nft.Return()),
		nft.NewRule(nft.SourceIn(subnet), nft.DestinationIn(network), nft.Return()),
		nft.NewRule(nft.SourceIn(network), nft.DestinationIn(subnet), nft.Return()),
		// The node's own pods see the real addresses of clients outside the pod
		// network.
		nft.NewRule(sourceNotIn(network), nft.DestinationIn(subnet), nft.Return()),
	}
	if len(w.Exceptions) > 0 {
		rules = append(rules, nft.NewRule(source(), destination(), nft.In(exceptionSet(is6)), nft.Return()))
	}
	hide := nft.MasqueradeAtRandom()
	if w.KeepPorts {
		hide = nft.Masquerade()
	}
	return append(rules,
		nft.NewRule(nft.SourceIn(network), destinationNotIn(multicast), hide),
		nft.NewRule(sourceNotIn(network), nft.DestinationIn(network), hide),
	)
}

// tunnelled returns the parts of a rule for the tunnelled packets of the family, before others. Packets of other VNIs on the port may belong to
// other programs, so it does not match them.
func (w *NAT) tunnelled(more ...nft.Part) []nft.Part {
	l3 := byte(unix.NFPROTO_IPV4)
	if w.Network.Addr().Is6() {
		l3 = unix.NFPROTO_IPV6
	}
	parts := []nft.Part{
		nft.OfFamily(l3), nft.OfProtocol(unix.IPPROTO_UDP),
		nft.TransportPort(), nft.Is(binary.BigEndian.AppendUint16(nil, w.Tunnel.Port)),
	}
	if w.Encrypted == "" {
		parts = append(parts, matchVNI(w.Tunnel.VNI))
	}
	return append(parts, more...)
}

// inputRules drop tunnelled packets to this node: those of VXLAN from hosts that are not in the set, those from pods, and those that a pod sends
// with the address of a node. The latter come by a link to which the route to the node does not lead. That is no error for packets of nodes by a
// network card, which may have several.
func (w *NAT) inputRules(set *nft.Set) (rules []nft.Rule) {
	add := func(parts ...nft.Part) {
		rules = append(rules, nft.NewRule(w.tunnelled(append(parts, nft.Drop())...)...))
	}
	source := sourceOf(set)
	if w.Encrypted != "" {
		add(nft.SourceIn(w.Network.String()))
		return rules
	}
	if !w.Tunnel.AnySource {
		add(source, nft.NotIn(set))
	}
	for _, kind := range []string{rtnl.KindVeth, rtnl.KindNetkit, rtnl.KindBridge} {
		add(nft.InputKind(), nft.Is(nameBytes(kind)), source, nft.In(set), nft.NoRouteBack())
	}
	return rules
}

// tunnelledRules drop tunnelled packets that this node would forward: those to a known node that none sent, those from pods to others than pods,
// and those that have the address of a node and are not from it. Nodes that are virtual machines on this one pass, and pods among each other,
// which may be nodes of another cluster.
func (w *NAT) tunnelledRules(set *nft.Set) []nft.Rule {
	source, destination := sourceOf(set), nft.Destination4()
	if w.Network.Addr().Is6() {
		destination = nft.Destination6()
	}
	rules := []nft.Rule{nft.NewRule(source, nft.NotIn(set), destination, nft.In(set), nft.Drop())}
	if w.Encrypted != "" {
		return rules
	}
	return append(rules,
		nft.NewRule(nft.SourceIn(w.Network.String()), nft.Next(), destinationNotIn(w.Network.String()), nft.Drop()),
		nft.NewRule(source, nft.In(set), nft.NoRouteBack(), nft.Drop()),
		nft.NewRule(nft.FromThisNode(unix.NFT_CMP_EQ), nft.Drop()),
	)
}

func sourceOf(set *nft.Set) nft.Part {
	if set.Key[0] == nft.IP6Addr {
		return nft.Source6()
	}
	return nft.Source4()
}

// receivedRules drop unencrypted packets whose source is a pod of another node, or a pod of this node although they come from
// elsewhere: the route to the source does not lead over the link by which they arrive.
func (w *NAT) receivedRules() []nft.Rule {
	from := []nft.Part{notByLink(unix.NFT_META_IIFNAME, w.Encrypted), nft.Next(), nft.SourceIn(w.Network.String()), nft.Next()}
	return []nft.Rule{
		nft.NewRule(slices.Concat(from, w.outsideLocal(sourceNotIn), []nft.Part{nft.Drop()})...),
		nft.NewRule(slices.Concat(from, []nft.Part{nft.NoRouteBack(), nft.Drop()})...),
	}
}

// sentRule drops packets to pods of other nodes that would leave unencrypted. The unreachable route of the pod network refuses them too, but
// another program can delete it.
func (w *NAT) sentRule() nft.Rule {
	to := []nft.Part{notByLink(unix.NFT_META_OIFNAME, w.Encrypted), nft.Next(), notByLink(unix.NFT_META_OIFNAME, "lo"), nft.Next(), nft.DestinationIn(w.Network.String()), nft.Next()}
	return nft.NewRule(slices.Concat(to, w.outsideLocal(destinationNotIn), []nft.Part{nft.Drop()})...)
}

// outsideLocal matches addresses that no pod of this node has.
func (w *NAT) outsideLocal(not func(prefix string) nft.Part) (parts []nft.Part) {
	for _, p := range w.Local {
		parts = append(parts, not(p.String()), nft.Next())
	}
	return parts
}

// notByLink matches if the link of the key has another name.
func notByLink(key uint32, name string) nft.Part {
	return nft.CompareMeta(key, unix.NFT_CMP_NEQ, nameBytes(name))
}

// nameBytes returns a name as the kernel compares it.
func nameBytes(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// matchVNI matches VXLAN packets with a VNI.
func matchVNI(vni uint32) nft.Part {
	return func(b *nft.Builder) { b.Match(unix.NFT_PAYLOAD_TRANSPORT_HEADER, vxlanVNIOffset, vniBytes(vni)) }
}

func sourceNotIn(prefix string) nft.Part {
	return nft.Within(prefix, nft.Source4, nft.Source6, unix.NFT_CMP_NEQ)
}

func destinationNotIn(prefix string) nft.Part {
	return nft.Within(prefix, nft.Destination4, nft.Destination6, unix.NFT_CMP_NEQ)
}
