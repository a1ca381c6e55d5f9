package verdict

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// The flags of an element (linux/netfilter/nf_tables.h). An element with flagIntervalEnd is the first key behind an interval
// in a set without concatenated fields.
const (
	flagIntervalEnd = 1
	flagCatchAll    = 2
)

func isEnd(e *nft.HeldElement) bool { return e.Flags&flagIntervalEnd != 0 }

// elements reads a set, in the order of the keys.
func (r *nftRule) elements(name string) []nft.HeldElement {
	id := chainID{r.Table, name}
	if all, known := r.filter.sets[id]; known {
		return all
	}
	all, err := nft.Elements(r.ctx, r.filter.nft, r.Table, name)
	r.filter.err = errors.Join(r.filter.err, err)
	sorting.Stable(all, func(a, b nft.HeldElement) int {
		order := bytes.Compare(a.Key, b.Key)
		if order == 0 && isEnd(&a) && !isEnd(&b) {
			return -1 // an interval may begin where another one ends
		}
		return order
	})
	r.filter.sets[id] = all
	return all
}

// lookup searches a set for the key in the registers. verdicts are those of a verdict map, and nil for other sets.
func (r *nftRule) lookup(e *nft.Expression, g registers) (matches truth, verdicts []string) {
	source, _ := e.Number(unix.NFTA_LOOKUP_SREG)
	flags, _ := e.Number(unix.NFTA_LOOKUP_FLAGS)
	all := r.elements(nlconn.Text(e.Attr(unix.NFTA_LOOKUP_SET)))
	isIntervals := false
	for i := range all {
		isIntervals = isIntervals || isEnd(&all[i])
	}
	found := func(one *nft.HeldElement, is truth) {
		matches, verdicts = max(matches, is), append(verdicts, nft.VerdictText(one.Data))
	}
	for i := range all {
		one := &all[i]
		key := g.get(source, len(one.Key))
		switch {
		case one.Flags&flagCatchAll != 0: // for keys that no other element has
			if matches != yes {
				found(one, yes)
			}
		case isEnd(one):
		case one.End != nil:
			if key.isKnown() && (bytes.Compare(key.bits, one.Key) < 0 || bytes.Compare(key.bits, one.End) > 0) {
				continue
			}
			if bytes.Equal(one.Key, one.End) {
				if is := key.equals(one.Key); is != no {
					found(one, is)
				}
				continue
			}
			found(one, maybe) // the lengths of the fields are not known
		case isIntervals:
			if !key.isKnown() {
				found(one, maybe)
			} else if bytes.Compare(one.Key, key.bits) <= 0 && (i+1 == len(all) || bytes.Compare(key.bits, all[i+1].Key) < 0) {
				found(one, yes)
			}
		default:
			if is := key.equals(one.Key); is != no {
				found(one, is)
			}
		}
	}
	if to, ok := e.Number(unix.NFTA_LOOKUP_DREG); !ok || to != unix.NFT_REG_VERDICT {
		if ok {
			g.set(to, value{})
		}
		verdicts = nil
	}
	if flags&unix.NFT_LOOKUP_F_INV != 0 {
		matches = matches.not()
	}
	return matches, verdicts
}

// Sizes and offsets of iptables' matches and targets: struct xt_tcp and xt_udp, which begin with the ranges of ports; struct xt_multiport_v1; struct
// xt_conntrack_mtinfo3, whose first revision has the same begin; struct xt_state_info.
const (
	tcpSize          = 12
	udpSize          = 9
	multiportSize    = 48
	markSize         = 9
	markTargetSize   = 8
	conntrackFlags   = 146
	conntrackInvert  = 148
	conntrackState   = 150
	conntrackByState = 1
	conntrackAlias   = 1 << 13 // -m state
	rpfilterInvert   = 1 << 3
	pkttypeSize      = 8
	addrtypeSize     = 8
	addrtypeInvert   = 1 << 1
	// statesTranslated are the states SNAT and DNAT of xt_conntrack.
	statesTranslated = 1<<6 | 1<<7
)

