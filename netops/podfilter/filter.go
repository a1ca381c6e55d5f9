package podfilter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// Filter maintains a Ruleset in the kernel.
type Filter struct {
	nft     *nft.Client
	net     *netops.Net
	monitor *nft.Monitor

	mu   sync.Mutex
	have kernel
	// knowsRules and knowsPods are true if have is what the kernel has.
	knowsRules, knowsPods bool
	// last is the Ruleset whose chains and pods are in the kernel, as far as that is known.
	last *Ruleset
	// generation is that of nftables before the last reading of the rules, or after later changes of this Filter if no other program made one
	// between them.
	generation uint32
	// comparesPods is true until the elements of pods that were read are compared.
	comparesPods bool
	// recheck is true until the next Refresh after Recheck.
	recheck bool
	// prune is true if have.pods was read by Refresh.
	prune bool
	// services is true if the node has services of IPVS.
	services bool
	// families is true for IPv4 and for IPv6 if pods of last have such addresses. The kernel has chains and sets of these only.
	families [2]bool
	// encoded are the elements of the pods of last.
	encoded encoder
}

// Open opens a Filter in the network namespace of the calling thread. It does not change the kernel.
func Open(n *netops.Net) (*Filter, error) {
	f := &Filter{nft: nft.New(podtable.Schema, nil), net: n, encoded: newEncoder()}
	var err error
	var watched []nft.Watched
	for _, t := range tables() {
		watched = append(watched, nft.Watched{Table: t, Sets: podtable.PodSets}, nft.Watched{Table: t, ButSets: podtable.PodSets})
	}
	f.monitor, err = nft.OpenMonitor(f.nft, f.disturbed, watched...)
	if err != nil {
		return nil, errors.Join(err, f.nft.Close())
	}
	return f, nil
}

func tables() []nft.Table { return []nft.Table{podtable.Table(), podtable.BridgeTable()} }

// Close closes the sockets. It does not change the kernel.
func (f *Filter) Close() error {
	f.monitor.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nft.Close()
}

// Changes returns a channel that receives a value when another process changed the table. The caller should call Refresh
// and Ensure.
func (f *Filter) Changes() <-chan struct{} { return f.monitor.Changes() }

func (f *Filter) disturbed(w nft.Watched) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.knowsPods = false
	f.knowsRules = f.knowsRules && w.Sets != ""
}

// Recheck makes the next Refresh read everything, unless no program has changed nftables since it did that. Until then Ensure deletes no
// elements of pods that the Ruleset lacks.
func (f *Filter) Recheck() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recheck, f.prune = true, false
}

// Refresh reads from the kernel what another process may have changed. The next Ensure deletes the elements that
// Refresh found and that no pod of the Ruleset has. An ADD records its attachment before it adds elements. So a
// caller that reads the records after Refresh knows their pods.
func (f *Filter) Refresh(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prune = true
	if f.recheck {
		now, err := f.nft.Generation(ctx)
		if err != nil {
			return err
		}
		if now != f.generation {
			f.knowsRules, f.knowsPods = false, false
		}
		f.recheck = false
	}
	services, err := hasServices()
	if err != nil {
		return err
	}
	if services != f.services {
		f.services, f.last = services, nil
	}
	return f.refresh(ctx)
}

// form returns the Form of a Ruleset on this node.
func (f *Filter) form(want *Ruleset) Form {
	form := want.Form
	form.Services, form.Sources = f.services, true
	return form
}

func (f *Filter) refresh(ctx context.Context) error {
	if !f.knowsRules {
		var err error
		f.generation, err = f.nft.Generation(ctx)
		if err != nil {
			return err
		}
		f.knowsRules, f.last = true, nil // unless it is disturbed meanwhile: the monitor waits for the lock
		if err := f.readRules(ctx); err != nil {
			f.knowsRules = false
			return err
		}
	}
	if f.knowsPods {
		return nil
	}
	f.knowsPods, f.comparesPods = true, true
	err := f.readPods(ctx)
	f.knowsPods = err == nil
	return err
}

