package podfilter

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// transaction is the change from what the kernel has to a Ruleset.
type transaction struct {
	filter *Filter
	want   *Ruleset
	// pods are the elements of the Ruleset's pods, and pending those that an ADD adds itself.
	pods, pending map[string]*nft.Entry
	// isNew is true if the kernel does not have an earlier state of want.
	isNew bool
	// changed are the sets of the Ruleset whose members change.
	changed []*Set
	// partial is true if the kernel has elements of pods that may be of an ADD that the caller does not know yet. Then
	// they stay, with all chains and sets, which they may use.
	partial bool

	// sets, chains, verdicts and rules are new: nothing refers to them yet. verdicts are the elements of maps, which name chains.
	sets, chains, verdicts, rules []nlconn.Message
	repairs                       []nlconn.Message
	add, del                      []*nft.Entry
	emptied                       []nlconn.Message
	flushed, oldChains, oldSets   []nlconn.Message
}

func (t *transaction) build() (err error) {
	t.changeMembers()
	t.isNew = t.want != t.filter.last
	if !t.isNew && len(t.want.changed) == 0 && !t.want.podsChanged && !t.filter.comparesPods {
		return nil
	}
	t.pods, t.pending, err = t.filter.encoded.entries(t.want)
	if err != nil {
		return err
	}
	t.changePods()
	if err := t.changeChains(); err != nil {
		return err
	}
	for name := range names(t, t.filter.have.sets) {
		s := t.want.Sets[name]
		if _, exists := t.filter.have.sets[name]; exists && (s == nil || !t.filter.uses(s)) && !t.partial {
			if strings.HasPrefix(name, MapPrefix) { // Linux 5.10 gives up the chains of a map's elements only when these are deleted
				t.oldSets = append(t.oldSets, setMessage(unix.NFT_MSG_DELSETELEM, name))
			}
			t.oldSets = append(t.oldSets, setMessage(unix.NFT_MSG_DELSET, name))
		}
	}
	return nil
}

// setMessage returns a request that deletes a set, or all of its elements.
func setMessage(kind uint16, name string) nlconn.Message {
	m := nft.Request(kind, 0, podtable.Table().Family)
	m.Text(unix.NFTA_SET_TABLE, podtable.Table().Name) // NFTA_SET_ELEM_LIST_TABLE and _SET have the same numbers
	m.Text(unix.NFTA_SET_NAME, name)
	return m
}

// names returns the names that a transaction compares: those of the Ruleset that have changed, or, if the kernel may differ anywhere, all.
func names[V any](t *transaction, all map[string]V) iter.Seq[string] {
	if t.isNew {
		return maps.Keys(all)
	}
	return maps.Keys(t.want.changed)
}

// changeMembers finds the members of sets that have changed.
func (t *transaction) changeMembers() {
	for _, s := range t.want.Sets {
		if len(s.changed) == 0 || !t.filter.uses(s) {
			continue
		}
		t.changed = append(t.changed, s)
		if s.Kind == Verdicts {
			t.changeVerdicts(s)
			continue
		}
		set, changed := s.set(), maps.Keys(s.changed)
		if s.hasRanges() { // the kernel refuses a part of a range within a range that another program made
			t.emptied, changed = append(t.emptied, setMessage(unix.NFT_MSG_DELSETELEM, s.Name)), maps.Keys(s.members)
		}
		for _, m := range slices.Sorted(changed) {
			n := s.entry(set, m)
			if s.Has(m) {
				t.add = append(t.add, n)
			} else {
				t.del = append(t.del, n)
			}
		}
	}
}

// changeVerdicts makes the elements of a map again of which some differ. The map itself never changes: it is new and has none yet, or another
// program changed it.
func (t *transaction) changeVerdicts(s *Set) {
	set, isNew := s.set(), len(s.changed) == len(s.members)
	for m := range s.changed {
		isNew = isNew && s.Has(m)
	}
	if !isNew {
		t.verdicts = append(t.verdicts, setMessage(unix.NFT_MSG_DELSETELEM, s.Name))
	}
	t.verdicts = append(t.verdicts, s.additions(set, slices.Sorted(maps.Keys(s.members)))...)
}

