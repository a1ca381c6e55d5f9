package portmap

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
)

// supported is the end of an error about an unsupported condition.
const supported = "use -s, -d or -i of iptables, or ip saddr, ip daddr (ip6 for IPv6) or iifname of nft, with addresses, networks or devices"

// parseConditions parses the words of conditionsV4 or conditionsV6. They are
// rule arguments of iptables or of nft; the first word of each condition shows
// which.
func parseConditions(v6 bool, args []string) ([]netops.PortCondition, error) {
	apart := strings.NewReplacer("{", " { ", "}", " } ", ",", " , ")
	w := &wordReader{words: strings.Fields(apart.Replace(strings.Join(args, " "))), v6: v6}
	var all []netops.PortCondition
	for len(w.words) > 0 {
		c, err := w.condition()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// conditionVerdict is the nftables verdict for the conditions, or "" if there
// are none.
func conditionVerdict(v6 bool, words []string) (string, error) {
	conditions, err := parseConditions(v6, words)
	if err != nil || len(conditions) == 0 {
		return "", err
	}
	return netops.ConditionVerdict(v6, conditions)
}

// wordReader reads words one by one.
type wordReader struct {
	words []string
	v6    bool
}

// errCut means that the words end within a condition.
var errCut = errors.New("incomplete condition: " + supported)

func (w *wordReader) word() (string, error) {
	if len(w.words) == 0 {
		return "", errCut
	}
	word := w.words[0]
	w.words = w.words[1:]
	return word, nil
}

// negation reads the next word if it is "==" or the given negation operator. It
// reports whether it was the negation operator.
func (w *wordReader) negation(not string) bool {
	if len(w.words) == 0 || w.words[0] != not && w.words[0] != "==" {
		return false
	}
	is := w.words[0] == not
	w.words = w.words[1:]
	return is
}

// condition reads one condition of iptables or nft.
func (w *wordReader) condition() (netops.PortCondition, error) {
	var c netops.PortCondition
	c.Not = w.negation("!")
	word, err := w.word()
	if err != nil {
		return c, err
	}
	switch word {
	case "-s", "--source", "--src":
		c.Source, err = w.prefixes(w.values)
	case "-d", "--destination", "--dst":
		c.Destination, err = w.prefixes(w.values)
	case "-i", "--in-interface":
		word, err = w.word()
		if begin, ok := strings.CutSuffix(word, "+"); ok {
			word = begin + "*"
		}
		c.Input = []string{word}
	default:
		if c.Not {
			return c, fmt.Errorf("%q after \"!\" is not supported: %s", word, supported)
		}
		return w.nftCondition(word)
	}
	return c, err
}

// nftCondition reads the rest of an nft condition after its first word.
func (w *wordReader) nftCondition(word string) (netops.PortCondition, error) {
	var c netops.PortCondition
	family := "ip"
	if w.v6 {
		family = "ip6"
	}
	switch word {
	case family:
		field, err := w.word()
		if err != nil {
			return c, err
		}
		c.Not = w.negation("!=")
		switch field {
		case "saddr":
			c.Source, err = w.prefixes(w.set)
		case "daddr":
			c.Destination, err = w.prefixes(w.set)
		default:
			err = fmt.Errorf("%q is not supported: %s", word+" "+field, supported)
		}
		return c, err
	case "iifname", "iif":
		c.Not = w.negation("!=")
		names, err := w.set()
		for _, name := range names {
			c.Input = append(c.Input, strings.Trim(name, `"`))
		}
		return c, err
	}
	return c, fmt.Errorf("%q is not supported: %s", word, supported)
}

// values reads one value, or several in the form of iptables: "10.0.0.0/8,192.0.2.1".
func (w *wordReader) values() (all []string, err error) {
	for more := true; more && err == nil; more = w.skip(",") {
		var word string
		word, err = w.word()
		all = append(all, word)
	}
	return all, err
}

// set reads one value, or several in the form of nft: "{ 10.0.0.0/8, 192.0.2.1 }".
func (w *wordReader) set() ([]string, error) {
	if !w.skip("{") {
		word, err := w.word()
		return []string{word}, err
	}
	all, err := w.values()
	if err == nil && !w.skip("}") {
		err = errors.New("a set without \"}\", or without \",\" between its values: " + supported)
	}
	return all, err
}

// skip reads the next word if it is the given one, and reports whether it was.
func (w *wordReader) skip(word string) bool {
	is := len(w.words) > 0 && w.words[0] == word
	if is {
		w.words = w.words[1:]
	}
	return is
}

// prefixes reads addresses or networks of the address family.
func (w *wordReader) prefixes(read func() ([]string, error)) ([]netip.Prefix, error) {
	words, err := read()
	if err != nil {
		return nil, err
	}
	all := make([]netip.Prefix, len(words))
	for i, word := range words {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			a, err := roles.ParseAddr(word)
			if err != nil {
				return nil, fmt.Errorf("%q is not an address or a network: %s", word, supported)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Addr().Is4() == w.v6 {
			return nil, fmt.Errorf("%q is of the other address family", word)
		}
		all[i] = p.Masked()
	}
	return all, nil
}
