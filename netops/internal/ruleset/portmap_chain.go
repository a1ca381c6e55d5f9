package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// conditionChain is the prefix of the names of chains of conditions. The
	// family follows.
	conditionChain = "portmap_if"
	// markChain is the prefix of the names of chains that set a mark bit. The
	// bit's number follows.
	markChain = "portmap_bit"
	// maxMarkBit is the last bit of a packet's mark.
	maxMarkBit = 31
)

// PortCondition is a condition on packets for a port mapping. Exactly one of
// Source, Destination and Input is set.
type PortCondition struct {
	// Source and Destination are prefixes that contain the packet's address.
	Source, Destination netip.Prefix
	// Input is the name of the input device, or the beginning of the name and a
	// final "*". Packets of the node itself have no input device.
	Input string
	// Not inverts the condition.
	Not bool
}

// ConditionVerdict returns the value of an element of portmap_if4, portmap_if6,
// portmap_ip_if4 or portmap_ip_if6. The value refers to a chain, made with the
// element, that maps the port if the packet meets all conditions. The error wraps
// ErrInvalid and names the condition.
func ConditionVerdict(v6 bool, conditions []PortCondition) (string, error) {
	name := conditionChain + "4"
	if v6 {
		name = conditionChain + "6"
	}
	for _, c := range conditions {
		text, err := c.encode(v6)
		if err != nil {
			return "", err
		}
		name += text
	}
	if len(name) >= unix.NFT_NAME_MAXLEN {
		return "", fmt.Errorf("%d conditions: %w: they are more than the %d bytes that a chain's name can tell", len(conditions), nlconn.ErrInvalid, unix.NFT_NAME_MAXLEN-1)
	}
	return "goto " + name, nil
}

// MarkVerdict returns the value of an element of portmap_mark4 or portmap_mark6.
// The value refers to a chain, made with the element, that sets one bit of the
// mark.
func MarkVerdict(bit int) (string, error) {
	if bit < 0 || bit > maxMarkBit {
		return "", fmt.Errorf("mark bit %d: %w: use 0 to %d", bit, nlconn.ErrInvalid, maxMarkBit)
	}
	return "jump " + markChain + strconv.Itoa(bit), nil
}

// encode returns the condition as a part of a chain's name. nft reads the name as
// one word: "/not/saddr/10.0.0.0/8", "/iif/eth0", "/iif/eth/any".
func (c PortCondition) encode(v6 bool) (string, error) {
	text := ""
	if c.Not {
		text = "/not"
	}
	address := func(word string, p netip.Prefix) (string, error) {
		if !p.IsValid() || p.Addr().Is4() == v6 || p.Addr().Zone() != "" {
			return "", fmt.Errorf("%s %s: %w: of the wrong address family", word, p, nlconn.ErrInvalid)
		}
		return text + "/" + word + "/" + strings.ReplaceAll(p.Masked().String(), ":", "_"), nil
	}
	switch {
	case c.Source != netip.Prefix{}:
		return address("saddr", c.Source)
	case c.Destination != netip.Prefix{}:
		return address("daddr", c.Destination)
	}
	name, pattern := strings.CutSuffix(c.Input, "*")
	if _, err := nft.EncodeIfName(name); err != nil || strings.ContainsFunc(name, endsWord) {
		return "", fmt.Errorf("input device %q: %w: use letters, digits, '-', '_' and '.'", c.Input, nlconn.ErrInvalid)
	}
	text += "/iif/" + name
	if pattern {
		text += "/any"
	}
	return text, nil
}

// endsWord reports whether nft does not accept a rune within a word.
func endsWord(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// portMapChain returns the chain of conditions or of a mark bit that has a name.
// ok is false for other names.
func portMapChain(name string) (c nft.Chain, ok bool) {
	if bit, found := strings.CutPrefix(name, markChain); found {
		n, err := strconv.Atoi(bit)
		if err != nil || n < 0 || n > maxMarkBit || strconv.Itoa(n) != bit {
			return nft.Chain{}, false
		}
		return nft.Chain{Name: name, Rules: []nft.Rule{nft.NewRule(nft.SetMarkBit(n))}}, true
	}
	rest, found := strings.CutPrefix(name, conditionChain)
	if !found || rest == "" || rest[0] != '4' && rest[0] != '6' {
		return nft.Chain{}, false
	}
	conditions, err := decodeConditions(rest[1:])
	if err != nil {
		return nft.Chain{}, false
	}
	var parts nft.Rule
	for _, c := range conditions {
		if _, err := c.encode(rest[0] == '6'); err != nil {
			return nft.Chain{}, false
		}
		parts = append(parts, c.part())
	}
	return nft.Chain{Name: name, Rules: []nft.Rule{append(parts, nft.Goto(portMapTranslate))}}, true
}

var errNoCondition = errors.New("no condition")

// decodeConditions is the inverse of encode for several conditions.
func decodeConditions(text string) ([]PortCondition, error) {
	words := strings.Split(text, "/")
	if words[0] != "" || len(words) < 2 {
		return nil, errNoCondition
	}
	words = words[1:]
	var all []PortCondition
	for len(words) > 0 {
		var c PortCondition
		if words[0] == "not" {
			c.Not, words = true, words[1:]
		}
		if len(words) < 2 {
			return nil, errNoCondition
		}
		used := 2
		switch words[0] {
		case "iif":
			c.Input = words[1]
			if len(words) > 2 && words[2] == "any" {
				c.Input, used = c.Input+"*", 3
			}
		case "saddr", "daddr":
			if len(words) < 3 {
				return nil, errNoCondition
			}
			p, err := netip.ParsePrefix(strings.ReplaceAll(words[1], "_", ":") + "/" + words[2])
			if err != nil {
				return nil, err
			}
			used = 3
			c.Source = p
			if words[0] == "daddr" {
				c.Source, c.Destination = netip.Prefix{}, p
			}
		default:
			return nil, errNoCondition
		}
		all, words = append(all, c), words[used:]
	}
	return all, nil
}

// part returns the condition as a part of a rule.
func (c PortCondition) part() nft.Part {
	op := uint32(unix.NFT_CMP_EQ)
	if c.Not {
		op = unix.NFT_CMP_NEQ
	}
	switch {
	case c.Source.IsValid():
		return nft.Within(c.Source.String(), nft.Source4, nft.Source6, op)
	case c.Destination.IsValid():
		return nft.Within(c.Destination.String(), nft.Destination4, nft.Destination6, op)
	}
	return func(b *nft.Builder) {
		name, pattern := strings.CutSuffix(c.Input, "*")
		data := []byte(name)
		if !pattern {
			data = append(data, make([]byte, unix.IFNAMSIZ-len(name))...)
		}
		b.Meta(unix.NFT_META_IIFNAME, b.Next)
		b.Compare(op, b.Next, data)
	}
}
