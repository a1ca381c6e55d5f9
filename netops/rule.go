package netops

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// PolicyProtocol marks cnibox's policy rules on the host and the routes in their
// tables (rt_protos). iproute2's list assigns the number to no program.
const PolicyProtocol = 143

// Rule is a policy routing rule.
type Rule struct {
	In       Place        `json:"in"`
	Shared   bool         `json:"shared,omitempty"`
	Family   int          `json:"family"` // unix.AF_INET or AF_INET6
	Priority int          `json:"priority,omitempty"`
	From     netip.Prefix `json:"from,omitzero"`
	To       netip.Prefix `json:"to,omitzero"`
	IIF      string       `json:"iif,omitempty"`
	OIF      string       `json:"oif,omitempty"`
	Mark     uint32       `json:"mark,omitempty"`
	Mask     uint32       `json:"mask,omitempty"`
	Table    int          `json:"table"`
	// Prohibit rejects matching packets instead of looking up a table. Table
	// is 0 then. The kernel informs the sender (ICMP type 3 code 13, ICMPv6
	// type 1 code 1).
	Prohibit bool `json:"prohibit,omitempty"`
	// IPProto is a protocol number (IPPROTO_*), and DstPort a destination
	// port.
	IPProto uint8  `json:"ipProto,omitempty"`
	DstPort uint16 `json:"dstPort,omitempty"`
	// MinBits ignores routes with a prefix shorter than MinBits bits
	// (suppress_prefixlength MinBits-1). 32 accepts host routes only.
	MinBits int `json:"minBits,omitempty"`
	// Protocol is the origin of the rule, as in Route. It is not compared.
	Protocol int `json:"protocol,omitempty"`
}

// SourceRule returns the container's rule that selects a table for packets from an address.
func SourceRule(from netip.Addr, table int) *Rule {
	return &Rule{In: Container, Family: FamilyOf(from), From: netip.PrefixFrom(from, from.BitLen()), Table: table}
}

// FamilyOf returns an address's family: unix.AF_INET or unix.AF_INET6.
func FamilyOf(a netip.Addr) int { return int(rtnl.Family(a)) }

