package podfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
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
	// prune is true if have.pods was read by Refresh.
	prune bool
}

// Open opens a Filter in the network namespace of the calling thread. It does not change the kernel.
func Open(n *netops.Net) (*Filter, error) {
	f := &Filter{nft: nft.New(podtable.Schema, nil), net: n}
	table := podtable.Table()
	var err error
	f.monitor, err = nft.OpenMonitor(f.nft, f.disturbed,
		nft.Watched{Table: table, Sets: podtable.PodSets}, nft.Watched{Table: table, ButSets: podtable.PodSets})
	if err != nil {
		return nil, errors.Join(err, f.nft.Close())
	}
	return f, nil
}

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

// Recheck makes the next Refresh read everything.
func (f *Filter) Recheck() { f.disturbed(nft.Watched{}) }

// Refresh reads from the kernel what another process may have changed. The next Ensure deletes the elements that
// Refresh found and that no pod of the Ruleset has. An ADD records its attachment before it adds elements. So a
// caller that reads the records after Refresh knows their pods.
func (f *Filter) Refresh(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prune = true
	return f.refresh(ctx)
}

func (f *Filter) refresh(ctx context.Context) error {
	if !f.knowsRules {
		f.knowsRules, f.last = true, nil // unless it is disturbed meanwhile: the monitor waits for the lock
		if err := f.readRules(ctx); err != nil {
			f.knowsRules = false
			return err
		}
	}
	if f.knowsPods {
		return nil
	}
	f.knowsPods, f.last = true, nil
	err := f.readPods(ctx)
	f.knowsPods = err == nil
	return err
}

// Ensure makes the kernel match want, in one transaction after those that make new sets. Nothing uses the new sets
// before.
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
		if !nft.IsRefused(err) && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return fmt.Errorf("%w: another program changes the nftables table %s: %w", nlconn.ErrBusy, podtable.Table(), err)
}

func (f *Filter) ensure(ctx context.Context, want *Ruleset) error {
	if f.have.rules == nil {
		if err := f.makeTable(ctx, want); err != nil {
			return err
		}
	}
	if err := f.makeSets(ctx, want); err != nil {
		return err
	}
	t := transaction{filter: f, want: want}
	if err := t.build(); err != nil {
		return err
	}
	if err := f.commit(ctx, "change", t.messages()); err != nil {
		return err
	}
	t.done()
	return nil
}

// makeTable makes the table, in which all pods have the chain that drops everything: their own chains need sets that may
// be large. It replaces a table without a base chain.
func (f *Filter) makeTable(ctx context.Context, want *Ruleset) error {
	table := podtable.Table()
	msgs := []nlconn.Message{table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE), table.Message(unix.NFT_MSG_DELTABLE, 0)}
	base, err := podtable.Base(want.KeepEstablished)
	if err != nil {
		return err
	}
	denied := map[netip.Addr]Pod{}
	for a, p := range want.Pods {
		denied[a] = Pod{Label: p.Label, Egress: denyIf(p.Egress), Ingress: denyIf(p.Ingress)}
	}
	pods, err := podEntries(denied)
	if err != nil {
		return err
	}
	elements := nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, inOrder(pods))
	if err := f.commit(ctx, "make", slices.Concat(msgs, base, elements)); err != nil {
		return err
	}
	f.last = nil
	f.have = kernel{rules: podtable.BaseChains(want.KeepEstablished), sets: map[string]*Set{}, pods: pods}
	return nil
}

func denyIf(chain string) string {
	if chain != "" {
		return Deny
	}
	return ""
}

// maxElements bounds the elements of one transaction that makes sets. A transaction is one write.
const maxElements = 20_000

// makeSets makes the sets that the kernel lacks, with their members, and compares those whose members are not known.
func (f *Filter) makeSets(ctx context.Context, want *Ruleset) error {
	var fresh []*Set
	for name, s := range want.Sets {
		have, exists := f.have.sets[name]
		switch {
		case !exists:
			fresh = append(fresh, s)
		case have != s:
			if err := f.compareSet(ctx, s); err != nil {
				return err
			}
		}
	}
	for len(fresh) > 0 {
		n, count := 1, fresh[0].Len()
		for n < len(fresh) && count+fresh[n].Len() <= maxElements {
			count += fresh[n].Len()
			n++
		}
		if err := f.makeSome(ctx, fresh[:n]); err != nil {
			return err
		}
		fresh = fresh[n:]
	}
	return nil
}

// makeSome makes sets. A set of more than maxElements members gets the others by further transactions.
func (f *Filter) makeSome(ctx context.Context, sets []*Set) error {
	feature := nft.Feature{Table: podtable.Table(), Chains: func() []nft.Chain { return nil }}
	var entries []*nft.Entry
	for _, s := range sets {
		set := s.set()
		feature.Sets = append(feature.Sets, set)
		for m := range s.members {
			entries = append(entries, &nft.Entry{Set: set, Key: []byte(m)})
		}
	}
	msgs, err := feature.Messages()
	for first := true; err == nil && (first || len(entries) > 0); first = false {
		n := min(len(entries), maxElements)
		msgs = append(msgs, nft.ElementMessages(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, entries[:n])...)
		err = f.commit(ctx, "make sets of", msgs)
		msgs, entries = nil, entries[n:]
	}
	if err != nil {
		return err
	}
	for _, s := range sets {
		clear(s.changed)
		f.have.sets[s.Name] = s
	}
	return nil
}

// Remove deletes the table.
func (f *Filter) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.knowsRules, f.knowsPods = false, false
	err := f.commit(ctx, "delete", []nlconn.Message{podtable.Table().Message(unix.NFT_MSG_DELTABLE, 0)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (f *Filter) commit(ctx context.Context, verb string, msgs []nlconn.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s nftables table %s", verb, podtable.Table())
	return f.net.Probed(func() string { return what }, func() error {
		return nlconn.Explain(f.nft.Commit(ctx, 0, msgs...), what)
	})
}