// Ensure makes the kernel match want, in one transaction. If new sets are large, others that make them precede it: nothing uses the new
// sets before. A transaction that would be too large is divided.
func (f *Filter) Ensure(ctx context.Context, want *Ruleset) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	for range nft.Tries {
		if !f.knowsPods || !f.knowsRules {
			f.prune = false
			if err := f.refresh(ctx); err != nil {
				return err
			}
		}
		err = f.ensure(ctx, want)
		if err == nil {
			f.prune = false
			return nil
		}
		f.knowsRules, f.knowsPods = false, false
		if !nft.IsRefused(err) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return fmt.Errorf("%w: another program changes the nftables table %s, or the kernel lacks its expressions, see what 'modprobe -a nft_ct nft_fib_inet' says: %w", nlconn.ErrBusy, podtable.Table(), err)
}

func (f *Filter) ensure(ctx context.Context, want *Ruleset) error {
	if families := want.families(); families != f.families {
		f.families, f.last = families, nil
	}
	if f.have.rules == nil {
		first := f.form(want)
		first.Sources = false
		if err := f.makeTable(ctx, podtable.Table(), podtable.Base(first), want); err != nil {
			return err
		}
	}
	if !f.have.frames && want.hasPorts() {
		if err := f.makeTable(ctx, podtable.BridgeTable(), podtable.BridgeBase(true), want); err != nil {
			return err
		}
	}
	sets, err := f.makeSets(ctx, want)
	if err != nil {
		return err
	}
	t := transaction{filter: f, want: want, sets: sets}
	if err := t.build(); err != nil {
		return err
	}
	again, err := t.commit(ctx)
	if err != nil {
		return err
	}
	if again {
		return f.ensure(ctx, want)
	}
	t.done()
	return nil
}

// makeTable makes a table in place of one that is absent or incomplete. All pods have the chain that drops everything: their own
// chains need sets that may be large. An ADD may have added elements that the caller does not know: they stay, or the transaction
// is refused, because nftables has changed since they were read.
func (f *Filter) makeTable(ctx context.Context, table nft.Table, base []nlconn.Message, want *Ruleset) error {
	msgs := []nlconn.Message{table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE), table.Message(unix.NFT_MSG_DELTABLE, 0)}
	pods, pending, err := f.encoded.entries(want)
	if err != nil {
		return err
	}
	denied := map[string]*nft.Entry{}
	for _, all := range []map[string]*nft.Entry{f.have.pods, pending, pods} {
		for key, n := range all {
			if n.Set.Table != table {
				continue
			}
			if len(n.Set.Data) > 0 {
				if n, err = n.With("goto " + podtable.Deny); err != nil {
					return err
				}
			}
			denied[key] = n
		}
	}
	elements := nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, inOrder(denied))
	if err := f.commitSince(ctx, f.generation, "make", slices.Concat(msgs, base, elements)); err != nil {
		return err
	}
	f.knowsRules, f.knowsPods, f.prune = false, false, false
	return f.refresh(ctx)
}

// uses reports whether packets of pods can match the set.
func (f *Filter) uses(s *Set) bool { return s.Kind == Ports || f.families[family(s.V6)] }

// setChange is a difference of sets by name.
type setChange = keyed.Change[string, *Set, *Set]

// changedSets returns how the kernel's sets differ from those of want. A set that another process may have changed differs.
func (f *Filter) changedSets(want *Ruleset) iter.Seq[setChange] {
	wanted := func(name string) (*Set, bool) {
		s := want.Sets[name]
		return s, s != nil && f.uses(s)
	}
	return keyed.Diff(names(f, want, f.have.sets, want.Sets), keyed.Of(f.have.sets), wanted, keyed.Same)
}

// names returns the names that are compared: those of the Ruleset that have changed since the kernel got it, or, if the kernel may differ anywhere,
// all.
func names[H, W any](f *Filter, want *Ruleset, have map[string]H, all map[string]W) iter.Seq[string] {
	if want == f.last {
		return maps.Keys(want.changed)
	}
	return keyed.Keys(have, all)
}

// maxElements bounds the elements of one transaction that makes sets. A transaction is one write.
const maxElements = 20_000

