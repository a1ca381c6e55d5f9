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

func in(set string) nft.Part    { return nft.In(&nft.Set{Name: set}) }
func notIn(set string) nft.Part { return nft.NotIn(&nft.Set{Name: set}) }

func verdictFrom(set string) nft.Part { return nft.VerdictFrom(&nft.Set{Name: set}) }

// denied counts a packet and drops it.
func denied() nft.Part { return nft.Together(nft.Counter(), nft.Drop()) }

// either returns what belongs to an address family.
func either[T any](v6 bool, four, six T) T {
	if v6 {
		return six
	}
	return four
}

// tuple loads a field of the connection's tuple of one direction.
func tuple(f nft.Field, key uint32, direction uint8) nft.Part {
	return func(b *nft.Builder) {
		to := b.Take(f)
		b.Add("ct", func() {
			b.Net32(unix.NFTA_CT_KEY, key)
			b.Net32(unix.NFTA_CT_DREG, to)
			b.Uint8(unix.NFTA_CT_DIRECTION, direction)
		})
	}
}

// sourceOf loads the source address of the tuple of one direction.
func sourceOf(v6 bool, direction uint8) nft.Part {
	return tuple(addressField(v6), either(v6, uint32(unix.NFT_CT_SRC_IP), unix.NFT_CT_SRC_IP6), direction)
}

// destination loads the address to which the connection's client sent the first packet.
func destination(v6 bool) nft.Part {
	return tuple(addressField(v6), either(v6, uint32(unix.NFT_CT_DST_IP), unix.NFT_CT_DST_IP6), original)
}

// port loads the server's port.
func port() nft.Part { return tuple(nft.InetService, unix.NFT_CT_PROTO_SRC, reply) }

// family matches the address family.
func family(v6 bool) nft.Part {
	return nft.InFamily(either(v6, byte(unix.NFPROTO_IPV4), unix.NFPROTO_IPV6))
}

// state matches packets in one of the states of connection tracking.
func state(bits uint32) nft.Part { return nft.Tracked(unix.NFT_CT_STATE, bits) }

// address loads the packet's source or destination.
func address(v6, isSource bool) nft.Part {
	offset := either(v6, uint32(16), 24)
	if isSource {
		offset -= uint32(addressField(v6).Size())
	}
	return nft.Load(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, addressField(v6), 0)
}

// within matches a loaded address within a network.
func within(p netip.Prefix) nft.Part {
	is := nft.Is(p.Masked().Addr().AsSlice())
	if p.IsSingleIP() {
		return is
	}
	return nft.Together(nft.Masked(net.CIDRMask(p.Bits(), p.Addr().BitLen())), is)
}

func isNumber(number uint16) nft.Part { return nft.Is(binary.BigEndian.AppendUint16(nil, number)) }

// dhcp matches UDP connections from one port to another.
func dhcp(from, to uint16) nft.Part {
	return nft.Together(nft.OfProtocol(unix.IPPROTO_UDP),
		tuple(nft.InetService, unix.NFT_CT_PROTO_SRC, original), isNumber(from), tuple(nft.InetService, unix.NFT_CT_PROTO_DST, original), isNumber(to))
}

// onBridge matches what the pod's bridge forwards. direction is that of the tuple whose source is the pod.
func onBridge(direction uint8) nft.Part {
	return nft.Together(nft.InputLink(), nft.OutputLink(), sourceOf(false, direction), in(dhcpSet))
}

// encode returns the rule as nftables has it.
func (r *Rule) encode() (rule nft.Rule, err error) {
	rule = make(nft.Rule, 0, 8)
	add := func(parts ...nft.Part) { rule = append(rule, parts...) }
	if r.Protocol != 0 {
		add(nft.OfProtocol(r.Protocol))
	}
	if r.Ports != "" {
		add(port(), in(r.Ports))
	}
	if r.Last != 0 {
		add(port(), nft.Among(binary.BigEndian.AppendUint16(nil, r.First), binary.BigEndian.AppendUint16(nil, r.Last)))
	}
	if r.ToNode {
		add(nft.CompareMeta(unix.NFT_META_OIF, unix.NFT_CMP_EQ, make([]byte, 4)))
	}
	if r.OfNode {
		add(nft.CompareMeta(unix.NFT_META_IIF, unix.NFT_CMP_EQ, make([]byte, 4)), nft.FromThisNode(unix.NFT_CMP_EQ))
	}
	p := &r.Peer
	if r.Self {
		add(sourceOf(p.V6, original), sourceOf(p.V6, reply), in(podSet(self, p.V6)))
	}
	if r.Named != "" {
		add(sourceOf(p.V6, reply), port(), in(r.Named))
	}
	direction := uint8(original)
	if p.Server {
		direction = reply
	}
	if p.Set != "" {
		add(sourceOf(p.V6, direction), in(p.Set))
	}
	if p.within() {
		add(sourceOf(p.V6, direction), within(p.In))
	}
	if r.counts() {
		add(nft.Counter())
	}
	if r.Comment != "" {
		add(nft.Comment(nft.CleanLabel(r.Comment)))
	}
	if r.Map != "" {
		return append(rule, port(), verdictFrom(r.Map)), nil
	}
	verdict, err := nft.VerdictOf(r.Verdict)
	if err != nil {
		return nil, err
	}
	return append(rule, verdict), nil
}

// LogRule returns a rule that passes some packets to the reader of LogGroup.
func LogRule() nft.Rule {
	return nft.NewRule(func(b *nft.Builder) {
		b.Limit(LoggedPackets)
		b.Log(LogGroup)
	})
}

// ruleMessages returns the requests that append rules to a chain.
func ruleMessages(t nft.Table, chain string, rules []nft.Rule) (msgs []nlconn.Message) {
	for _, r := range rules {
		msgs = append(msgs, r.Message(t, chain))
	}
	return msgs
}
