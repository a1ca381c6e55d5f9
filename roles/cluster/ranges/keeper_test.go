package ranges

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt" //nolint:depguard // to damage a record

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/dir"
)

// member is a node of a test, with a registry that all nodes of the test share.
type member struct {
	*Keeper
	t    *testing.T
	root string
	log  *bytes.Buffer
	// later is added to the clock.
	later time.Duration
}

func registry(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "cluster")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

func newMember(t *testing.T, root, name string) *member {
	t.Helper()
	m := &member{t: t, root: root, log: &bytes.Buffer{}}
	d := t.TempDir()
	h := &roles.Host{
		Store: store.New(store.Options{RunDir: filepath.Join(d, "run"), StateDir: filepath.Join(d, "state"), BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01", LockTimeout: time.Minute}),
		Log:   slog.New(slog.NewTextHandler(m.log, nil)),
		Now:   func() time.Time { return time.Now().Add(m.later) }, SinceBoot: store.SinceBoot,
	}
	for _, dir := range []string{"run", "state"} {
		if err := os.Mkdir(filepath.Join(d, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	reg, err := dir.Open(dir.Options{Dir: root, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	m.Keeper = NewKeeper(Options{Host: h, Registry: reg, Deletions: reg, Node: name, Machine: "machine of " + name})
	return m
}

// restart replaces the keeper, as a restart of the agent does.
func (m *member) restart() { m.Keeper = NewKeeper(m.Options) }

func (m *member) demand(network, pool string, of ...leasing.Interval) {
	m.t.Helper()
	d := store.RangeDemand{Network: network, Pool: pool, Time: m.Host.Now()}
	for _, i := range of {
		d.Free = append(d.Free, [2]netip.Addr{i.Lo, i.Hi})
	}
	m.update(func(tx *store.Tx) error { return tx.PutRangeDemand(&d) })
}

func (m *member) update(fn func(*store.Tx) error) {
	m.t.Helper()
	if err := m.Host.Store.Update(m.t.Context(), fn); err != nil {
		m.t.Fatal(err)
	}
}

// step runs a pass in which the ADDs of some networks wait.
func (m *member) step(networks ...string) error {
	wanted := map[string]bool{}
	for _, n := range networks {
		wanted[n] = true
	}
	return m.Pass(m.t.Context(), wanted)
}

func (m *member) must(networks ...string) {
	m.t.Helper()
	if err := m.step(networks...); err != nil {
		m.t.Fatal(err)
	}
}

// addresses returns the addresses that the node may give out.
func (m *member) addresses() (out []netip.Addr) {
	m.t.Helper()
	err := m.Host.Store.View(m.t.Context(), func(tx *store.Tx) error {
		blocks, err := tx.RangeBlocks()
		for i := range blocks {
			if b := &blocks[i]; b.Valid(m.Host.Now(), m.Host.SinceBoot()) {
				for a := b.First; a.Compare(b.Last) <= 0; a = a.Next() {
					out = append(out, a)
				}
			}
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *member) lease(network, pool string, addrs ...netip.Addr) {
	m.t.Helper()
	m.update(func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{DataDir: store.RangeDir(pool), Network: network})
		for _, a := range addrs {
			if err == nil {
				err = p.Reserve(store.Lease{Address: a, Owner: store.Key{Network: network, ContainerID: "c-" + a.String(), IfName: "eth0"}, Time: m.Host.Now()})
			}
		}
		return err
	})
}

func (m *member) release(network, pool string, addrs ...netip.Addr) {
	m.t.Helper()
	m.update(func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{DataDir: store.RangeDir(pool), Network: network})
		for _, a := range addrs {
			if err == nil {
				err = p.Release(a)
			}
		}
		return err
	})
}

// die removes the node's record, as an operator does who has switched it off.
func (m *member) die() {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.root, "range-nodes", m.Node+".json")); err != nil {
		m.t.Fatal(err)
	}
}

// TestSmall: nodes share a range that is smaller than a usual block, to its last address. Overlapping ranges
// share it, and a pool of one network does not.
func TestSmall(t *testing.T) {
	root := registry(t)
	seen := map[netip.Addr]bool{}
	var last *member
	for i := range 14 {
		m := newMember(t, root, "node-"+string(rune('a'+i)))
		network := []string{"one", "two"}[i%2]
		m.demand(network, "", spans([]string{"192.168.2.225-192.168.2.238", "192.168.2.1-192.168.2.238"}[0])...)
		m.must(network)
		for _, a := range m.addresses() {
			if seen[a] {
				t.Errorf("%s has two nodes", a)
			}
			seen[a] = true
		}
		last = m
	}
	if len(seen) != 14 {
		t.Errorf("14 nodes have %d addresses", len(seen))
	}
	last.lease("two", "", last.addresses()...)
	if err := last.step("two"); !errors.Is(err, errNone) {
		t.Errorf("a full range: %v", err)
	}
	last.demand("own", "own", spans("192.168.2.225-192.168.2.238")...)
	last.must("own")
	last.demand("wide", "", spans("192.168.2.220-192.168.2.238")...)
	last.must("wide")
	for _, a := range last.addresses() {
		if a.Compare(ip("192.168.2.225")) < 0 {
			return
		}
	}
	t.Errorf("the rest of the wider range is not used: %v", last.addresses())
}

// TestGrow: a node takes a block before the last one is used up, prefers its own page, and returns blocks that
// are empty, but not its reserve.
func TestGrow(t *testing.T) {
	m := newMember(t, registry(t), "a")
	of := spans("10.1.0.1-10.1.255.254")
	m.demand("net", "", of...)
	m.must("net")
	first := m.addresses()
	if len(first) != 16 {
		t.Fatalf("first block: %v", first)
	}
	m.lease("net", "", first[:9]...)
	m.must()
	second := m.addresses()
	if len(second) != 32 || pageOf(second[0]) != pageOf(second[31]) {
		t.Fatalf("7 of 16 were free: %v", second)
	}
	m.release("net", "", first[:9]...)
	m.Idle = time.Nanosecond
	m.must()
	m.must()
	if now := m.addresses(); len(now) != 16 {
		t.Errorf("of two empty blocks %d addresses are left", len(now))
	}
	m.later = 2 * demandTime
	m.must()
	m.must()
	if now := m.addresses(); len(now) != 0 || len(m.pages) != 0 {
		t.Errorf("without a demand: %v", now)
	}
	m.restart()
	m.must()
	if len(m.pages) != 0 {
		t.Error("the registry still has a block of the node")
	}
}

// TestRebuilt: a block is not returned while a rebuilt lease of an unknown pool has one of its addresses.
func TestRebuilt(t *testing.T) {
	m := newMember(t, registry(t), "a")
	m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
	m.must("net")
	m.update(func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{Network: "net"})
		if err != nil {
			return err
		}
		return p.Reserve(store.Lease{Address: ip("10.1.0.1"), Owner: store.Key{Network: "net", ContainerID: "c", IfName: "eth0"}, Time: m.Host.Now()})
	})
	m.Idle = time.Nanosecond
	for range 2 {
		m.must()
	}
	if len(m.addresses()) != 1 || len(m.pages) != 1 {
		t.Errorf("the block is returned: %v", m.addresses())
	}
}

// TestRestart: a restarted keeper finds the node's blocks, also when node.db was lost. They are valid only for
// a time after they were read.
func TestRestart(t *testing.T) {
	m := newMember(t, registry(t), "a")
	m.demand("net", "", spans("fd00::1-fd00::ffff:ffff")...)
	m.must("net")
	before := m.addresses()
	m.later = validity + time.Second
	if left := m.addresses(); len(left) != 0 {
		t.Errorf("after the validity: %v", left)
	}
	m.must("net")
	if now := m.addresses(); !slices.Equal(now, before) {
		t.Errorf("after another reading: %v, before %v", now, before)
	}
	m.update(func(tx *store.Tx) error { return tx.PutRangeBlocks(nil) })
	m.restart()
	m.must()
	if now := m.addresses(); !slices.Equal(now, before) {
		t.Errorf("after the loss of node.db: %v, before %v", now, before)
	}
}

// TestDown: without a registry a node uses its blocks until they are not valid any more, and gets no others.
func TestDown(t *testing.T) {
	m := newMember(t, registry(t), "a")
	m.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	m.must("net")
	before := m.addresses()
	if err := os.Rename(m.root, m.root+".away"); err != nil {
		t.Fatal(err)
	}
	m.lease("net", "", before...)
	if err := m.step("net"); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("without a registry: %v", err)
	}
	m.restart()
	if err := m.step(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("without a registry: %v", err)
	}
	if now := m.addresses(); !slices.Equal(now, before) {
		t.Errorf("%v, before %v", now, before)
	}
	if m.Fault() == nil {
		t.Error("no fault is reported")
	}
	if err := os.Rename(m.root+".away", m.root); err != nil {
		t.Fatal(err)
	}
	m.must("net")
	if now := m.addresses(); len(now) <= len(before) || m.Fault() != nil {
		t.Errorf("%v, %v", now, m.Fault())
	}
}

// TestFence: a node's blocks are taken when it has no record and a claim has stayed for the grace period. A node
// that returns has lost them and names the containers that use them. While it lives, it removes claims.
func TestFence(t *testing.T) {
	root := registry(t)
	of := spans("10.1.0.1-10.1.0.2")
	a, b := newMember(t, root, "a"), newMember(t, root, "b")
	for _, m := range []*member{a, b} {
		m.demand("net", "", of...)
	}
	a.must("net")
	a.lease("net", "", a.addresses()...)
	a.must("net")
	a.lease("net", "", ip("10.1.0.2"))
	refused := func(why string) {
		t.Helper()
		if err := b.step("net"); err == nil || len(b.addresses()) > 0 {
			t.Fatalf("%s: %v, %v", why, err, b.addresses())
		}
	}
	refused("a node with a record")
	b.Grace = time.Nanosecond
	refused("a node with a record")
	b.Grace = time.Hour
	a.die()
	refused("the claim was just written")
	refused("the claim is new")
	a.verified = time.Time{}
	a.must()
	if !strings.Contains(a.log.String(), "claimed one of its blocks") {
		t.Errorf("node a reports no claim: %s", a.log)
	}
	b.Grace = time.Nanosecond
	refused("a living node")

	a.die()
	refused("the claim was just written")
	refused("the claim is new")
	if err := b.step("net"); err != nil {
		t.Fatal(err)
	}
	if got := b.addresses(); len(got) != 1 {
		t.Fatalf("node b took %v", got)
	}
	// The return of node a.
	a.restart()
	a.must()
	for _, addr := range a.addresses() {
		if slices.Contains(b.addresses(), addr) {
			t.Errorf("both nodes have %s", addr)
		}
	}
	if !strings.Contains(a.log.String(), "container") {
		t.Errorf("node a does not name its containers: %s", a.log)
	}
}

// TestFailedClaim: a block with a claim that its owner cannot remove is used no longer than without the registry.
func TestFailedClaim(t *testing.T) {
	root := registry(t)
	a, b := newMember(t, root, "a"), newMember(t, root, "b")
	for _, m := range []*member{a, b} {
		m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
	}
	a.must("net")
	a.die()
	if err := b.step("net"); err == nil {
		t.Fatal("taken at once")
	}
	a.Registry = readOnly{a.Registry}
	a.restart()
	if err := a.step(); err == nil || len(a.addresses()) != 1 {
		t.Errorf("%v, %v", err, a.addresses())
	}
	a.later = validity + time.Second
	if err := a.step("net"); err == nil || len(a.addresses()) > 0 {
		t.Errorf("after the validity: %v, %v", err, a.addresses())
	}
	if strings.Contains(a.log.String(), "level=ERROR") {
		t.Errorf("the block is not lost: %s", a.log)
	}
}

type readOnly struct{ cluster.Ranges }

func (r readOnly) Pages() cluster.Collection {
	return writes{r.Ranges.Pages(), func(context.Context, string, []byte, string) (string, error) { return "", cluster.ErrUnavailable }}
}

// writes is a collection with another Write.
type writes struct {
	cluster.Collection
	write func(ctx context.Context, name string, page []byte, version string) (string, error)
}

func (w writes) Write(ctx context.Context, name string, page []byte, version string) (string, error) {
	return w.write(ctx, name, page, version)
}

// unsure writes a page and then fails, as when the answer is lost.
type unsure struct{ cluster.Ranges }

func (u unsure) Pages() cluster.Collection {
	pages := u.Ranges.Pages()
	return writes{pages, func(ctx context.Context, name string, page []byte, version string) (string, error) {
		_, err := pages.Write(ctx, name, page, version)
		return "", errors.Join(err, cluster.ErrUnavailable)
	}}
}

// TestUnsure: a block whose leasing has no answer is found by the next pass.
func TestUnsure(t *testing.T) {
	m := newMember(t, registry(t), "a")
	m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
	registry := m.Registry
	m.Registry = unsure{registry}
	if err := m.step("net"); !errors.Is(err, cluster.ErrUnavailable) || len(m.addresses()) > 0 {
		t.Fatalf("%v, %v", err, m.addresses())
	}
	m.Registry = registry
	m.must("net")
	if len(m.addresses()) != 1 {
		t.Error("the address is lost")
	}
}

// TestTwin: two machines with one node name never have the same block. The blocks of an earlier installation are
// taken after the grace period.
func TestTwin(t *testing.T) {
	root := registry(t)
	of := spans("10.1.0.1-10.1.0.1")
	a, b := newMember(t, root, "a"), newMember(t, root, "a")
	b.Machine += "other"
	b.Grace = time.Nanosecond
	for _, m := range []*member{a, b} {
		m.demand("net", "", of...)
	}
	a.must("net")
	if err := b.step("net"); err == nil {
		t.Fatal("both have the address")
	}
	a.verified = time.Time{}
	a.must()
	if err := b.step("net"); err == nil || len(b.addresses()) > 0 {
		t.Fatal("the claim of a living machine was removed")
	}
	if err := b.step("net"); err == nil || len(b.claims) != 1 {
		t.Fatalf("%v; claims %v", err, b.claims)
	}
	a.verified = time.Time{}
	a.must()
	for range 2 {
		if err := b.step("net"); err == nil || len(b.claims) > 1 {
			t.Fatalf("%v; claims %v", err, b.claims)
		}
	}
	b.must("net")
	a.restart()
	a.must()
	if len(b.addresses()) != 1 || len(a.addresses()) != 0 {
		t.Errorf("%v and %v", a.addresses(), b.addresses())
	}
}

// TestDamaged: a damaged page stops only what it concerns.
func TestDamaged(t *testing.T) {
	root := registry(t)
	m := newMember(t, root, "a")
	if err := os.Mkdir(filepath.Join(root, "ranges"), 0o755); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(root, "ranges", "10-1-0-0.json")
	if err := os.WriteFile(bad, []byte(`{"first":"10.1.0.0","blocks":[{}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.demand("other", "", spans("10.2.0.1-10.2.0.254")...)
	m.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	wanted := map[string]bool{"net": true, "other": true}
	if err := m.Pass(t.Context(), wanted); !errors.Is(err, cluster.ErrInvalid) || !strings.Contains(err.Error(), "10-1-0-0") || !wanted["net"] || wanted["other"] {
		t.Errorf("%v; refused %v", err, wanted)
	}
	if got := m.addresses(); len(got) == 0 || pageOf(got[0]) != ip("10.2.0.0") {
		t.Errorf("%v", got)
	}
	if raw, err := os.ReadFile(bad); err != nil || !strings.Contains(string(raw), "{}") {
		t.Errorf("the damaged page is now %s, %v", raw, err)
	}
}

// TestDamagedBeside: a network with a damaged page gets blocks of its other page.
func TestDamagedBeside(t *testing.T) {
	for i, bad := range []string{"10-1-0-0", "10-1-1-0", "10-1-0-0", "10-1-1-0"} { // the node reads one of them first
		text := []byte("{")
		if i > 1 {
			text = bytes.Repeat([]byte(" "), cluster.MaxPage+1)
		}
		root := registry(t)
		m := newMember(t, root, "a")
		if err := os.Mkdir(filepath.Join(root, "ranges"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "ranges", bad+".json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		m.demand("net", "", spans("10.1.0.1-10.1.1.254")...)
		m.must("net")
		if got := m.addresses(); len(got) == 0 || pageName("", pageOf(got[0])) == bad {
			t.Errorf("beside %s: %v", bad, got)
		}
	}
}

// TestDamagedDemand: a damaged record of one network is a fault of the keeper, and other networks get blocks.
func TestDamagedDemand(t *testing.T) {
	m := newMember(t, registry(t), "a")
	m.demand("bad", "", spans("10.1.0.1-10.1.0.254")...)
	m.demand("good", "", spans("10.2.0.1-10.2.0.254")...)
	db, err := bolt.Open(m.Host.Store.Path(), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("ranges"))
		k, _ := b.Cursor().First()
		return b.Put(k, []byte("{"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	m.must("good")
	if got := m.addresses(); len(got) == 0 || pageOf(got[0]) != ip("10.2.0.0") {
		t.Errorf("%v", got)
	}
	if err := m.Fault(); !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "bad") {
		t.Errorf("fault: %v", err)
	}
}

// TestRefused: an agent whose node uses no range does not repeat a refused list at each tick. An ADD that waits gets
// the error.
func TestRefused(t *testing.T) {
	m := newMember(t, registry(t), "a")
	r := &refusing{Ranges: m.Registry}
	m.Registry = r
	for range 3 {
		m.must()
	}
	if r.lists != 1 {
		t.Errorf("%d requests in three ticks", r.lists)
	}
	m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
	for _, wanted := range [][]string{{"net"}, nil} { // the demand is a use, so the next tick repeats the request
		if err := m.step(wanted...); !errors.Is(err, cluster.ErrUnavailable) || m.Fault() == nil {
			t.Errorf("wanted %v: %v", wanted, err)
		}
	}
	m.Registry = r.Ranges
	m.must("net")
}

// refusing counts and refuses lists.
type refusing struct {
	cluster.Ranges
	lists int
}

func (r *refusing) Pages() cluster.Collection { return refusingPages{r.Ranges.Pages(), &r.lists} }

type refusingPages struct {
	cluster.Collection
	lists *int
}

func (r refusingPages) List(context.Context, func(string, []byte, string)) error {
	*r.lists++
	return cluster.ErrUnavailable
}

// TestUnreadable: files that are not readable as pages stop no other page, and the log names each once.
func TestUnreadable(t *testing.T) {
	root := registry(t)
	pages := filepath.Join(root, "ranges")
	err := errors.Join(
		os.MkdirAll(filepath.Join(pages, "10-1-0-0.json"), 0o755),
		os.Symlink("/dev/zero", filepath.Join(pages, "10-1-1-0.json")),
		os.WriteFile(filepath.Join(pages, "10-1-2-0.json"), make([]byte, cluster.MaxPage+1), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(t, root, "a")
	m.demand("net", "", spans("10.2.0.1-10.2.0.254")...)
	m.must("net")
	m.must()
	for _, name := range []string{"10-1-0-0", "10-1-1-0", "10-1-2-0"} {
		if n := strings.Count(m.log.String(), name); n != 1 {
			t.Errorf("the log names %s %d times: %s", name, n, m.log)
		}
	}
}

// TestDamagedOwn: a damaged page with a block of the node, whose addresses are in use, does not end the validity of
// its other blocks. A restarted agent does not forget the block.
func TestDamagedOwn(t *testing.T) {
	root := registry(t)
	m := newMember(t, root, "a")
	m.demand("one", "", spans("10.1.0.1-10.1.0.1")...)
	m.demand("two", "", spans("10.2.0.1-10.2.0.1")...)
	m.must("one", "two")
	m.lease("one", "", ip("10.1.0.1"))
	path := filepath.Join(root, "ranges", "10-1-0-0.json")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.restart()
	m.later = validity - time.Minute
	if err := m.step(); !errors.Is(err, cluster.ErrInvalid) {
		t.Error(err)
	}
	m.later = validity + time.Minute
	if now := m.addresses(); !slices.Equal(now, []netip.Addr{ip("10.2.0.1")}) {
		t.Errorf("beside the damaged page: %v", now)
	}
	if err := os.WriteFile(path, bytes.Replace(good, []byte(`"node":"a"`), []byte(`"node":"b"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	m.must()
	if !strings.Contains(m.log.String(), "c-10.1.0.1") {
		t.Errorf("the lost block is forgotten: %s", m.log)
	}
}

// TestErased: a node takes its blocks with leases again when the registry has lost them, and not those that
// another node has by then.
func TestErased(t *testing.T) {
	root := registry(t)
	a, b := newMember(t, root, "a"), newMember(t, root, "b")
	a.demand("net", "", spans("10.1.0.1-10.1.0.2")...)
	for range 2 {
		a.must("net")
		a.lease("net", "", a.addresses()[len(a.addresses())-1])
	}
	before := a.addresses()
	if err := os.RemoveAll(filepath.Join(root, "ranges")); err != nil {
		t.Fatal(err)
	}
	b.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
	b.must("net")
	a.verified = time.Time{}
	a.must()
	if now := a.addresses(); len(before) != 2 || !slices.Equal(now, before[1:]) {
		t.Errorf("%v, before %v", now, before)
	}
	if log := a.log.String(); !strings.Contains(log, "taken again") || !strings.Contains(log, "c-10.1.0.1") || strings.Contains(log, "c-10.1.0.2") {
		t.Errorf("%s", log)
	}
}

// TestDeletedPages: after pages were deleted no node takes a block of them until their nodes have recorded theirs again, which they do at
// once. Other pages can be used.
func TestDeletedPages(t *testing.T) {
	ways := map[string]func(pages string) error{
		"page":      func(pages string) error { return os.Remove(filepath.Join(pages, "10-1-0-0.json")) },
		"moved":     func(pages string) error { return os.Rename(filepath.Join(pages, "10-1-0-0.json"), pages+".json") },
		"all":       os.RemoveAll,
		"directory": func(pages string) error { return os.Rename(pages, pages+"-away") },
	}
	for name, spoil := range ways {
		t.Run(name, func(t *testing.T) {
			root := registry(t)
			a, b := newMember(t, root, "a"), newMember(t, root, "b")
			a.demand("net", "", spans("10.1.0.1-10.1.0.2")...)
			for range 2 {
				a.must("net")
				a.lease("net", "", a.addresses()[len(a.addresses())-1])
			}
			before := a.addresses()
			b.demand("net", "", spans("10.1.0.1-10.1.0.2")...)
			b.demand("two", "", spans("10.1.0.1-10.1.1.2")...)
			if err := b.step("net"); err == nil || len(before) != 2 {
				t.Fatal(err, before)
			}
			if err := spoil(filepath.Join(root, "ranges")); err != nil {
				t.Fatal(err)
			}
			if err := b.step("net"); !errors.Is(err, errDeleted) || len(b.addresses()) > 0 {
				t.Errorf("%v: %v", b.addresses(), err)
			}
			if name == "page" || name == "moved" {
				b.must("two")
				if got := b.addresses(); len(got) == 0 || pageOf(got[0]) != ip("10.1.1.0") {
					t.Errorf("a network with another page gets %v", got)
				}
			}
			a.readDeleted()
			a.must()
			if now := a.addresses(); !slices.Equal(now, before) {
				t.Errorf("%v, before %v", now, before)
			}
			if err := b.step("net"); err == nil || slices.Contains(b.addresses(), before[0]) {
				t.Errorf("%v: %v", b.addresses(), err)
			}
			if raw, _, err := a.Registry.Pages().Read(t.Context(), "10-1-0-0"); err != nil || len(raw) == 0 {
				t.Errorf("%q %v", raw, err)
			}
		})
	}
}

// TestShrunk: a node takes the rest of a block again whose page was edited, or restored from a backup in which the
// block was smaller, unless another node has it.
func TestShrunk(t *testing.T) {
	for _, other := range []bool{false, true} {
		root := registry(t)
		a, b := newMember(t, root, "a"), newMember(t, root, "b")
		a.demand("net", "", spans("10.1.0.1-10.1.255.254")...)
		a.must("net")
		before := a.addresses()
		a.lease("net", "", before[5], before[12])
		path := filepath.Join(root, "ranges", slices.Collect(maps.Keys(a.pages))[0]+".json")
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		smaller := bytes.Replace(raw, []byte(`"last":"`+before[15].String()), []byte(`"last":"`+before[7].String()), 1)
		if err := os.WriteFile(path, smaller, 0o600); err != nil || bytes.Equal(raw, smaller) {
			t.Fatalf("%s, %v", smaller, err)
		}
		if other {
			b.demand("net", "", leasing.Single(before[12]))
			b.must("net")
		}
		a.verified = time.Time{}
		a.must()
		switch now := a.addresses(); {
		case other && (slices.Contains(now, before[12]) || !slices.Contains(now, before[5]) || !strings.Contains(a.log.String(), "c-"+before[12].String()) || strings.Contains(a.log.String(), "c-"+before[5].String())):
			t.Errorf("%v of %v; %s", now, before, a.log)
		case !other && !slices.Equal(now, before):
			t.Errorf("%v, before %v", now, before)
		}
	}
}

// late is a registry whose first write after arming is executed by finish, after the node has given up waiting.
type late struct {
	cluster.Ranges
	armed  bool
	finish func() error
}

func (l *late) Pages() cluster.Collection {
	pages := l.Ranges.Pages()
	return writes{pages, func(ctx context.Context, name string, page []byte, version string) (string, error) {
		if !l.armed {
			return pages.Write(ctx, name, page, version)
		}
		l.armed = false
		l.finish = func() error {
			_, err := pages.Write(context.WithoutCancel(ctx), name, page, version)
			return err
		}
		return "", cluster.ErrUnavailable
	}}
}

// TestLate: the return of a block that is executed long after its request, when the node uses the block again,
// fails. This is also so if the agent was restarted meanwhile.
func TestLate(t *testing.T) {
	for _, restart := range []bool{false, true} {
		m := newMember(t, registry(t), "a")
		l := &late{Ranges: m.Registry}
		m.Registry = l
		m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
		m.must("net")
		m.Idle = time.Nanosecond
		l.armed = true
		if err := m.step(); err == nil || len(m.addresses()) > 0 {
			t.Fatalf("%v, %v", err, m.addresses())
		}
		m.Idle = time.Hour
		if restart {
			m.restart()
		}
		m.must("net")
		if len(m.addresses()) != 1 {
			t.Fatalf("%v", m.addresses())
		}
		if err := l.finish(); !errors.Is(err, cluster.ErrRaced) {
			t.Errorf("the late write: %v", err)
		}
	}
}

// TestLateClaim: the grace period of a claim begins when it is in the registry, not when its write was requested.
func TestLateClaim(t *testing.T) {
	root := registry(t)
	a, b := newMember(t, root, "a"), newMember(t, root, "b")
	for _, m := range []*member{a, b} {
		m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
	}
	a.must("net")
	a.die()
	l := &late{Ranges: b.Registry, armed: true}
	b.Registry, b.Grace = l, time.Nanosecond
	if err := b.step("net"); !errors.Is(err, cluster.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := l.finish(); err != nil {
		t.Fatal(err)
	}
	if err := b.step("net"); err == nil || len(b.addresses()) > 0 {
		t.Errorf("the block is taken at once: %v", b.addresses())
	}
	b.must("net")
	if len(b.addresses()) != 1 {
		t.Error("the block is not taken")
	}
}

// TestLateBlock: a block that a node got by a write long after its request is returned, also if no page of the node was written since.
// docs/model has found that it was not.
func TestLateBlock(t *testing.T) {
	for _, restart := range []bool{false, true} {
		root := registry(t)
		a, b := newMember(t, root, "a"), newMember(t, root, "b")
		a.Host.SinceBoot = func() time.Duration { return store.SinceBoot() + a.later }
		l := &late{Ranges: a.Registry, armed: true}
		a.Registry, a.Idle = l, time.Nanosecond
		for _, m := range []*member{a, b} {
			m.demand("net", "", spans("10.1.0.1-10.1.0.1")...)
		}
		if err := a.step("net"); !errors.Is(err, cluster.ErrUnavailable) {
			t.Fatal(err)
		}
		if restart {
			a.restart()
		}
		a.later = demandTime
		a.must()
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
		for range 3 { // finds it, returns it
			a.later += relistTime
			a.must()
		}
		b.must("net")
		if len(b.addresses()) != 1 {
			t.Errorf("restart %v: %v", restart, b.addresses())
		}
	}
}

// TestPlanned: a node leases a block for a network before its first ADD, unless more than a half of the range is leased or single
// addresses are. It returns the block of a network that it does not use when others need the range.
func TestPlanned(t *testing.T) {
	root := registry(t)
	plan := func(m *member, of string) {
		d := store.RangeDemand{Network: "net"}
		for _, i := range spans(of) {
			d.Free = append(d.Free, [2]netip.Addr{i.Lo, i.Hi})
		}
		m.Planned = func() []store.RangeDemand { return []store.RangeDemand{d} }
	}
	const of = "10.1.0.1-10.1.0.254"
	m, busy := newMember(t, root, "a"), newMember(t, root, "b")
	plan(m, of)
	m.must()
	if got := m.addresses(); len(got) != 2 {
		t.Fatalf("before the first ADD: %v", got)
	}
	m.Idle = time.Nanosecond
	for range 3 {
		m.must()
	}
	if got := m.addresses(); len(got) != 2 {
		t.Errorf("the block is not kept: %v", got)
	}

	busy.demand("net", "", spans(of)...)
	lease := func(n int) {
		t.Helper()
		for have := len(busy.addresses()); have < n; have = len(busy.addresses()) {
			busy.must("net")
			for _, a := range busy.addresses()[have:] {
				busy.lease("net", "", a)
			}
		}
	}
	lease(130)
	late := newMember(t, root, "c")
	plan(late, of)
	late.must()
	if got := late.addresses(); len(got) > 0 {
		t.Errorf("less than a half is free: %v", got)
	}
	calls := &counting{Ranges: late.Registry}
	late.Registry = calls
	if late.must(); calls.n > 0 {
		t.Errorf("%d requests are repeated in each pass", calls.n)
	}
	m.verified = time.Time{}
	m.must()
	if got := m.addresses(); len(got) != 2 {
		t.Errorf("more than a quarter is free: %v", got)
	}
	lease(200)
	m.verified = time.Time{}
	m.must()
	m.must()
	if got := m.addresses(); len(got) > 0 {
		t.Errorf("less than a quarter is free: %v", got)
	}
	m.demand("net", "", spans(of)...)
	m.must("net")
	if got := m.addresses(); len(got) == 0 {
		t.Error("the first ADD gets no block")
	}

	single := newMember(t, root, "d")
	plan(single, "10.3.0.1-10.3.0.100")
	single.must()
	if got := single.addresses(); len(got) > 0 {
		t.Errorf("single addresses are leased before an ADD: %v", got)
	}
	single.Registry = readOnly{single.Registry}
	plan(single, "10.4.0.1-10.4.0.254")
	if err := single.step(); !errors.Is(err, cluster.ErrUnavailable) || single.Fault() == nil {
		t.Errorf("a changed network without a registry: %v", err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	fresh := newMember(t, root, "e")
	plan(fresh, of)
	if err := fresh.step(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("a network without a registry: %v", err)
	}
	unused := newMember(t, root, "f")
	if err := unused.step(); err != nil {
		t.Errorf("an agent that uses no range, without a registry: %v", err)
	}
	unused.Sole = true
	unused.restart()
	if err := unused.step(); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("an agent for ranges only, without a registry: %v", err)
	}
}

// counting counts the readings of pages and of other programs' ranges.
type counting struct {
	cluster.Ranges
	n int
}

func (c *counting) Pages() cluster.Collection { return countingPages{c.Ranges.Pages(), &c.n} }

type countingPages struct {
	cluster.Collection
	n *int
}

func (c countingPages) Read(ctx context.Context, name string) ([]byte, string, error) {
	*c.n++
	return c.Collection.Read(ctx, name)
}

func (c *counting) ForeignRanges(ctx context.Context) ([]cluster.ForeignRange, error) {
	c.n++
	return c.Ranges.ForeignRanges(ctx)
}
