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

// expressions appends the expressions of a rule. The library's encoder of ct expressions lacks the keys of
// addresses, and sends a direction that the kernel always reads as the original one.
type expressions struct{ *nlconn.Body }

func (e expressions) add(name string, fill func()) {
	e.Nest(unix.NFTA_LIST_ELEM, func() {
		e.Text(unix.NFTA_EXPR_NAME, name)
		e.Nest(unix.NFTA_EXPR_DATA, fill)
	})
}

// tuple loads a field of the connection's tuple of one direction.
func (e expressions) tuple(key uint32, direction uint8, to uint32) {
	e.add("ct", func() {
		e.Net32(unix.NFTA_CT_KEY, key)
		e.Net32(unix.NFTA_CT_DREG, to)
		e.Uint8(unix.NFTA_CT_DIRECTION, direction)
	})
}

func (e expressions) meta(key, to uint32) {
	e.add("meta", func() {
		e.Net32(unix.NFTA_META_KEY, key)
		e.Net32(unix.NFTA_META_DREG, to)
	})
}

func (e expressions) compare(op uint32, data []byte) {
	e.add("cmp", func() {
		e.Net32(unix.NFTA_CMP_SREG, register)
		e.Net32(unix.NFTA_CMP_OP, op)
		e.Nest(unix.NFTA_CMP_DATA, func() { e.Bytes(unix.NFTA_DATA_VALUE, data) })
	})
}

func (e expressions) mask(mask []byte) {
	e.add("bitwise", func() {
		e.Net32(unix.NFTA_BITWISE_SREG, register)
		e.Net32(unix.NFTA_BITWISE_DREG, register)
		e.Net32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		e.Nest(unix.NFTA_BITWISE_MASK, func() { e.Bytes(unix.NFTA_DATA_VALUE, mask) })
		e.Nest(unix.NFTA_BITWISE_XOR, func() { e.Bytes(unix.NFTA_DATA_VALUE, make([]byte, len(mask))) })
	})
}

// lookup searches the loaded key in a set, or in a map of verdicts.
func (e expressions) lookup(set string, verdicts bool) {
	e.add("lookup", func() {
		e.Text(unix.NFTA_LOOKUP_SET, set)
		e.Net32(unix.NFTA_LOOKUP_SREG, register)
		if verdicts {
			e.Net32(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT)
		}
	})
}

// payload loads bytes of a packet's header.
func (e expressions) payload(base, offset, size, to uint32) {
	e.add("payload", func() {
		e.Net32(unix.NFTA_PAYLOAD_DREG, to)
		e.Net32(unix.NFTA_PAYLOAD_BASE, base)
		e.Net32(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.Net32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

// verdict ends the rule. text is a verdict in nft's syntax.
func (e expressions) verdict(code int32, chain string) {
	e.add("immediate", func() {
		e.Net32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.Nest(unix.NFTA_IMMEDIATE_DATA, func() {
			e.Nest(unix.NFTA_DATA_VERDICT, func() {
				e.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					e.Text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}

// protocol matches the transport protocol.
func (e expressions) protocol(number uint8) {
	e.meta(unix.NFT_META_L4PROTO, register)
	e.compare(unix.NFT_CMP_EQ, []byte{number})
}

// family matches the address family.
func (e expressions) family(v6 bool) {
	e.meta(unix.NFT_META_NFPROTO, register)
	number := byte(unix.NFPROTO_IPV4)
	if v6 {
		number = unix.NFPROTO_IPV6
	}
	e.compare(unix.NFT_CMP_EQ, []byte{number})
}

// state matches packets in one of the states of connection tracking.
func (e expressions) state(bits uint32) {
	e.add("ct", func() {
		e.Net32(unix.NFTA_CT_KEY, unix.NFT_CT_STATE)
		e.Net32(unix.NFTA_CT_DREG, register)
	})
	e.mask(binary.NativeEndian.AppendUint32(nil, bits))
	e.compare(unix.NFT_CMP_NEQ, make([]byte, 4))
}

// network matches a loaded address within a network.
func (e expressions) network(p netip.Prefix) {
	if !p.IsSingleIP() {
		e.mask(net.CIDRMask(p.Bits(), p.Addr().BitLen()))
	}
	e.compare(unix.NFT_CMP_EQ, p.Masked().Addr().AsSlice())
}

// dhcp matches UDP connections from one port to another.
func (e expressions) dhcp(from, to uint16) {
	e.protocol(unix.IPPROTO_UDP)
	e.tuple(unix.NFT_CT_PROTO_SRC, original, register)
	e.compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, from))
	e.tuple(unix.NFT_CT_PROTO_DST, original, register)
	e.compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, to))
}

// onBridge matches what the pod's bridge forwards. direction is that of the tuple whose source is the pod.
func (e expressions) onBridge(direction uint8) {
	e.meta(unix.NFT_META_IIFNAME, register)
	e.meta(unix.NFT_META_OIFNAME, register+unix.IFNAMSIZ/4)
	e.tuple(unix.NFT_CT_SRC_IP, direction, register+2*unix.IFNAMSIZ/4)
	e.lookup(dhcpSet, false)
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
		e.lookup(r.Ports, false)
	}
	if r.Last != 0 {
		e.port(register)
		if r.First == r.Last {
			e.compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, r.First))
		} else {
			e.compare(unix.NFT_CMP_GTE, binary.BigEndian.AppendUint16(nil, r.First))
			e.compare(unix.NFT_CMP_LTE, binary.BigEndian.AppendUint16(nil, r.Last))
		}
	}
	for key, is := range map[uint32]bool{unix.NFT_META_OIF: r.ToNode, unix.NFT_META_IIF: r.OfNode} {
		if is {
			e.meta(key, register)
			e.compare(unix.NFT_CMP_EQ, make([]byte, 4))
		}
	}
	p := &r.Peer
	if r.Strays {
		e.state(stateInvalid | stateUntracked)
	}
	if r.Self {
		e.tuple(addressKey(p.V6), original, register)
		e.tuple(addressKey(p.V6), reply, next(p.V6))
		e.lookup(podSet(self, p.V6), false)
	}
	if r.Named != "" {
		e.tuple(addressKey(p.V6), reply, register)
		e.port(next(p.V6))
		e.lookup(r.Named, false)
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
		e.lookup(p.Set, false)
	}
	if p.In.IsValid() {
		if p.In.Bits() == 0 {
			e.family(p.V6)
		} else {
			load()
			e.network(p.In)
		}
	}
	if r.counts() {
		e.add("counter", func() {})
	}
	code, chain, err := nft.ParseVerdict(r.Verdict)
	if err == nil {
		e.verdict(code, chain)
	}
	return err
}

// message returns the request that appends the rule to a chain.
func (r *Rule) message(chain string) (nlconn.Message, error) {
	m, err := ruleMessage(Table(), chain, r.encode)
	if r.Comment != "" {
		m.Bytes(unix.NFTA_RULE_USERDATA, nft.LabelUserData(nft.CleanLabel(r.Comment)))
	}
	return m, err
}

// ruleMessage returns the request that appends a rule of some expressions to a chain.
func ruleMessage(t nft.Table, chain string, fill func(expressions) error) (m nlconn.Message, err error) {
	m = t.RuleMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, chain)
	m.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { err = fill(expressions{&m.Body}) })
	return m, err
}
