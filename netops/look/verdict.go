// Package look reads what other programs' packet filters do with packets, and to which endpoints kube-proxy translates services.
// It changes and sends nothing.
package look

import (
	"context"
	"net/netip"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
	"github.com/cnibox/cnibox/netops/internal/verdict"
)

// Filter is the rules of other programs on the host. It reads each chain when a packet meets it, and once.
type Filter = verdict.Filter

// Read reads the chains of other programs on the host.
func Read(ctx context.Context, n *netops.Net) (*Filter, error) {
	tables := n.FilterTables()
	return verdict.Read(ctx, tables.NFT, tables.Run, ruleset.TableName, func(ctx context.Context, device string) (int, error) {
		host, err := n.Rtnetlink()
		if err != nil {
			return 0, err
		}
		l, err := host.Link(ctx, device)
		if err != nil {
			return 0, err
		}
		return l.Index, nil
	})
}

// Packet is the first packet of a connection that the host forwards, receives or sends, or an answer. A device may be "" and an
// address invalid if it is not known.
type Packet struct {
	In, Out  string
	From, To netip.Addr
	// Protocol is "tcp" or "udp", or "" for any. Port is the server's, or 0 for any.
	Protocol string
	Port     uint16
	IsReply  bool
	// IsFrame means that it is between In, a port or its bridge, and Out. IsLocal means that the host receives it at In or sends it at Out.
	IsFrame, IsLocal bool
	// IsARP means that it is a request of ARP.
	IsARP bool
	// IsTranslated means that NAT may have changed its destination. Original is that before, if it is known.
	IsTranslated bool
	Original     netip.AddrPort
}

// Drop is another program's rule or policy that drops a packet.
type Drop = verdict.Drop

// Verdict is what is known about the end of a packet.
type Verdict = verdict.Verdict

// ephemeral is a port that clients use (RFC 6335).
const ephemeral = 50000

// Verdicts returns what the rules do with each of the packets.
func Verdicts(ctx context.Context, filter *Filter, packets ...Packet) (all []Verdict, err error) {
	all = make([]Verdict, len(packets))
	for i, p := range packets {
		q := verdict.Packet{
			Direction: verdict.Forwarded, In: p.In, Out: p.Out, Source: netip.AddrPortFrom(p.From, 0), Destination: netip.AddrPortFrom(p.To, p.Port),
			Protocol: nft.ProtocolNumber(p.Protocol), State: verdict.New, IsTranslated: p.IsTranslated, IsARP: p.IsARP,
		}
		if p.Port != 0 {
			q.Source = netip.AddrPortFrom(p.From, ephemeral)
		}
		if p.IsReply {
			q.State, q.Source, q.Destination = verdict.Established, netip.AddrPortFrom(p.From, p.Port), netip.AddrPortFrom(p.To, q.Source.Port())
		}
		if !p.IsReply {
			q.Original = p.Original
		}
		switch {
		case p.IsFrame:
			q.Direction = verdict.Frame
		case p.IsLocal && p.In != "":
			q.Direction = verdict.Received
		case p.IsLocal:
			q.Direction = verdict.Sent
		}
		all[i], err = filter.Verdict(ctx, q)
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// RoutingMark returns the mark that the rules give a packet before the host routes it, or 0 if it is not known.
func RoutingMark(ctx context.Context, filter *Filter, p Packet) (uint32, error) {
	q := verdict.Packet{
		Direction: verdict.Forwarded, In: p.In, Source: netip.AddrPortFrom(p.From, 0), Destination: netip.AddrPortFrom(p.To, p.Port),
		Protocol: nft.ProtocolNumber(p.Protocol), State: verdict.New,
	}
	mark, known, err := filter.RoutingMark(ctx, q)
	if !known {
		mark = 0
	}
	return mark, err
}

// TranslatedBefore returns a rule that translates the packets to a port of the host before the rules of a published port do, or nil.
func TranslatedBefore(ctx context.Context, filter *Filter, in string, to netip.AddrPort, protocol string) (*Drop, error) {
	p := verdict.Packet{Direction: verdict.Received, In: in, Destination: to, Protocol: nft.ProtocolNumber(protocol), State: verdict.New}
	return filter.Translates(ctx, p, ruleset.PriorityPublished)
}