// iptablesMatch compares the packet with a match of iptables.
func (p *Packet) iptablesMatch(name string, info []byte) truth {
	short := func(at int) uint16 { return binary.NativeEndian.Uint16(info[at:]) }
	long := func(at int) uint32 { return binary.NativeEndian.Uint32(info[at:]) }
	state := func(mask uint16, invert bool) truth {
		bit := map[State]uint16{New: stateNew, Established: stateEstablished}[p.State]
		if bit == 0 || mask&bit == 0 && mask&statesTranslated != 0 && p.mayBeTranslated() {
			return maybe
		}
		return is((mask&bit != 0) != invert)
	}
	switch {
	case name == "udp" && len(info) >= udpSize:
		source := within(p.Source.Port(), short(0), short(2), info[8]&1 != 0)
		return min(source, within(p.Destination.Port(), short(4), short(6), info[8]&2 != 0))
	case name == "tcp" && len(info) >= tcpSize && info[8] == 0: // no condition on options
		source := within(p.Source.Port(), short(0), short(2), info[11]&1 != 0)
		flags, ok := p.tcpFlags()
		matches := is((flags&info[9] == info[10]) != (info[11]&4 != 0))
		if !ok && info[9] != 0 {
			matches = maybe
		}
		return min(source, matches, within(p.Destination.Port(), short(4), short(6), info[11]&2 != 0))
	case name == "multiport" && len(info) >= multiportSize:
		return p.multiport(info)
	case name == "conntrack" && len(info) >= conntrackState+2 && short(conntrackFlags)&^conntrackAlias == conntrackByState:
		return state(short(conntrackState), short(conntrackInvert)&conntrackByState != 0)
	case name == "state" && len(info) >= 4:
		return state(short(0), false)
	case name == "rpfilter" && len(info) > 0: // as the expression fib
		return is(info[0]&rpfilterInvert == 0)
	case name == "pkttype" && len(info) >= pkttypeSize:
		return is((long(0) == unix.PACKET_HOST) == (long(4) == 0))
	case name == "addrtype" && len(info) >= addrtypeSize && short(0) == 0 && p.fib(fibByType, 0).isKnown():
		return is((short(2)&(1<<unix.RTN_UNICAST) != 0) == (long(4)&addrtypeInvert == 0))
	case name == "mark" && len(info) >= markSize:
		matches := p.marked().equalsMasked(long(0), long(4))
		if info[8] != 0 {
			return matches.not()
		}
		return matches
	}
	return maybe
}

// marked returns the packet's mark.
func (p *Packet) marked() value {
	return value{binary.NativeEndian.AppendUint32(nil, p.mark), binary.NativeEndian.AppendUint32(nil, ^p.unknownMark)}
}

// equalsMasked compares the bits of a mask with a number.
func (v value) equalsMasked(want, mask uint32) truth {
	bits, known := binary.NativeEndian.Uint32(v.bits), binary.NativeEndian.Uint32(v.known)
	if (bits&mask^want)&(known|^mask) != 0 {
		return no
	}
	return max(is(known&mask == mask), maybe)
}

// setMark sets the bits of a mask if a rule matches, as the target MARK does. Only the known ones are known then.
func (p *Packet) setMark(bits, known, mask uint32, matches truth) {
	mark, unknown := p.mark&^mask^bits, p.unknownMark&^mask|(mask|bits)&^known
	if matches != yes {
		unknown |= p.unknownMark | mark ^ p.mark
	}
	p.mark, p.unknownMark = mark, unknown
}

// mayBeTranslated reports whether NAT may have changed an address of the packet's connection.
func (p *Packet) mayBeTranslated() bool { return p.IsTranslated || p.State != New }

// within reports whether a port is in a range. Port 0 is not known.
func within(port, first, last uint16, invert bool) truth {
	switch {
	case first == 0 && last == 0xffff:
		return is(!invert)
	case port == 0:
		return maybe
	}
	return is((first <= port && port <= last) != invert)
}

// multiport compares the ports with those of a match that is not truncated.
func (p *Packet) multiport(info []byte) truth {
	ports, direction, inverted := iptables.Multiport(info)
	port := p.Destination.Port()
	switch direction {
	case 0:
		port = p.Source.Port()
	case 1:
	default:
		return maybe
	}
	matches := no
	for _, r := range ports {
		matches = max(matches, within(port, r.First, r.Last, false))
	}
	if inverted {
		return matches.not()
	}
	return matches
}
