package verdict

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/netops/internal/iptables"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// readLegacy reads the tables of iptables-legacy that are loaded and can drop packets. Without its programs it
// returns none.
func readLegacy(ctx context.Context, tables *iptables.Tables) (map[chainID]*iptables.State, error) {
	all := map[chainID]*iptables.State{}
	for _, family := range iptables.Families() {
		for _, table := range []string{"raw", "mangle", "filter"} {
			if tables.Run == nil || !iptables.IsLegacyLoaded(family, table) {
				continue
			}
			st, err := tables.Legacy(family, table).Read(ctx)
			if errors.Is(err, nlconn.ErrNotSupported) {
				return all, nil
			}
			if err != nil {
				return nil, err
			}
			all[chainID{nft.Table{Family: family}, table}] = st
		}
	}
	return all, nil
}

// addLegacy adds what drops the packet in the tables of iptables-legacy.
func (f *Filter) addLegacy(p *Packet, v *Verdict) {
	chains := map[Direction][]string{
		Sent: {"OUTPUT", "POSTROUTING"}, Received: {"PREROUTING", "INPUT"}, Forwarded: {"PREROUTING", "FORWARD", "POSTROUTING"},
	}[p.Direction]
	program := iptables.LegacyProgram(p.family())
	for _, table := range []string{"raw", "mangle", "filter"} {
		st := f.legacy[chainID{nft.Table{Family: p.family()}, table}]
		for _, chain := range chains {
			if st == nil || st.Chains[chain] == nil {
				continue
			}
			in := func(chain string, number int) string {
				return strings.TrimSuffix(fmt.Sprintf("%s -t %s -I %s %d", program, table, chain, number), " 0")
			}
			rules := func(name string) (all []rule) {
				for i, h := range st.Rules(name) {
					all = append(all, &legacyRule{h, program + " " + table + " " + name, in(name, i+1)})
				}
				return all
			}
			var policy *Drop
			if st.Chains[chain].PolicyDrops() {
				name := program + " " + table + " " + chain
				policy = &Drop{Chain: name, Rule: name + ": policy DROP", IsPolicy: true, Before: in(chain, 0), IsLegacy: true}
			}
			w := &walk{packet: p, table: program + " " + table + " ", rules: rules}
			w.base(chain, policy, v)
		}
	}
}

// legacyRule is a rule of iptables-legacy. chain names its chain, and insert is the command that inserts a
// rule before it.
type legacyRule struct {
	*iptables.HeldRule
	chain, insert string
}

func (r *legacyRule) drop() Drop {
	return Drop{Chain: r.chain, Rule: r.chain + ": " + r.Text, IsAlways: strings.HasPrefix(r.Text, "-j "), Before: r.insert, IsLegacy: true}
}

func (r *legacyRule) effect() effect {
	switch {
	case strings.Contains(r.Text, "-j NOTRACK"), strings.Contains(r.Text, "-j CT --notrack"):
		return untracks
	case strings.Contains(r.Text, "-j TTL "), strings.Contains(r.Text, "-j HL "):
		return shortens
	case strings.Contains(r.Text, "-j TCPMSS "):
		return clamps
	}
	return ""
}

func (r *legacyRule) match(p *Packet) (truth, []string) {
	words := iptables.SplitQuoted(r.Text)
	verdict, matches, negated := "", yes, false
	for i := 0; i < len(words) && matches != no; i++ {
		option, value := words[i], ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		if option == "!" {
			negated = true
			continue
		}
		if option == "-j" || option == "-g" {
			verdict = r.verdict(option, value)
			if value == "MARK" {
				p.setMark(0, 0, ^uint32(0), matches)
			}
			break // the target's own options follow
		}
		if known, ok := p.legacyOption(option, value); ok {
			if negated {
				known = known.not()
			}
			matches = min(matches, known)
			i++
		} else {
			matches = min(matches, maybe)
		}
		negated = false
	}
	return matches, []string{verdict}
}

// verdict returns the verdict of a target in nft's syntax.
func (r *legacyRule) verdict(option, target string) string {
	switch {
	case r.Jump != "" && option == "-g":
		return "goto " + target
	case r.Jump != "":
		return "jump " + target
	case target == "REJECT":
		return "drop"
	case slices.Contains([]string{"ACCEPT", "DROP", "RETURN"}, target):
		return strings.ToLower(target)
	}
	return targetVerdict(target)
}

// targetVerdict returns the verdict of a target of iptables that is neither a chain nor a verdict itself.
func targetVerdict(target string) string {
	if slices.Contains([]string{"LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS", "TRACE", "AUDIT", "CHECKSUM", "DSCP", "TOS", "TTL", "HL", "ECN", "CLASSIFY", "CT", "NOTRACK", "SET"}, target) {
		return "continue"
	}
	return anyVerdict
}

// legacyOption compares the packet with an option and its value. ok is false for an unknown option.
func (p *Packet) legacyOption(option, value string) (matches truth, ok bool) {
	link := func(name string) truth {
		if name == "" && p.Direction == Forwarded {
			return maybe
		}
		begin, isPattern := strings.CutSuffix(value, "+")
		return is(name == value || isPattern && strings.HasPrefix(name, begin))
	}
	switch option {
	case "-s", "-d":
		address := p.Source.Addr()
		if option == "-d" {
			address = p.Destination.Addr()
		}
		prefix, err := netip.ParsePrefix(value)
		if err != nil || !address.IsValid() {
			return maybe, true
		}
		return is(prefix.Contains(address)), true
	case "-i":
		return link(p.In), true
	case "-o":
		return link(p.Out), true
	case "-p":
		if p.Protocol == 0 {
			return maybe, true
		}
		return is(value == nft.ProtocolName(p.Protocol)), true
	case "--dport", "--dports":
		return inPorts(value, p.Destination.Port()), true
	case "--sport", "--sports":
		return inPorts(value, p.Source.Port()), true
	case "--ctstate", "--state":
		states := strings.Split(value, ",")
		name := map[State]string{New: "NEW", Established: "ESTABLISHED"}[p.State]
		switch {
		case slices.Contains(states, name):
			return yes, true
		case p.State == Unknown, p.mayBeTranslated() && (slices.Contains(states, "DNAT") || slices.Contains(states, "SNAT")):
			return maybe, true
		}
		return no, true
	case "-m":
		return yes, slices.Contains([]string{"udp", "tcp", "comment", "multiport", "conntrack", "state"}, value)
	case "--comment":
		return yes, true
	}
	return maybe, false
}

// inPorts reports whether a list such as "53,8000:8100" has a port.
func inPorts(list string, port uint16) truth {
	if port == 0 {
		return maybe
	}
	ranges, err := iptables.ParsePorts(list)
	if err != nil {
		return maybe
	}
	return is(slices.ContainsFunc(ranges, func(r iptables.PortRange) bool { return r.First <= port && port <= r.Last }))
}