// makeSets makes the sets that the kernel lacks, with their members, and compares those whose members are not known. It returns requests that
// make the last ones.
func (f *Filter) makeSets(ctx context.Context, want *Ruleset) (last []nlconn.Message, err error) {
	var fresh []*Set
	for c := range f.changedSets(want) {
		switch s := c.Want; {
		case c.Kind == keyed.Remove: // when nothing uses it any more
		case c.Kind == keyed.Add:
			fresh = append(fresh, s)
		case c.Have != nil && s.hasRanges(): // its name follows from its members
			clear(s.changed)
			f.have.sets[c.Key] = s
		default:
			if err := f.compareSet(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	for len(fresh) > 0 {
		n, count := 1, fresh[0].Len()
		for n < len(fresh) && count+fresh[n].Len() <= maxElements {
			count += fresh[n].Len()
			n++
		}
		if err := f.commit(ctx, "make sets of", last); err != nil {
			return nil, err
		}
		last, err = f.makeSome(ctx, fresh[:n])
		if err != nil {
			return nil, err
		}
		fresh = fresh[n:]
	}
	return last, nil
}

// makeSome makes sets, and returns the last requests. A set of more than maxElements members gets the others by further transactions.
func (f *Filter) makeSome(ctx context.Context, sets []*Set) (last []nlconn.Message, err error) {
	feature := nft.Feature{Table: podtable.Table(), Chains: func() []nft.Chain { return nil }}
	for _, s := range sets {
		feature.Sets = append(feature.Sets, s.set())
	}
	last = feature.Messages()
	for i, s := range sets {
		if s.Kind == Verdicts { // its elements name chains that come later
			continue
		}
		members := slices.Sorted(maps.Keys(s.members)) // the kernel wants a range's begin before its end
		for len(members) > maxElements {
			if err := f.commit(ctx, "make sets of", append(last, s.additions(feature.Sets[i], members[:maxElements])...)); err != nil {
				return nil, err
			}
			last, members = nil, members[maxElements:]
		}
		last = append(last, s.additions(feature.Sets[i], members)...)
	}
	for _, s := range sets {
		clear(s.changed)
		f.have.sets[s.Name] = s
		if s.Kind == Verdicts {
			for m := range s.members {
				s.changed[m] = struct{}{}
			}
		}
	}
	return last, nil
}

// additions returns requests that add members to set().
func (s *Set) additions(set *nft.Set, members []string) []nlconn.Message {
	entries := make([]*nft.Entry, len(members))
	for i, m := range members {
		entries[i] = s.entry(set, m)
	}
	return nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, entries)
}

// Delete deletes the elements of an attachment's pod, and reports whether there were any. Those that another process added just now may not be
// known.
func (f *Filter) Delete(ctx context.Context, label string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var known []*nft.Entry
	for _, n := range f.have.pods {
		if n.Label() == label {
			known = append(known, n)
		}
	}
	if !f.knowsPods || len(known) == 0 {
		return false, nil
	}
	generation, err := f.nft.Generation(ctx)
	var own []*nft.Entry
	if err == nil {
		own, err = f.nft.Held(ctx, known)
	}
	if err == nil && len(own) < len(known) { // an address may be another pod's
		f.knowsPods = false
		return false, nil
	}
	if err == nil {
		err = f.commitSince(ctx, generation, "change", elements(unix.NFT_MSG_DELSETELEM, 0, own))
	}
	if err != nil {
		f.knowsPods = false
		return false, err
	}
	maps.DeleteFunc(f.have.pods, func(_ string, n *nft.Entry) bool { return n.Label() == label })
	return true, nil
}

// Remove deletes the tables.
func (f *Filter) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.knowsRules, f.knowsPods = false, false
	var errs []error
	for _, t := range tables() {
		if err := f.commit(ctx, "delete", []nlconn.Message{t.Message(unix.NFT_MSG_DELTABLE, 0)}); !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (f *Filter) commit(ctx context.Context, verb string, msgs []nlconn.Message) error {
	return f.commitSince(ctx, 0, verb, msgs)
}

// commitSince commits a transaction that the kernel refuses if nftables has changed since a generation that is not 0.
func (f *Filter) commitSince(ctx context.Context, generation uint32, verb string, msgs []nlconn.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s nftables table %s", verb, podtable.Table())
	err := f.net.Probed(func() string { return what }, func() error {
		return nlconn.Explain(f.nft.Commit(ctx, generation, msgs...), what)
	})
	if err != nil {
		return err
	}
	if now, err := f.nft.Generation(ctx); err == nil && now == f.generation+1 { // else another program changes nftables, too
		f.generation = now
	}
	return nil
}
