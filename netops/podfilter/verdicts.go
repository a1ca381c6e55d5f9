package podfilter

import (
	"math"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// MapPrefix begins the names of sets of the kind Verdicts.
const MapPrefix = "m_"

// A member of a set of the kind Verdicts is the first port of a range with its verdict and a label, or the port behind a range. In their
// order the end of a range is before the begin of the next, as the kernel wants them.
const (
	portSize     = 2
	endOfPorts   = "\x00"
	beginOfPorts = "\x01"
)

// AddVerdict adds a range of ports to a set of the kind Verdicts. The ranges of a set do not overlap. nft shows the label.
func (s *Set) AddVerdict(first, last uint16, verdict, label string) {
	s.Add(Key(netip.Addr{}, first) + beginOfPorts + verdict + "\x00" + label)
	if last < math.MaxUint16 {
		s.Add(Key(netip.Addr{}, last+1) + endOfPorts)
	}
}

// Verdict returns the verdict of a port in a set of the kind Verdicts, and its label. Both are "" if the set does not have the port.
func (s *Set) Verdict(port uint16) (verdict, label string) {
	last, key := "", Key(netip.Addr{}, port)
	for m := range s.members {
		if port > 0 && m[:portSize] <= key && m > last {
			last = m
		}
	}
	if len(last) == 0 || last[portSize:portSize+1] == endOfPorts {
		return "", ""
	}
	verdict, label, _ = strings.Cut(last[portSize+1:], "\x00")
	return verdict, label
}

// verdictEntry returns the element of a map for a member. If the verdict is not valid, the kernel refuses the element.
func verdictEntry(set *nft.Set, member string) *nft.Entry {
	n := &nft.Entry{Set: set, Key: []byte(member[:portSize]), IsEnd: member[portSize:portSize+1] == endOfPorts}
	if n.IsEnd {
		return n
	}
	verdict, label, _ := strings.Cut(member[portSize+1:], "\x00")
	n, _ = n.With(verdict)
	return n.Labelled(label)
}

// memberOfMap is the inverse of verdictEntry.
func memberOfMap(n *nft.Entry) string {
	if n.IsEnd {
		return string(n.Key) + endOfPorts
	}
	return string(n.Key) + beginOfPorts + n.Value() + "\x00" + n.Label()
}