// FamilyDigit returns "4" or "6", the end of the names of an address family's sets.
func FamilyDigit(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// FirstTable is the first table that roles try in the search for a free one.
const FirstTable = 100

// IsKernelTable reports whether the table is one of the kernel's: default, main or local.
func IsKernelTable(table int) bool {
	return table >= unix.RT_TABLE_DEFAULT && table <= unix.RT_TABLE_LOCAL
}

// FreeTable returns the lowest table from first on that is neither taken nor the kernel's,
// and that no rule and no route uses.
func FreeTable(first int, rules []Rule, routes []Route, taken []int) int {
	for IsKernelTable(first) || slices.Contains(taken, first) ||
		slices.ContainsFunc(rules, func(r Rule) bool { return r.Table == first }) ||
		slices.ContainsFunc(routes, func(r Route) bool { return r.Table == first }) {
		first++
	}
	return first
}

// Where returns the namespace of the rule.
func (r *Rule) Where() Place { return r.In }

// IsShared reports whether attachments share the rule.
func (r *Rule) IsShared() bool { return r.Shared }

// String formats the rule as ip rule does.
func (r *Rule) String() string {
	w := words{"rule"}
	w.flag(r.Family == unix.AF_INET6, "inet6")
	w.place(r.In)
	w.number("priority", r.Priority)
	from := "all"
	if r.From.IsValid() {
		from = r.From.String()
	}
	w = append(w, "from", from)
	if r.To.IsValid() {
		w = append(w, "to", r.To.String())
	}
	if r.Mark != 0 || r.Mask != 0 {
		w = append(w, "fwmark", fmt.Sprintf("%#x/%#x", r.Mark, r.mask()))
	}
	w.value("iif", r.IIF)
	w.value("oif", r.OIF)
	w.number("ipproto", int(r.IPProto))
	w.number("dport", int(r.DstPort))
	if r.Prohibit {
		w = append(w, "prohibit")
	} else {
		w = append(w, "table", fmt.Sprint(r.Table))
	}
	if r.MinBits != 0 {
		w = append(w, "suppress_prefixlength", fmt.Sprint(r.MinBits-1))
	}
	return w.String()
}

func (r *Rule) validate() error {
	errs := []error{
		checkPlace(r.In), rtnl.CheckRange("priority", r.Priority, 0, 1<<32-1),
		rtnl.CheckRange("minimum of bits", r.MinBits, 0, 128), rtnl.CheckRange("protocol", r.Protocol, 0, 255),
	}
	if r.Prohibit {
		errs = append(errs, rtnl.CheckRange("table of a rule that refuses", r.Table, 0, 0))
	} else {
		errs = append(errs, rtnl.CheckRange("table", r.Table, 1, 1<<32-1))
	}
	if r.DstPort != 0 && r.IPProto == 0 {
		errs = append(errs, fmt.Errorf("rule for port %d of no protocol: %w", r.DstPort, ErrInvalid))
	}
	if r.Family != unix.AF_INET && r.Family != unix.AF_INET6 {
		errs = append(errs, fmt.Errorf("rule of family %d: %w", r.Family, ErrInvalid))
	}
	for _, p := range []netip.Prefix{r.From, r.To} {
		if p == (netip.Prefix{}) {
			continue
		}
		if err := checkPrefix("rule for", p); err != nil {
			errs = append(errs, err)
		} else if int(rtnl.Family(p.Addr())) != r.Family {
			errs = append(errs, fmt.Errorf("rule for %s of another family: %w", p, ErrInvalid))
		}
	}
	for _, name := range []string{r.IIF, r.OIF} {
		if name != "" {
			errs = append(errs, rtnl.CheckName(name))
		}
	}
	return errors.Join(errs...)
}

// mask returns Mask, or the kernel's default if it is 0.
func (r *Rule) mask() uint32 {
	if r.Mark != 0 && r.Mask == 0 {
		return 1<<32 - 1
	}
	return r.Mask
}

// plan replaces an existing rule that is bound to an interface which the plan
// creates. The interface of the existing rule was deleted, so nothing depends on
// that rule.
func (r *Rule) plan(ctx context.Context, s *session) ([]Change, error) {
	if s.isAbsentPlace(r.In) {
		return []Change{addition(r)}, nil
	}
	found, err := r.find(ctx, s)
	if err != nil {
		return nil, err
	}
	switch {
	case found && r.Shared:
		return nil, nil
	case found && r.IIF != "" && s.isNew(r.In, r.IIF):
		return []Change{{Do: Step{VerbDel, r}}, addition(r)}, nil
	case found:
		return nil, fmt.Errorf("%s %w", r, ErrExists)
	}
	return []Change{addition(r)}, nil
}

func (r *Rule) verify(ctx context.Context, s *session) ([]Difference, error) {
	found, err := r.find(ctx, s)
	if err != nil || found {
		return nil, err
	}
	return absentIf(nil, r)
}

// find reports whether the rule exists. A rule without a priority matches any
// priority.
func (r *Rule) find(ctx context.Context, s *session) (bool, error) {
	c, err := s.conn(r.In)
	if err != nil {
		return false, err
	}
	have, err := c.Rules(ctx, uint8(r.Family))
	return slices.ContainsFunc(have, r.matches), err
}

func (r *Rule) matches(state rtnl.Rule) bool {
	want, have := *r, ruleOf(state)
	want.In, want.Shared, want.Protocol, want.Mask = have.In, have.Shared, have.Protocol, want.mask()
	want.From, want.To = want.From.Masked(), want.To.Masked()
	if want.Priority == 0 {
		want.Priority = have.Priority
	}
	return want == have
}

func (r *Rule) links() []string { return nil }

// messages returns the requests that add or delete the rule.
func (r *Rule) messages(_ context.Context, _ *session, v Verb) ([]nlconn.Message, error) { //nolint:unparam // requester has this signature
	rule := rtnl.Rule{
		Family: r.Family, Priority: r.Priority, From: r.From, To: r.To, IIF: r.IIF, OIF: r.OIF, Mark: r.Mark, Mask: r.mask(),
		Table: r.Table, Prohibit: r.Prohibit, IPProto: r.IPProto, DstPort: r.DstPort, MinBits: r.MinBits, Protocol: uint8(r.Protocol),
	}
	m := nlconn.Message{Kind: unix.RTM_NEWRULE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: rule.Append(nil)}
	if v == VerbDel {
		m.Kind, m.Flags = unix.RTM_DELRULE, 0
	}
	return []nlconn.Message{m}, nil
}

// Rules reads the policy rules of both families that look up a table or
// prohibit. In is empty.
func (n *Net) Rules(ctx context.Context, ns *Namespace) ([]Rule, error) {
	c, err := n.observed(ns).socket()
	if err != nil {
		return nil, err
	}
	var all []Rule
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := c.Rules(ctx, family)
		if err != nil && !errors.Is(err, ErrNotSupported) {
			return nil, err
		}
		for _, r := range some {
			all = append(all, ruleOf(r))
		}
	}
	return all, nil
}

// ruleOf converts a rule that was read.
func ruleOf(r rtnl.Rule) Rule {
	return Rule{
		Family: r.Family, Priority: r.Priority, From: r.From, To: r.To, IIF: r.IIF, OIF: r.OIF, Mark: r.Mark, Mask: r.Mask,
		Table: r.Table, Prohibit: r.Prohibit, IPProto: r.IPProto, DstPort: r.DstPort, MinBits: r.MinBits, Protocol: int(r.Protocol),
	}
}

// BoundRules reads cnibox's policy rules on the host that are bound to an
// interface.
func (n *Net) BoundRules(ctx context.Context) ([]*Rule, error) {
	return n.policyRules(ctx, func(r *Rule) bool { return r.IIF != "" })
}

// SharedPolicy reads cnibox's policy rules on the host that are not bound to an
// interface, and the routes of their tables. Attachments share them. They have
// the form of a Spec.
func (n *Net) SharedPolicy(ctx context.Context) ([]Object, error) {
	rules, err := n.policyRules(ctx, func(r *Rule) bool { return r.IIF == "" })
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, r := range rules {
		r.Shared = true
		all = append(all, r)
	}
	routes, err := n.Routes(ctx, nil, 0)
	for i := range routes {
		r := &routes[i]
		if r.Protocol != PolicyProtocol || r.Link == "" {
			continue
		}
		r.In, r.Shared, r.Scope = Host, true, nil
		if r.Dst.Addr().Is6() && r.Priority == defaultMetric6 {
			r.Priority = 0
		}
		all = append(all, r)
	}
	return all, err
}

// defaultMetric6 is the metric of an IPv6 route that is added without one
// (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024

// policyRules returns cnibox's policy rules on the host that fits accepts.
func (n *Net) policyRules(ctx context.Context, fits func(*Rule) bool) ([]*Rule, error) {
	all, err := n.Rules(ctx, nil)
	var ours []*Rule
	for i := range all {
		if r := &all[i]; r.Protocol == PolicyProtocol && fits(r) {
			r.In = Host
			ours = append(ours, r)
		}
	}
	return ours, err
}