// changePods finds the elements of pods that differ. An element gets another chain by its deletion and addition, which no
// packet sees between.
func (t *transaction) changePods() {
	have := t.filter.have.pods
	for key, n := range t.pods {
		if h := have[key]; h == nil || !h.Equal(n) {
			if h != nil {
				t.del = append(t.del, h.Bare())
			}
			t.add = append(t.add, n)
		}
	}
	for key, h := range have {
		switch {
		case t.pods[key] != nil:
		case t.pending[key] != nil && t.pending[key].Equal(h):
			t.pods[key] = h // it stays
		case t.filter.prune:
			t.del = append(t.del, h.Bare())
		default:
			t.partial = true
		}
	}
}

// changeChains finds the chains that are new, damaged or not used any more.
func (t *transaction) changeChains() error {
	form := t.filter.form(t.want)
	have, base := t.filter.have.rules, podtable.BaseChains(form)
	for name, n := range base {
		if have[name] != n && t.repairs == nil {
			t.repairs = podtable.RepairBase(form, have)
		}
	}
	for name := range names(t, t.want.Chains) {
		for _, v6 := range []bool{false, true} {
			if err := t.changeChain(name, v6); err != nil {
				return err
			}
		}
	}
	for name := range t.kernelNames() {
		_, exists := have[name]
		if _, isBase := base[name]; exists && !isBase && !t.wants(name) && !t.partial {
			t.flushed = append(t.flushed, podtable.Table().RuleMessage(unix.NFT_MSG_DELRULE, 0, name))
			t.oldChains = append(t.oldChains, podtable.Table().ChainMessage(unix.NFT_MSG_DELCHAIN, 0, name))
		}
	}
	return nil
}

// changeChain makes the kernel's chain for a family if that is new, and its rules if their number differs.
func (t *transaction) changeChain(name string, v6 bool) error {
	c := t.want.Chains[name]
	if c == nil || !t.filter.families[family(v6)] {
		return nil
	}
	n, exists := t.filter.have.rules[name+Suffix(v6)]
	if exists && n == c.Count(v6) {
		return nil
	}
	own := c.Of(v6)
	rules, err := own.RuleMessages()
	if exists {
		t.repairs = append(append(t.repairs, podtable.Table().RuleMessage(unix.NFT_MSG_DELRULE, 0, own.Name)), rules...)
	} else {
		t.chains, t.rules = append(t.chains, own.Message()), append(t.rules, rules...)
	}
	return err
}

// wants reports whether the Ruleset has a chain of the kernel.
func (t *transaction) wants(chain string) bool {
	for _, v6 := range []bool{false, true} {
		name, is := strings.CutSuffix(chain, Suffix(v6))
		if is && t.want.Chains[name] != nil && t.filter.families[family(v6)] {
			return true
		}
	}
	return false
}

// kernelNames returns the names of the kernel's chains that may not be wanted any more.
func (t *transaction) kernelNames() iter.Seq[string] {
	if t.isNew {
		return maps.Keys(t.filter.have.rules)
	}
	return func(yield func(string) bool) {
		for name := range t.want.changed {
			if !yield(name+Suffix(false)) || !yield(name+Suffix(true)) {
				return
			}
		}
	}
}

// commit makes the change in one transaction. If that would be too large, new chains precede it, and the removal of what is not used
// any more follows it, in several transactions. If the members of sets alone are too many, again is true: they are changed while all
// pods are denied everything, and the caller calls again for the rest.
func (t *transaction) commit(ctx context.Context) (again bool, err error) {
	members, pods := t.emptied, []nlconn.Message(nil)
	change := func(kind, flags uint16, entries []*nft.Entry) {
		for _, m := range []struct {
			of *[]nlconn.Message
			is bool
		}{{&members, false}, {&pods, true}} {
			some := slices.DeleteFunc(slices.Clone(entries), func(n *nft.Entry) bool { return podtable.IsPodSet(n.Set.Name) != m.is })
			*m.of = append(*m.of, elements(kind, flags, some)...)
		}
	}
	change(unix.NFT_MSG_DELSETELEM, 0, t.del)
	change(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, t.add)
	first := slices.Concat(t.sets, t.chains, t.verdicts, t.rules)
	atOnce := slices.Concat(t.repairs, members, pods)
	last := slices.Concat(t.flushed, t.oldSets, t.oldChains)
	if all := slices.Concat(first, atOnce, last); fitting(all, maxTransaction) == len(all) {
		return false, t.filter.commit(ctx, "change", all)
	}
	if fitting(atOnce, maxAtOnce) < len(atOnce) && len(members) > 0 {
		return true, t.commitMembers(ctx, members)
	}
	if err := t.commitParts(ctx, first); err != nil {
		return false, err
	}
	if err := t.filter.commit(ctx, "change", atOnce); err != nil {
		return false, err
	}
	return false, t.commitParts(ctx, last)
}

