package netops

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// priorityDestinationNAT is NF_IP_PRI_NAT_DST of linux/netfilter_ipv4.h.
	priorityDestinationNAT = -100
	// priorityRaw is NF_IP_PRI_RAW: before connections are tracked and translated.
	priorityRaw = -300
)

// portMapFeature leads ports of the node to containers. Of a family, 4 or 6:
//
//   - portmap4 maps (protocol, port) of any address of the node, portmap_ip4
//     (address, protocol, port), to a container's address and port.
//   - portmap_if4 and portmap_ip_if4 hold those of these keys that are mapped
//     under conditions: "goto" a chain that a portCondition makes.
//   - portmap_snat4 tells by a container's address what becomes of the source
//     of connections that were led there: "goto portmap_hairpin" hides it where
//     the container could not answer, or would answer past the node, "goto
//     portmap_masquerade" always. A container without keeps every source.
//   - portmap_near4 holds the subnets within which containers answer each other
//     directly, as (subnet, subnet).
//   - portmap_mark4 tells by a container's address which mark bit hidden
//     connections get: "jump" a chain that a markBit makes.
//
// A set's lookup costs the same however many ports are mapped.
//
// portmap_local holds the devices that packets from 127.0.0.1 may leave by
// (route_localnet, which nothing else guards): what comes in by them from or to
// loopback addresses is dropped, before a translation back could bring one about.
func portMapFeature() nftFeature {
	table := inetTable()
	local := &nftSet{table: table, name: "portmap_local", key: []field{ifName}}
	four, six := portMap4(table), portMap6(table)
	return nftFeature{
		table: table,
		sets:  append(append(four.all(), six.all()...), local),
		chains: func() []nftChain {
			prerouting := nftChain{name: "portmap_prerouting", kind: "nat", hook: unix.NF_INET_PRE_ROUTING, priority: priorityDestinationNAT}
			output := nftChain{name: "portmap_output", kind: "nat", hook: unix.NF_INET_LOCAL_OUT, priority: priorityDestinationNAT}
			prerouting.rules = []nftRule{rule(toThisNode(), leadsTo("portmap"))}
			output.rules = prerouting.rules
			return []nftChain{
				{name: portMapTranslate, rules: append(four.translate(), six.translate()...)},
				{name: "portmap", rules: append(append(four.conditions(), six.conditions()...), rule(leadsTo(portMapTranslate)))},
				prerouting, output,
				{name: portMapMasquerade, rules: []nftRule{four.marks(), six.marks(), rule(masquerade())}},
				{name: "portmap_hairpin", rules: []nftRule{
					rule(sourceIn("127.0.0.0/8"), leadsTo(portMapMasquerade)),
					rule(sourceIn("::1/128"), leadsTo(portMapMasquerade)),
					four.hairpin(), six.hairpin(),
				}},
				{
					name: "portmap_postrouting", kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: prioritySourceNAT,
					rules: []nftRule{four.sources(), six.sources()},
				},
				{
					name: "portmap_guard", kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: priorityRaw,
					rules: []nftRule{
						rule(inputLink(), in(local), next(), destinationIn("127.0.0.0/8"), drops()),
						rule(inputLink(), in(local), next(), sourceIn("127.0.0.0/8"), drops()),
					},
				},
			}
		},
		chainOf: portMapChain,
	}
}

const (
	portMapTranslate  = "portmap_translate"
	portMapMasquerade = "portmap_masquerade"
)

// portMapFamily is the part of portMapFeature that there is for each family.
type portMapFamily struct {
	l3                       byte
	address                  field
	source, destination      func() rulePart
	ports, portsOf           *nftSet
	conditional, conditionOf *nftSet
	snat, near, mark         *nftSet
}

func portMap4(table nftTable) *portMapFamily {
	f := &portMapFamily{l3: unix.NFPROTO_IPV4, address: ip4Addr, source: source4, destination: destination4}
	f.makeSets(table, "4", ip4Prefix)
	return f
}

func portMap6(table nftTable) *portMapFamily {
	f := &portMapFamily{l3: unix.NFPROTO_IPV6, address: ip6Addr, source: source6, destination: destination6}
	f.makeSets(table, "6", ip6Prefix)
	return f
}

