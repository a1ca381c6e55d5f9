package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxExpression limits the length of an expression, and so the depth of its parentheses.
const maxExpression = 4096

// Compile translates an expression in the language of pcap-filter(7) to classic BPF, for packets that begin with
// an Ethernet header. The program returns snaplen for the packets that match, and 0 for others. An empty
// expression matches every packet.
//
// The words are those of protocols, ether, host, net, port, portrange, src, dst, vlan, and, or, not. Hosts and ports
// are numbers. A word after vlan is about the packet without the tag if the kernel has removed it. As in
// pcap-filter(7), "and" and "or" have the same precedence, and "port 80 or 443" repeats "port".
func Compile(expression string, snaplen uint32) ([]unix.SockFilter, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("filter of %d bytes: want at most %d", len(expression), maxExpression)
	}
	p := parser{words: split(expression)}
	if len(p.words) == 0 {
		return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: snaplen}}, nil
	}
	c, err := p.expression()
	if err == nil && len(p.words) > 0 {
		err = fmt.Errorf(`want "and" or "or" before %q`, p.words[0])
	}
	var program []unix.SockFilter
	if err == nil {
		program = assemble(c, snaplen)
		if len(program) > unix.BPF_MAXINSNS {
			err = fmt.Errorf("it needs %d instructions, and the kernel accepts %d: shorten it", len(program), unix.BPF_MAXINSNS)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w", expression, err)
	}
	return program, nil
}

// split returns the words of an expression.
func split(expression string) []string {
	return strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ", "!", " not ", "&&", " and ", "||", " or ").Replace(expression))
}

// parser reads the words of an expression.
type parser struct {
	words []string
	// last has the qualifiers of the last identifier: they hold for an identifier without qualifiers.
	last *qualifiers
}

// qualifiers are the words before an identifier, each may be empty: "tcp", "src", "port".
type qualifiers struct{ proto, direction, kind string }

const bothDirections, eitherDirection = "src and dst", "src or dst"

// peek returns the next word, or "" at the end.
func (p *parser) peek() string {
	if len(p.words) == 0 {
		return ""
	}
	return p.words[0]
}

// take returns the next word if it is one of those, and otherwise "".
func (p *parser) take(words ...string) string {
	w := p.peek()
	if w == "" || !slices.Contains(words, w) {
		return ""
	}
	p.words = p.words[1:]
	return w
}

func (p *parser) expression() (*condition, error) {
	c, err := p.term()
	for err == nil {
		op := p.take("and", "or")
		if op == "" {
			break
		}
		var right *condition
		right, err = p.term()
		c = &condition{op: op, of: []*condition{c, right}}
	}
	return c, err
}

func (p *parser) term() (*condition, error) {
	switch {
	case p.take("not") != "":
		c, err := p.term()
		return not(c), err
	case p.take("(") != "":
		return p.group()
	case p.take("vlan") != "":
		return p.vlan()
	}
	q := qualifiers{proto: p.take("ether", "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6"), direction: p.direction()}
	q.kind = p.take("host", "net", "port", "portrange")
	switch q {
	case qualifiers{}:
		if p.last == nil || !isIdentifier(p.peek()) {
			return nil, fmt.Errorf("want a condition such as %q instead of %q", "tcp port 80", p.peek())
		}
		q = *p.last
	case qualifiers{proto: q.proto}:
		if q.proto == "ether" {
			return nil, fmt.Errorf("want host, src or dst after ether instead of %q", p.peek())
		}
		p.last = nil
		return isProtocol(q.proto), nil
	}
	p.last = &q
	if p.take("(") != "" {
		return p.group()
	}
	id := p.peek()
	if !isIdentifier(id) {
		return nil, fmt.Errorf("want an address or port instead of %q", id)
	}
	p.words = p.words[1:]
	return q.condition(id)
}

// vlan reads the ID after the word vlan, if there is one.
func (p *parser) vlan() (*condition, error) {
	p.last = nil
	if !isIdentifier(p.peek()) {
		return isTagged(-1), nil
	}
	id, err := strconv.ParseUint(p.peek(), 10, 16)
	if err != nil || id > maxVLAN {
		return nil, fmt.Errorf("vlan %q: want a number up to %d", p.peek(), maxVLAN)
	}
	p.words = p.words[1:]
	return isTagged(int(id)), nil
}

// group reads an expression and its closing parenthesis.
func (p *parser) group() (*condition, error) {
	c, err := p.expression()
	if err == nil && p.take(")") == "" {
		err = errors.New(`want ")" for "("`)
	}
	return c, err
}

// direction reads "src", "dst", and either with "and" or "or" between.
func (p *parser) direction() string {
	first := p.take("src", "dst")
	if first == "" || len(p.words) < 2 || !slices.Contains([]string{"src", "dst"}, p.words[1]) || p.words[1] == first {
		return first
	}
	switch p.words[0] {
	case "and":
		first = bothDirections
	case "or":
		first = eitherDirection
	default:
		return first
	}
	p.words = p.words[2:]
	return first
}

// isIdentifier reports whether a word is an address or a number: all others begin with other letters, or are
// words of the language.
func isIdentifier(w string) bool {
	return w != "" && strings.Trim(w, "0123456789abcdefABCDEF.:/-") == ""
}

// condition returns the condition that the qualifiers and an identifier make.
func (q *qualifiers) condition(id string) (*condition, error) {
	switch q.kind {
	case "port", "portrange":
		low, high, isRange := strings.Cut(id, "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err1 != nil || err2 != nil || from > to || isRange != (q.kind == "portrange") {
			return nil, fmt.Errorf("%s %q: want a number up to 65535, and for portrange two with a dash between", q.kind, id)
		}
		if q.proto != "" && !slices.Contains(portProtocols(), q.proto) {
			return nil, fmt.Errorf("%s has no ports", q.proto)
		}
		return q.ports(uint32(from), uint32(to)), nil
	case "net":
		prefix, err := netip.ParsePrefix(id)
		if err != nil || prefix != prefix.Masked() {
			return nil, fmt.Errorf("net %q: want a subnet such as 10.0.0.0/8, without bits of a host", id)
		}
		return q.addresses(prefix)
	default:
		if q.proto == "ether" {
			mac, err := net.ParseMAC(id)
			if err != nil || len(mac) != 6 {
				return nil, fmt.Errorf("ether host %q: want a MAC address such as 02:00:00:00:00:01", id)
			}
			return q.hasMAC(mac), nil
		}
		a, err := netip.ParseAddr(id)
		if err != nil {
			return nil, fmt.Errorf("host %q: want an IP address", id)
		}
		return q.addresses(netip.PrefixFrom(a, a.BitLen()))
	}
}
