package podfilter

import (
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/nft"
)

// MapPrefix begins the names of sets of the kind Verdicts.
const MapPrefix = "m_"

// portSize is the length of a port in a member of a set of the kind Verdicts.
const portSize = 2

// PortVerdict returns a member of a set of the kind Verdicts. nft shows the label.
func PortVerdict(port uint16, verdict, label string) string {
	return Key(netip.Addr{}, port) + verdict + "\x00" + label
}

// Verdict returns the verdict of a port in a set of the kind Verdicts, and its label. Both are "" if the set does not have the port.
func (s *Set) Verdict(port uint16) (verdict, label string) {
	for m := range s.members {
		if strings.HasPrefix(m, Key(netip.Addr{}, port)) && port > 0 {
			verdict, label, _ = strings.Cut(m[portSize:], "\x00")
		}
	}
	return verdict, label
}

// verdictEntry returns the element of a map for a member. If the verdict is not valid, the kernel refuses the element.
func verdictEntry(set *nft.Set, member string) *nft.Entry {
	verdict, label, _ := strings.Cut(member[portSize:], "\x00")
	n, _ := (&nft.Entry{Set: set, Key: []byte(member[:portSize])}).With(verdict)
	return n.Labelled(label)
}

// memberOfMap is the inverse of verdictEntry.
func memberOfMap(n *nft.Entry) string { return string(n.Key) + n.Value() + "\x00" + n.Label() }
