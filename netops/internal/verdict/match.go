package verdict

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// element is an element of a set. end is the last key of an interval in a set of concatenated fields. In other
// sets of intervals isEnd marks the first key behind an interval.
type element struct {
	key, end        []byte
	isEnd, catchAll bool
	verdict         string
}

// The flags of an element (linux/netfilter/nf_tables.h), and the attribute of the end of an interval.
const (
	flagIntervalEnd   = 1
	flagCatchAll      = 2
	nftaSetElemKeyEnd = 10
)

// elements reads a set, in the order of the keys.
func (r *nftRule) elements(name string) []element {
	id := chainID{r.Table, name}
	if all, known := r.filter.sets[id]; known {
		return all
	}
	m := nft.Request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, r.Table.Family)
	m.Text(unix.NFTA_SET_ELEM_LIST_TABLE, r.Table.Name)
	m.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
	parts, err := nft.List(r.ctx, r.filter.nft, m, func(attrs []byte) (some []element, selected bool, err error) {
		list, err := nlconn.Find(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		err = errors.Join(err, nlconn.EachAttr(list, func(_ uint16, v []byte) error {
			e, err := decodeElement(v)
			some = append(some, e)
			return err
		}))
		return some, true, err
	})
	all := slices.Concat(parts...)
	r.filter.err = errors.Join(r.filter.err, err)
	sorting.Stable(all, func(a, b element) int {
		order := bytes.Compare(a.key, b.key)
		if order == 0 && a.isEnd && !b.isEnd {
			return -1 // an interval may begin where another one ends
		}
		return order
	})
	r.filter.sets[id] = all
	return all
}

func decodeElement(attrs []byte) (e element, err error) {
	err = nlconn.EachAttr(attrs, func(kind uint16, v []byte) (err error) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.key, err = nft.DecodeData(v)
		case nftaSetElemKeyEnd:
			e.end, err = nft.DecodeData(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.isEnd, e.catchAll = nlconn.Net32(v)&flagIntervalEnd != 0, nlconn.Net32(v)&flagCatchAll != 0
		case unix.NFTA_SET_ELEM_DATA:
			var data []byte
			data, err = nft.DecodeData(v)
			e.verdict = nft.VerdictText(data)
		}
		return err
	})
	return e, err
}

// lookup searches a set for the key in the registers. verdicts are those of a verdict map, and nil for other sets.
func (r *nftRule) lookup(e *nft.Expression, g registers) (matches truth, verdicts []string) {
	source, _ := e.Number(unix.NFTA_LOOKUP_SREG)
	flags, _ := e.Number(unix.NFTA_LOOKUP_FLAGS)
	all := r.elements(nlconn.Text(e.Attr(unix.NFTA_LOOKUP_SET)))
	isIntervals := false
	for i := range all {
		isIntervals = isIntervals || all[i].isEnd
	}
	found := func(one *element, is truth) {
		matches, verdicts = max(matches, is), append(verdicts, one.verdict)
	}
	for i := range all {
		one := &all[i]
		key := g.get(source, len(one.key))
		switch {
		case one.catchAll: // for keys that no other element has
			if matches != yes {
				found(one, yes)
			}
		case one.isEnd:
		case one.end != nil:
			if key.isKnown() && (bytes.Compare(key.bits, one.key) < 0 || bytes.Compare(key.bits, one.end) > 0) {
				continue
			}
			if bytes.Equal(one.key, one.end) {
				if is := key.equals(one.key); is != no {
					found(one, is)
				}
				continue
			}
			found(one, maybe) // the lengths of the fields are not known
		case isIntervals:
			if !key.isKnown() {
				found(one, maybe)
			} else if bytes.Compare(one.key, key.bits) <= 0 && (i+1 == len(all) || bytes.Compare(key.bits, all[i+1].key) < 0) {
				found(one, yes)
			}
		default:
			if is := key.equals(one.key); is != no {
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

// Sizes and offsets of iptables' matches: struct xt_tcp and xt_udp, which begin with the ranges of ports; struct xt_multiport_v1; struct
// xt_conntrack_mtinfo3, whose first revision has the same begin; struct xt_state_info.
const (
	tcpSize          = 12
	udpSize          = 9
	multiportSize    = 48
	multiportMax     = 15
	conntrackFlags   = 146
	conntrackInvert  = 148
	conntrackState   = 150
	conntrackByState = 1
	// statesTranslated are the states SNAT and DNAT of xt_conntrack.
	statesTranslated = 1<<6 | 1<<7
)

// iptablesMatch compares the packet with a match of iptables.
func (p *Packet) iptablesMatch(name string, info []byte) truth {
	short := func(at int) uint16 { return binary.NativeEndian.Uint16(info[at:]) }
	state := func(mask uint16, invert bool) truth {
		if !p.IsNew || mask&stateNew == 0 && mask&statesTranslated != 0 {
			return maybe
		}
		return is((mask&stateNew != 0) != invert)
	}
	switch {
	case name == "udp" && len(info) >= udpSize:
		source := within(p.Source.Port(), short(0), short(2), info[8]&1 != 0)
		return min(source, within(p.Destination.Port(), short(4), short(6), info[8]&2 != 0))
	case name == "tcp" && len(info) >= tcpSize && info[8]|info[9] == 0: // no condition on options and flags
		source := within(p.Source.Port(), short(0), short(2), info[11]&1 != 0)
		return min(source, within(p.Destination.Port(), short(4), short(6), info[11]&2 != 0))
	case name == "multiport" && len(info) >= multiportSize:
		return p.multiport(info, short)
	case name == "conntrack" && len(info) >= conntrackState+2 && short(conntrackFlags) == conntrackByState:
		return state(short(conntrackState), short(conntrackInvert)&conntrackByState != 0)
	case name == "state" && len(info) >= 4:
		return state(short(0), false)
	}
	return maybe
}

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

// multiport compares the ports with those of struct xt_multiport_v1: flags, which are 0 for source ports,
// 1 for destination ports and 2 for either, a count, ports, marks of the first port of a range, and invert.
func (p *Packet) multiport(info []byte, short func(at int) uint16) truth {
	port := p.Destination.Port()
	switch info[0] {
	case 0:
		port = p.Source.Port()
	case 1:
	default:
		return maybe
	}
	matches, count := no, min(int(info[1]), multiportMax)
	for i := 0; i < count; i++ {
		first := short(2 + 2*i)
		last := first
		if info[2+2*multiportMax+i] != 0 && i+1 < count {
			i++
			last = short(2 + 2*i)
		}
		matches = max(matches, within(port, first, last, false))
	}
	if info[multiportSize-1] != 0 {
		return matches.not()
	}
	return matches
}
