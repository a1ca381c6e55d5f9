package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	// maxAlternatives is the number of rules in a chain of conditions: each combination
	// of values of which one must match is a rule.
	maxAlternatives = 64
	// maxMarkBit is the last bit of a packet's mark.
	maxMarkBit = 31
)

// PortCondition is a condition on packets for a port mapping. Exactly one of
// Source, Destination and Input is set, and one of its values must match.
type PortCondition struct {
	// Source and Destination are prefixes that contain the packet's address.
	Source, Destination []netip.Prefix
	// Input are names of the input device, or the beginning of the name and a
	// final "*". Packets of the node itself have no input device.
	Input []string
	// Not inverts the condition: no value may match.
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
	if n := alternatives(conditions); n > maxAlternatives {
		return "", fmt.Errorf("%d conditions: %w: they have more than %d combinations of values", len(conditions), nlconn.ErrInvalid, maxAlternatives)
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

// alternatives returns the number of rules that conditions need, at most one more than
// maxAlternatives.
func alternatives(conditions []PortCondition) int {
	n := 1
	for _, c := range conditions {
		if !c.Not {
			n = min(n*c.values(), maxAlternatives+1)
		}
	}
	return n
}

// values returns the number of the condition's values.
func (c *PortCondition) values() int { return len(c.Source) + len(c.Destination) + len(c.Input) }

// encode returns the condition as a part of a chain's name. nft reads the name as
// one word: "/not/saddr/10.0.0.0/8/or/11.0.0.0/8", "/iif/eth0".
func (c *PortCondition) encode(v6 bool) (string, error) {
	var all []string
	for _, p := range slices.Concat(c.Source, c.Destination) {
		if !p.IsValid() || p.Addr().Is4() == v6 || p.Addr().Zone() != "" {
			return "", fmt.Errorf("address %s: %w: of the wrong address family", p, nlconn.ErrInvalid)
		}
		all = append(all, strings.ReplaceAll(p.Masked().String(), ":", "_"))
	}
	for _, input := range c.Input {
		name, pattern := strings.CutSuffix(input, "*")
		if _, err := nft.EncodeIfName(name); err != nil || strings.ContainsFunc(name, endsWord) {
			return "", fmt.Errorf("input device %q: %w: use letters, digits, '-', '_' and '.'", input, nlconn.ErrInvalid)
		}
		if pattern {
			name += "/any"
		}
		all = append(all, name)
	}
	word := "/iif/"
	switch {
	case len(all) == 0:
		return "", fmt.Errorf("condition without a value: %w", nlconn.ErrInvalid)
	case len(c.Source) > 0:
		word = "/saddr/"
	case len(c.Destination) > 0:
		word = "/daddr/"
	}
	if c.Not {
		word = "/not" + word
	}
	return word + strings.Join(all, "/or/"), nil
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
	if alternatives(conditions) > maxAlternatives {
		return nft.Chain{}, false
	}
	rules := []nft.Rule{nil}
	for i := range conditions {
		if _, err := conditions[i].encode(rest[0] == '6'); err != nil {
			return nft.Chain{}, false
		}
		var longer []nft.Rule
		for _, r := range rules {
			for _, parts := range conditions[i].parts() {
				longer = append(longer, slices.Concat(r, parts))
			}
		}
		rules = longer
	}
	for i := range rules {
		rules[i] = append(rules[i], nft.Goto(portMapTranslate))
	}
	return nft.Chain{Name: name, Rules: rules}, true
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
		rest, err := c.decodeValues(words)
		if err != nil {
			return nil, err
		}
		all, words = append(all, c), rest
	}
	return all, nil
}

// decodeValues reads the kind and the values of one condition and returns the words behind them.
func (c *PortCondition) decodeValues(words []string) ([]string, error) {
	if len(words) == 0 || words[0] != "iif" && words[0] != "saddr" && words[0] != "daddr" {
		return nil, errNoCondition
	}
	kind := words[0]
	for more := true; more; more = len(words) > 0 && words[0] == "or" {
		words = words[1:]
		if kind == "iif" {
			if len(words) < 1 {
				return nil, errNoCondition
			}
			name := words[0]
			words = words[1:]
			if len(words) > 0 && words[0] == "any" {
				name, words = name+"*", words[1:]
			}
			c.Input = append(c.Input, name)
			continue
		}
		if len(words) < 2 {
			return nil, errNoCondition
		}
		p, err := netip.ParsePrefix(strings.ReplaceAll(words[0], "_", ":") + "/" + words[1])
		if err != nil {
			return nil, err
		}
		words = words[2:]
		if kind == "saddr" {
			c.Source = append(c.Source, p)
		} else {
			c.Destination = append(c.Destination, p)
		}
	}
	return words, nil
}

// parts returns the condition as parts of rules: of one rule if no value may match, else of a rule for each value.
func (c *PortCondition) parts() (all []nft.Rule) {
	op := uint32(unix.NFT_CMP_EQ)
	if c.Not {
		op = unix.NFT_CMP_NEQ
	}
	var one nft.Rule
	for _, p := range c.Source {
		one = append(one, nft.Within(p.String(), nft.Source4, nft.Source6, op))
	}
	for _, p := range c.Destination {
		one = append(one, nft.Within(p.String(), nft.Destination4, nft.Destination6, op))
	}
	for _, input := range c.Input {
		one = append(one, fromDevice(input, op))
	}
	if c.Not {
		return []nft.Rule{one}
	}
	for _, p := range one {
		all = append(all, nft.Rule{p})
	}
	return all
}

// fromDevice compares the input device's name, or its beginning before a final "*".
func fromDevice(input string, op uint32) nft.Part {
	name, pattern := strings.CutSuffix(input, "*")
	data := []byte(name)
	if !pattern {
		data = append(data, make([]byte, unix.IFNAMSIZ-len(name))...)
	}
	return nft.CompareMeta(unix.NFT_META_IIFNAME, op, data)
}
