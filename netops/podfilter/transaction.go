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
	"github.com/cnibox/cnibox/netops/internal/keyed"
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
	// changed are the sets of the Ruleset whose members change.
	changed []*Set
	// partial is true if the kernel has elements of pods that may be of an ADD that the caller does not know yet. Then
	// they stay, with all chains and sets, which they may use.
	partial bool

	// sets, newChains, verdicts and rules are new: nothing refers to them yet. verdicts are the elements of maps, which name chains.
	sets, newChains, verdicts, rules []nlconn.Message
	repairs                          []nlconn.Message
	add, del                         []*nft.Entry
	emptied                          []nlconn.Message
	flushed, oldChains, oldSets      []nlconn.Message
}

func (t *transaction) build() (err error) {
	t.changeMembers()
	if t.want == t.filter.last && len(t.want.changed) == 0 && !t.want.podsChanged && !t.filter.comparesPods {
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
	for c := range t.filter.changedSets(t.want) {
		if c.Kind != keyed.Remove || t.partial {
			continue
		}
		if strings.HasPrefix(c.Key, MapPrefix) { // Linux 5.10 gives up the chains of a map's elements only when these are deleted
			t.oldSets = append(t.oldSets, setMessage(unix.NFT_MSG_DELSETELEM, c.Key))
		}
		t.oldSets = append(t.oldSets, setMessage(unix.NFT_MSG_DELSET, c.Key))
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
	for c := range keyed.Maps(t.filter.have.pods, t.pods, (*nft.Entry).Equal) {
		switch {
		case c.Kind == keyed.Add:
			t.add = append(t.add, c.Want)
		case c.Kind == keyed.Replace:
			t.del, t.add = append(t.del, c.Have.Bare()), append(t.add, c.Want)
		case t.pending[c.Key] != nil && t.pending[c.Key].Equal(c.Have):
			t.pods[c.Key] = c.Have // it stays
		case t.filter.prune:
			t.del = append(t.del, c.Have.Bare())
		default:
			t.partial = true
		}
	}
}

// kernelChain is a chain of a Ruleset for one address family, which pods have.
type kernelChain struct {
	*Chain
	v6 bool
}

// chains returns the Ruleset's chains by their names in the kernel, and the names that are compared.
func (t *transaction) chains() (wanted map[string]kernelChain, compared iter.Seq[string]) {
	wanted = map[string]kernelChain{}
	some := map[string]int{} // by name
	for name := range names(t.filter, t.want, map[string]int{}, t.want.Chains) {
		for _, v6 := range []bool{false, true} {
			some[name+Suffix(v6)] = 0
			if c := t.want.Chains[name]; c != nil && t.filter.families[family(v6)] {
				wanted[name+Suffix(v6)] = kernelChain{c, v6}
			}
		}
	}
	if t.want != t.filter.last {
		some = t.filter.have.rules
	}
	return wanted, keyed.Keys(some, wanted)
}

// changeChains finds the chains that are new, damaged or not used any more. A chain with the wanted number of rules has these: its name follows
// from them.
func (t *transaction) changeChains() error {
	form := t.filter.form(t.want)
	have, base := t.filter.have.rules, podtable.BaseChains(form)
	if keyed.Any(keyed.Diff(maps.Keys(base), keyed.Of(have), keyed.Of(base), keyed.Same)) {
		t.repairs = podtable.RepairBase(form, have)
	}
	wanted, compared := t.chains()
	for c := range keyed.Diff(compared, keyed.Of(have), keyed.Of(wanted), func(rules int, c kernelChain) bool { return rules == c.Count(c.v6) }) {
		if _, isBase := base[c.Key]; c.Kind == keyed.Remove {
			if !isBase && !t.partial {
				t.flushed = append(t.flushed, podtable.Table().RuleMessage(unix.NFT_MSG_DELRULE, 0, c.Key))
				t.oldChains = append(t.oldChains, podtable.Table().ChainMessage(unix.NFT_MSG_DELCHAIN, 0, c.Key))
			}
			continue
		}
		own := c.Want.Of(c.Want.v6)
		rules, err := own.RuleMessages()
		if err != nil {
			return err
		}
		if c.Kind == keyed.Replace {
			t.repairs = append(append(t.repairs, podtable.Table().RuleMessage(unix.NFT_MSG_DELRULE, 0, own.Name)), rules...)
		} else {
			t.newChains, t.rules = append(t.newChains, own.Message()), append(t.rules, rules...)
		}
	}
	return nil
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
	first := slices.Concat(t.sets, t.newChains, t.verdicts, t.rules)
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
	wanted, compared := t.chains()
	for name := range compared {
		if c, is := wanted[name]; is {
			have.rules[name] = c.Count(c.v6)
		} else if !t.partial {
			delete(have.rules, name)
		}
	}
	maps.Copy(have.rules, podtable.BaseChains(t.filter.form(t.want)))
	for c := range t.filter.changedSets(t.want) {
		if !t.partial { // all others are made
			delete(have.sets, c.Key)
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