// commitMembers changes the members of sets. A set that is changed in part may allow too much, if a rule that uses it drops, so the
// pods are denied everything before. The kernel is read again after that.
func (t *transaction) commitMembers(ctx context.Context, members []nlconn.Message) error {
	var del, add []*nft.Entry
	for _, n := range t.filter.have.pods {
		if len(n.Set.Data) == 0 {
			continue
		}
		denied, err := n.With("goto " + podtable.Deny)
		if err != nil {
			return err
		}
		del, add = append(del, n.Bare()), append(add, denied)
	}
	deny := append(elements(unix.NFT_MSG_DELSETELEM, 0, del), elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, add)...)
	if err := t.filter.commit(ctx, "change", deny); err != nil {
		return err
	}
	if err := t.commitParts(ctx, slices.Concat(t.sets, members)); err != nil {
		return err
	}
	for _, s := range t.want.Sets {
		if s.Kind != Verdicts {
			clear(s.changed)
		}
	}
	t.filter.knowsPods, t.filter.prune = false, false
	return t.filter.refresh(ctx)
}

// elements returns requests for entries in the order of their sets.
func elements(kind, flags uint16, entries []*nft.Entry) []nlconn.Message {
	sorting.Stable(entries, func(a, b *nft.Entry) int { return cmp.Compare(a.Set.Name, b.Set.Name) })
	return nft.ElementMessages(kind, flags, entries)
}

func (t *transaction) commitParts(ctx context.Context, msgs []nlconn.Message) error {
	for len(msgs) > 0 {
		n := fitting(msgs, maxTransaction)
		if err := t.filter.commit(ctx, "change", msgs[:n]); err != nil {
			return err
		}
		msgs = msgs[n:]
	}
	return nil
}

// maxTransaction bounds a transaction in bytes that may be divided, and maxAtOnce one that should not be. The kernel refuses one
// that does not fit in the socket's buffer of 4 MiB.
const (
	maxTransaction = 1 << 20
	maxAtOnce      = 3 << 20
)

// fitting returns the number of messages that fit in some bytes, at least 1.
func fitting(msgs []nlconn.Message, limit int) int {
	bytes := 0
	for i, m := range msgs {
		bytes += unix.NLMSG_HDRLEN + len(m.Body)
		if bytes > limit && i > 0 {
			return i
		}
	}
	return len(msgs)
}

// done notes what the kernel has after the transaction.
func (t *transaction) done() {
	have := &t.filter.have
	for _, s := range t.changed {
		clear(s.changed)
	}
	base := podtable.BaseChains(t.filter.form(t.want))
	if t.isNew && !t.partial {
		have.rules, have.sets = map[string]int{}, map[string]*Set{}
	}
	maps.Copy(have.rules, base)
	for name := range names(t, t.want.users) {
		if !t.partial {
			delete(have.sets, name)
			delete(have.rules, name+Suffix(false))
			delete(have.rules, name+Suffix(true))
		}
		if s := t.want.Sets[name]; s != nil && t.filter.uses(s) {
			have.sets[name] = s
		}
		for _, v6 := range []bool{false, true} {
			if c := t.want.Chains[name]; c != nil && t.filter.families[family(v6)] {
				have.rules[name+Suffix(v6)] = c.Count(v6)
			}
		}
	}
	clear(t.want.changed)
	t.want.podsChanged, t.filter.comparesPods = false, false
	t.filter.last = t.want
	if t.pods != nil {
		have.pods = t.pods
	}
	if t.partial { // the next transaction compares everything, but what the kernel has is known
		t.filter.knowsPods, t.filter.last = false, nil
		t.filter.monitor.Notify() // so that the caller calls Refresh
	}
}

// inOrder returns entries by set, as messages need them.
func inOrder(entries map[string]*nft.Entry) []*nft.Entry {
	all := make([]*nft.Entry, 0, len(entries))
	for _, n := range entries {
		all = append(all, n)
	}
	sorting.Stable(all, func(a, b *nft.Entry) int { return cmp.Compare(a.Set.Name, b.Set.Name) })
	return all
}
