package podfilter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/keyed"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/podtable"
)

// kernel is what the kernel has.
type kernel struct {
	// rules has the number of rules of each chain. It is nil if the table is absent or another program changed a base
	// chain's hook.
	rules map[string]int
	// frames is true if BridgeTable exists and is whole.
	frames bool
	// sets has the other sets than those of pods: a Set of the Ruleset if its members are in the kernel, except those in
	// changed, or nil if the members are not known.
	sets map[string]*Set
	// pods are the elements of pods by their IDs.
	pods map[string]*nft.Entry
}

// readRules reads the chains, the number of their rules, and the names of the sets.
func (f *Filter) readRules(ctx context.Context) error {
	f.have.rules, f.have.sets = nil, map[string]*Set{}
	rules, sets, err := f.readTable(ctx, podtable.Table())
	if err != nil {
		return err
	}
	frames, ports, err := f.readTable(ctx, podtable.BridgeTable())
	if err != nil {
		return err
	}
	f.have.frames = maps.Equal(frames, podtable.BridgeChains())
	for _, s := range podtable.Schema().Sets() {
		if s.Table == podtable.BridgeTable() {
			f.have.frames = f.have.frames && slices.Contains(ports, s.Name)
		} else if !slices.Contains(sets, s.Name) {
			return nil
		}
	}
	for c := range podtable.BaseChains(podtable.Form{}) {
		if _, has := rules[c]; !has {
			return nil
		}
	}
	f.have.rules = rules
	for _, s := range sets {
		if !podtable.IsPodSet(s) {
			f.have.sets[s] = nil
		}
	}
	return nil
}

// readTable reads the chains of a table with the number of their rules, and the names of its sets.
func (f *Filter) readTable(ctx context.Context, t nft.Table) (rules map[string]int, sets []string, err error) {
	list := func(what string, m nlconn.Message, table, name uint16) []string {
		all, failed := nft.List(ctx, f.nft, m, nameOf(table, name))
		if failed != nil && !errors.Is(failed, unix.ENOENT) && err == nil {
			err = nlconn.Explain(failed, fmt.Sprintf("list the %s of %s", what, t))
		}
		return all
	}
	rules = map[string]int{}
	for _, c := range list("chains", t.ChainMessage(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, ""), unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME) {
		rules[c] = 0
	}
	for _, c := range list("rules", t.RuleMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, ""), unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN) {
		rules[c]++
	}
	m := nft.Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.Family)
	m.Text(unix.NFTA_SET_TABLE, t.Name)
	return rules, list("sets", m, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME), err
}

// nameOf returns a decoder of the names of a table's objects. Some kernels list those of all tables.
func nameOf(table, name uint16) func(attrs []byte) (string, bool, error) {
	return func(attrs []byte) (string, bool, error) {
		t, err := nlconn.Find(attrs, table)
		if err != nil || nlconn.Text(t) != podtable.Table().Name {
			return "", false, err
		}
		n, err := nlconn.Find(attrs, name)
		return nlconn.Text(n), err == nil, err
	}
}

// readPods reads the elements of pods.
func (f *Filter) readPods(ctx context.Context) error {
	f.have.pods = map[string]*nft.Entry{}
	for _, s := range podtable.Schema().Sets() {
		all, err := f.nft.Entries(ctx, s)
		if err != nil {
			return err
		}
		for _, n := range all {
			f.have.pods[n.ID()] = n
		}
	}
	return nil
}

// compareSet reads a set's members, and marks those as changed that differ.
func (f *Filter) compareSet(ctx context.Context, s *Set) error {
	all, err := f.nft.Entries(ctx, s.set())
	if err != nil {
		return err
	}
	have := make(map[string]struct{}, len(all))
	for _, n := range all {
		have[memberOf(n)] = struct{}{}
	}
	s.changed = map[string]struct{}{}
	for c := range keyed.Maps(have, s.members, keyed.Same) {
		s.changed[c.Key] = struct{}{}
	}
	f.have.sets[s.Name] = s
	return nil
}

// servicesFile lists the virtual services of IPVS in the namespace of the process. It is absent without the module.
const servicesFile = "/proc/net/ip_vs"

// Bypass returns an error that names the flowtable of nftables that keeps packets of pods from the table: it forwards known connections
// before the hook.
func (f *Filter) Bypass(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const flowtableTable, flowtableName = 1, 2 // NFTA_FLOWTABLE_*
	tables, err := nft.List(ctx, f.nft, nft.Request(unix.NFT_MSG_GETFLOWTABLE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC), func(attrs []byte) (string, bool, error) {
		table, err := nlconn.Find(attrs, flowtableTable)
		if err != nil {
			return "", false, err
		}
		name, err := nlconn.Find(attrs, flowtableName)
		return nlconn.Text(table) + " " + nlconn.Text(name), err == nil, err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		return nlconn.Explain(err, "list flowtables")
	}
	if len(tables) > 0 {
		return fmt.Errorf("connections in the nftables flowtable %s are not filtered: %w: delete the flowtable", tables[0], nlconn.ErrNotSupported)
	}
	return nil
}

// CanLog returns an error if the kernel cannot log packets: it lacks the modules nft_limit, nft_log or nfnetlink_log.
func (f *Filter) CanLog(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	table := podtable.Table()
	table.Name += "_probe"
	const chain = "log"
	err := f.nft.Commit(ctx, 0, table.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE), table.ChainMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, chain),
		podtable.LogRule().Message(table, chain), table.Message(unix.NFT_MSG_DELTABLE, 0))
	return nlconn.Explain(err, "log packets by nftables")
}

// hasServices reports whether IPVS has a service in the namespace of the process. The file of many services has megabytes: its begin says it.
func hasServices() (bool, error) {
	file, err := os.Open(servicesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	begin := make([]byte, 1<<10)
	n, err := io.ReadFull(file, begin)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // the file is shorter
	}
	return listsService(string(begin[:n])), err
}

// listsService reports whether the text of servicesFile has a service. Its lines begin with a protocol, those of servers with an arrow, and
// its first lines are titles (net/netfilter/ipvs/ip_vs_ctl.c).
func listsService(text string) bool {
	for line := range strings.Lines(text) {
		switch kind, _, _ := strings.Cut(line, " "); kind {
		case "TCP", "UDP", "SCTP", "FWM":
			return true
		}
	}
	return false
}
