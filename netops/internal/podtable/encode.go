package podtable

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The directions of a tracked tuple (IP_CT_DIR_*).
const (
	original = 0
	reply    = 1
)

// register is NFT_REG32_00, the first register of all expressions.
const register = nft.FirstRegister

// expressions appends the expressions of a rule.
type expressions struct{ nft.Expressions }

// tuple loads a field of the connection's tuple of one direction.
func (e expressions) tuple(key uint32, direction uint8, to uint32) {
	e.Add("ct", func() {
		e.Net32(unix.NFTA_CT_KEY, key)
		e.Net32(unix.NFTA_CT_DREG, to)
		e.Uint8(unix.NFTA_CT_DIRECTION, direction)
	})
}

// destination loads the address to which the connection's client sent the first packet.
func (e expressions) destination(v6 bool, to uint32) {
	key := uint32(unix.NFT_CT_DST_IP)
	if v6 {
		key = unix.NFT_CT_DST_IP6
	}
	e.tuple(key, original, to)
}

// protocol matches the transport protocol.
func (e expressions) protocol(number uint8) {
	e.Meta(unix.NFT_META_L4PROTO, register)
	e.Compare(unix.NFT_CMP_EQ, register, []byte{number})
}

// family matches the address family.
func (e expressions) family(v6 bool) {
	e.Meta(unix.NFT_META_NFPROTO, register)
	number := byte(unix.NFPROTO_IPV4)
	if v6 {
		number = unix.NFPROTO_IPV6
	}
	e.Compare(unix.NFT_CMP_EQ, register, []byte{number})
}

// state matches packets in one of the states of connection tracking.
func (e expressions) state(bits uint32) {
	e.Ct(unix.NFT_CT_STATE, register)
	e.Mask(register, binary.NativeEndian.AppendUint32(nil, bits), nil)
	e.Compare(unix.NFT_CMP_NEQ, register, make([]byte, 4))
}

// notState matches packets in none of the states.
func (e expressions) notState(bits uint32) {
	e.Ct(unix.NFT_CT_STATE, register)
	e.Mask(register, binary.NativeEndian.AppendUint32(nil, bits), nil)
	e.Compare(unix.NFT_CMP_EQ, register, make([]byte, 4))
}

// address loads the packet's source or destination.
func (e expressions) address(v6, isSource bool, to uint32) {
	offset := map[bool]uint32{false: 16, true: 24}[v6]
	size := uint32(addressField(v6).Size())
	if isSource {
		offset -= size
	}
	e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, to)
}

// network matches a loaded address within a network.
func (e expressions) network(p netip.Prefix) {
	if !p.IsSingleIP() {
		e.Mask(register, net.CIDRMask(p.Bits(), p.Addr().BitLen()), nil)
	}
	e.Compare(unix.NFT_CMP_EQ, register, p.Masked().Addr().AsSlice())
}

// ofThisNode compares whether the source is an address of the node (fib saddr type).
func (e expressions) ofThisNode(op uint32) {
	e.Fib(unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_SADDR, register)
	e.Compare(op, register, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
}

// dhcp matches UDP connections from one port to another.
func (e expressions) dhcp(from, to uint16) {
	e.protocol(unix.IPPROTO_UDP)
	e.tuple(unix.NFT_CT_PROTO_SRC, original, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(nil, from))
	e.tuple(unix.NFT_CT_PROTO_DST, original, register)
	e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(nil, to))
}

// onBridge matches what the pod's bridge forwards. direction is that of the tuple whose source is the pod.
func (e expressions) onBridge(direction uint8) {
	e.Meta(unix.NFT_META_IIFNAME, register)
	e.Meta(unix.NFT_META_OIFNAME, register+unix.IFNAMSIZ/4)
	e.tuple(unix.NFT_CT_SRC_IP, direction, register+2*unix.IFNAMSIZ/4)
	e.Lookup(dhcpSet, false)
}

// addressKey returns the key of a tuple's source address.
func addressKey(v6 bool) uint32 {
	if v6 {
		return unix.NFT_CT_SRC_IP6
	}
	return unix.NFT_CT_SRC_IP
}

// port loads the server's port.
func (e expressions) port(to uint32) { e.tuple(unix.NFT_CT_PROTO_SRC, reply, to) }

// next returns the register behind an address in the first one.
func next(v6 bool) uint32 {
	if v6 {
		return register + 4
	}
	return register + 1
}

// encode appends the expressions of the rule.
func (r *Rule) encode(e expressions) error {
	if r.Protocol != 0 {
		e.protocol(r.Protocol)
	}
	if r.Ports != "" {
		e.port(register)
		e.Lookup(r.Ports, false)
	}
	if r.Last != 0 {
		e.port(register)
		if r.First == r.Last {
			e.Compare(unix.NFT_CMP_EQ, register, binary.BigEndian.AppendUint16(nil, r.First))
		} else {
			e.Compare(unix.NFT_CMP_GTE, register, binary.BigEndian.AppendUint16(nil, r.First))
			e.Compare(unix.NFT_CMP_LTE, register, binary.BigEndian.AppendUint16(nil, r.Last))
		}
	}
	for key, is := range map[uint32]bool{unix.NFT_META_OIF: r.ToNode, unix.NFT_META_IIF: r.OfNode} {
		if is {
			e.Meta(key, register)
			e.Compare(unix.NFT_CMP_EQ, register, make([]byte, 4))
		}
	}
	if r.OfNode {
		e.ofThisNode(unix.NFT_CMP_EQ)
	}
	p := &r.Peer
	if r.Self {
		e.tuple(addressKey(p.V6), original, register)
		e.tuple(addressKey(p.V6), reply, next(p.V6))
		e.Lookup(podSet(self, p.V6), false)
	}
	if r.Named != "" {
		e.tuple(addressKey(p.V6), reply, register)
		e.port(next(p.V6))
		e.Lookup(r.Named, false)
	}
	load := func() {
		direction := uint8(original)
		if p.Server {
			direction = reply
		}
		e.tuple(addressKey(p.V6), direction, register)
	}
	if p.Set != "" {
		load()
		e.Lookup(p.Set, false)
	}
	if p.within() {
		load()
		e.network(p.In)
	}
	if r.counts() {
		e.Counter()
	}
	if r.Map != "" {
		e.port(register)
		e.LookupInto(r.Map, unix.NFT_REG_VERDICT)
		return nil
	}
	code, chain, err := nft.ParseVerdict(r.Verdict)
	if err == nil {
		e.Verdict(code, chain)
	}
	return err
}

// message returns the request that appends the rule to a chain.
func (r *Rule) message(chain string) (m nlconn.Message, err error) {
	m = ruleMessage(Table(), chain, func(e expressions) { err = r.encode(e) })
	if r.Comment != "" {
		m.Bytes(unix.NFTA_RULE_USERDATA, nft.LabelUserData(nft.CleanLabel(r.Comment)))
	}
	return m, err
}

// log passes some packets to the reader of LogGroup.
func (e expressions) log() {
	e.Limit(LoggedPackets)
	e.Log(LogGroup)
}

// FillLog gives a rule the expressions that log packets.
func FillLog(m *nlconn.Message) {
	m.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { expressions{nft.Expressions{Body: &m.Body}}.log() })
}

// ruleMessage returns the request that appends a rule of some expressions to a chain.
func ruleMessage(t nft.Table, chain string, fill func(expressions)) nlconn.Message {
	m := t.RuleMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, chain)
	m.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { fill(expressions{nft.Expressions{Body: &m.Body}}) })
	return m
}