func (f *portMapFamily) makeSets(table nftTable, suffix string, prefix field) {
	port, portOf := []field{inetProto, inetService}, []field{f.address, inetProto, inetService}
	target, decision := []field{f.address, inetService}, []field{verdict}
	f.ports = &nftSet{table: table, name: "portmap" + suffix, key: port, data: target}
	f.portsOf = &nftSet{table: table, name: "portmap_ip" + suffix, key: portOf, data: target}
	f.conditional = &nftSet{table: table, name: "portmap_if" + suffix, key: port, data: decision}
	f.conditionOf = &nftSet{table: table, name: "portmap_ip_if" + suffix, key: portOf, data: decision}
	f.snat = &nftSet{table: table, name: "portmap_snat" + suffix, key: []field{f.address}, data: decision}
	f.near = &nftSet{table: table, name: "portmap_near" + suffix, key: []field{prefix, prefix}}
	f.mark = &nftSet{table: table, name: "portmap_mark" + suffix, key: []field{f.address}, data: decision}
}

func (f *portMapFamily) all() []*nftSet {
	return []*nftSet{f.ports, f.portsOf, f.conditional, f.conditionOf, f.snat, f.near, f.mark}
}

// conditions send what is mapped under conditions to the chain that judges them.
func (f *portMapFamily) conditions() []nftRule {
	return []nftRule{
		rule(f.destination(), transportProtocol(), transportPort(), decidedBy(f.conditionOf)),
		rule(ofFamily(f.l3), transportProtocol(), transportPort(), decidedBy(f.conditional)),
	}
}

// translate leads what is mapped to its container.
func (f *portMapFamily) translate() []nftRule {
	return []nftRule{
		rule(f.destination(), transportProtocol(), transportPort(), destinationFrom(f.portsOf, f.l3)),
		rule(ofFamily(f.l3), transportProtocol(), transportPort(), destinationFrom(f.ports, f.l3)),
	}
}

func (f *portMapFamily) sources() nftRule {
	return rule(tracked(expr.CtKeySTATUS, ctDestinationNAT), f.destination(), decidedBy(f.snat))
}

func (f *portMapFamily) hairpin() nftRule {
	return rule(f.source(), f.destination(), in(f.near), leadsTo(portMapMasquerade))
}

func (f *portMapFamily) marks() nftRule { return rule(f.destination(), decidedBy(f.mark)) }

// toThisNode is fib daddr type local.
func toThisNode() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs,
			&expr.Fib{Register: b.next, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: b.next, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
		)
	}
}

// ofFamily limits a rule that loads no address to one.
func ofFamily(l3 byte) rulePart { return func(b *ruleBuilder) { b.l3 = l3 } }

// next ends a lookup's key: what is loaded then begins another.
func next() rulePart { return func(b *ruleBuilder) { b.next = firstRegister } }

// transportProtocol is meta l4proto.
func transportProtocol() rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: b.take(inetProto)})
	}
}

// transportPort is th dport, of TCP, UDP and SCTP alike (RFC 9293 §3.1, RFC 768,
// RFC 9260 §3.1).
func transportPort() rulePart { return load(expr.PayloadBaseTransportHeader, 2, inetService, 0) }

// sourceIn is ip saddr or ip6 saddr within a fixed prefix.
func sourceIn(prefix string) rulePart {
	return within(prefix, source4, source6, expr.CmpOpEq)
}

// decidedBy takes the verdict that a map has for what was loaded so far.
func decidedBy(set *nftSet) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Lookup{
			SourceRegister: firstRegister, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set.name,
		})
		b.next = firstRegister
	}
}

// destinationFrom gives the packet the address and port that a map has for what
// was loaded so far.
func destinationFrom(set *nftSet, l3 byte) rulePart {
	return func(b *ruleBuilder) {
		port := uint32(firstRegister + set.data[0].padded()/4)
		b.exprs = append(b.exprs,
			&expr.Lookup{SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set.name},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(l3), RegAddrMin: firstRegister, RegProtoMin: port, Specified: true},
		)
	}
}

// leadsTo goes on in another chain of the table, for good.
func leadsTo(chain string) rulePart {
	return func(b *ruleBuilder) {
		b.exprs = append(b.exprs, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
	}
}
