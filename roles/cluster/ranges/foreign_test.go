package ranges

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// shared is a registry that another program uses too.
type shared struct {
	cluster.Ranges
	foreign []cluster.ForeignRange
	err     error
	// wrote is called after each write of a page.
	wrote func()
}

func (s *shared) ForeignRanges(context.Context) ([]cluster.ForeignRange, error) {
	return s.foreign, s.err
}

func (s *shared) Pages() cluster.Collection {
	pages := s.Ranges.Pages()
	return writes{pages, func(ctx context.Context, name string, page []byte, version string) (string, error) {
		next, err := pages.Write(ctx, name, page, version)
		s.wrote()
		return next, err
	}}
}

// share makes a member's registry one that another program uses too.
func (m *member) share() *shared {
	s := &shared{Ranges: m.Registry, wrote: func() {}}
	m.Registry, m.Deletions = s, nil
	m.restart()
	return s
}

func foreign(of string, returning bool) []cluster.ForeignRange {
	return []cluster.ForeignRange{{Name: "IPPool kube-system/x", Range: netip.MustParsePrefix(of), Returning: returning}}
}

// TestForeign: no block is used while another program gives addresses of the range, also if that begins, or cannot be read
// any more, directly after the block was taken.
func TestForeign(t *testing.T) {
	m := newMember(t, registry(t), "a")
	s := m.share()
	m.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	m.demand("other", "", spans("10.2.0.1-10.2.0.254")...)
	s.foreign = foreign("10.1.0.128/25", false)
	if err := m.step("net"); err == nil || !strings.Contains(err.Error(), "IPPool kube-system/x") || !strings.Contains(err.Error(), "cnibox migrate whereabouts") {
		t.Errorf("a range of another program: %v", err)
	}
	if got := m.addresses(); len(got) == 0 || slices.ContainsFunc(got, func(a netip.Addr) bool { return pageOf(a) != ip("10.2.0.0") }) {
		t.Errorf("both ranges have %v", got)
	}
	s.foreign = nil
	m.update(func(tx *store.Tx) error { return tx.DeleteRangeDemand(&store.RangeDemand{Network: "other"}) })
	for name, set := range map[string]func(){
		"foreign": func() { s.foreign = foreign("10.1.0.0/24", false) },
		"error":   func() { s.err = errors.New("no answer") },
	} {
		s.wrote = func() { set(); s.wrote = func() {} }
		if err := m.step("net"); err == nil {
			t.Errorf("%s after the write: no error", name)
		}
		inRange := func(a netip.Addr) bool { return pageOf(a) == ip("10.1.0.0") }
		if got := m.addresses(); slices.ContainsFunc(got, inRange) {
			t.Errorf("%s after the write: %v", name, got)
		}
		s.foreign, s.err = nil, nil
		m.must("net")
		if !slices.ContainsFunc(m.addresses(), inRange) {
			t.Errorf("%s has passed, and the block is not used", name)
		}
		m.restartWithout(t)
	}
}

// TestForeignDamaged: an object that cannot be read keeps only the ranges from being used that its name says.
func TestForeignDamaged(t *testing.T) {
	m := newMember(t, registry(t), "a")
	s := m.share()
	fault := errors.New("IPPool kube-system/10.1.0.0-24: its range is x")
	s.foreign = []cluster.ForeignRange{{Fault: fault}, {Range: netip.MustParsePrefix("10.1.0.0/24"), Fault: fault}}
	m.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	if err := m.step("net"); !errors.Is(err, fault) || len(m.addresses()) > 0 {
		t.Errorf("the range in the name: %v, %v", m.addresses(), err)
	}
	m.update(func(tx *store.Tx) error { return tx.DeleteRangeDemand(&store.RangeDemand{Network: "net"}) })
	m.demand("other", "", spans("10.2.0.1-10.2.0.254")...)
	m.must("other")
	if len(m.addresses()) == 0 || !errors.Is(m.Fault(), fault) {
		t.Errorf("another range: %v, fault %v", m.addresses(), m.Fault())
	}
}

// restartWithout removes all blocks of the registry and the node.
func (m *member) restartWithout(t *testing.T) {
	t.Helper()
	m.update(func(tx *store.Tx) error { return tx.PutRangeBlocks(nil) })
	if err := os.RemoveAll(filepath.Join(m.root, "ranges")); err != nil {
		t.Fatal(err)
	}
	m.restart()
}

// place writes blocks of containers of whereabouts, as Import does.
func (m *member) place(node string, holders ...container) {
	m.t.Helper()
	for _, h := range holders {
		_, _, err := changePage(m.t.Context(), m.Registry, pageName("", pageOf(h.Address)), func(p *page, _ bool) bool {
			p.First = pageOf(h.Address)
			p.add(block{First: h.Address, Last: h.Address, Node: node, Holders: []container{h}})
			return true
		})
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// cache writes the cached result of a container.
func (m *member) cache(id string, a netip.Addr) {
	m.t.Helper()
	dir := filepath.Join(m.Host.Store.RunDir(), "cli", "results")
	raw, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": id, "ifName": "net1", "networkName": "lan", "config": []byte("{}"), "netns": "/none",
		"result": map[string]any{"ips": []any{map[string]string{"address": a.String() + "/24"}}},
	})
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "lan-"+id+"-net1"), raw, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) leased() (out []string) {
	m.t.Helper()
	err := m.Host.Store.View(m.t.Context(), func(tx *store.Tx) error {
		return eachLease(tx, func(_ store.PoolID, l *store.Lease) {
			out = append(out, l.Address.String()+" "+l.Owner.Network+" "+l.Owner.ContainerID+" "+l.Owner.IfName+" "+l.Pod)
		})
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// TestAdopt: a node makes leases for its containers of whereabouts that are in a runtime's cache, when whereabouts does not have the
// range any more. It keeps the address of a container that is in no cache for the grace period, and no other node takes it.
func TestAdopt(t *testing.T) {
	root := registry(t)
	m, other := newMember(t, root, "a"), newMember(t, root, "b")
	s := m.share()
	m.place("a", container{ip("10.1.0.1"), "one", "net1", "ns/one"}, container{ip("10.1.0.2"), "two", "net1", "ns/two"})
	m.place("b", container{ip("10.1.0.3"), "three", "net1", "ns/three"})
	m.Grace = time.Nanosecond
	m.restart()
	m.demand("net", "", spans("10.1.0.1-10.1.0.2")...)
	for range 3 {
		if err := m.step("net"); !errors.Is(err, errNone) {
			t.Error(err)
		}
	}
	if got := m.leased(); len(got)+len(m.addresses()) > 0 {
		t.Errorf("without a cache: leases %v, addresses %v", got, m.addresses())
	}
	m.cache("one", ip("10.1.0.1"))
	m.lease("lan", "", ip("10.1.0.1")) // of a container that whereabouts has detached
	s.foreign = foreign("10.1.0.0/24", false)
	m.restart()
	m.must()
	if got := m.leased(); !slices.Equal(got, []string{"10.1.0.1 lan c-10.1.0.1 eth0 "}) {
		t.Errorf("before whereabouts has lost the range: %v", got)
	}
	s.foreign = nil
	m.Grace = time.Hour
	m.restart()
	s.wrote = func() { s.wrote, s.foreign = func() {}, foreign("10.1.0.0/24", true) }
	m.must()
	if got := m.addresses(); len(got) > 0 {
		t.Errorf("the range is returned directly after the adoption: %v", got)
	}
	s.foreign = nil
	m.restart()
	m.must()
	if got := m.leased(); !slices.Equal(got, []string{"10.1.0.1 lan one net1 ns/one"}) || !slices.Equal(m.addresses(), []netip.Addr{ip("10.1.0.1")}) {
		t.Errorf("leases %q, addresses %v", got, m.addresses())
	}
	if log := m.log.String(); !strings.Contains(log, "container=two") {
		t.Errorf("the container without a cache is not named: %s", log)
	}
	other.demand("net", "", spans("10.1.0.1-10.1.0.4")...)
	other.must("net")
	if got := other.addresses(); !slices.Equal(got, []netip.Addr{ip("10.1.0.4")}) {
		t.Errorf("the other node has %v", got)
	}
	m.Grace = time.Nanosecond
	m.verified = time.Time{}
	m.must()
	if got := m.addresses(); !slices.Equal(got, []netip.Addr{ip("10.1.0.1"), ip("10.1.0.2")}) || len(m.leased()) != 1 {
		t.Errorf("after the grace period: %v, leases %v", got, m.leased())
	}
}

// TestHandOver: the containers of a range that whereabouts gets again are in its pages, and no ADD uses the blocks.
func TestHandOver(t *testing.T) {
	m := newMember(t, registry(t), "a")
	s := m.share()
	m.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	m.must("net")
	m.lease("net", "", m.addresses()[1])
	s.foreign = foreign("10.1.0.0/16", true)
	m.verified = time.Time{}
	m.must()
	if got := m.addresses(); len(got) > 0 {
		t.Errorf("addresses of whereabouts: %v", got)
	}
	raw, _, err := m.Registry.Pages().Read(t.Context(), pageName("", ip("10.1.0.0")))
	if err != nil {
		t.Fatal(err)
	}
	p, err := decodePage(pageName("", ip("10.1.0.0")), raw)
	if err != nil {
		t.Fatal(err)
	}
	if b := p.Blocks[0]; len(p.Blocks) != 1 || b.Machine != "" || !slices.Equal(b.Holders, []container{{Address: ip("10.1.0.2"), ContainerID: "c-10.1.0.2", IfName: "eth0"}}) {
		t.Errorf("%s", raw)
	}
	if err := m.step("net"); !errors.Is(err, errReturning) {
		t.Errorf("ADD: %v", err)
	}
	m.restart()
	m.must()
	if got := m.addresses(); len(got) > 0 {
		t.Errorf("after a restart: %v", got)
	}
}

// TestHandOverDevice: a range does not return to whereabouts while a device has an address of it.
func TestHandOverDevice(t *testing.T) {
	m := newMember(t, registry(t), "a")
	s := m.share()
	m.demand("net", "", spans("10.1.0.1-10.1.0.254")...)
	m.must("net")
	network := DeviceKey("net", "", "").Network
	addr := m.addresses()[1]
	m.lease(network, "", addr)
	m.lease(network, "other", addr) // as an address of another pool it is another one
	s.foreign = foreign("10.1.0.0/16", true)
	for range 2 {
		m.verified = time.Time{}
		if err := m.step(); err == nil || strings.Count(err.Error(), `of network "net" returns to whereabouts, and device "eth0" of ResourceClaim c-`+addr.String()+" has its address") != 1 {
			t.Errorf("%v", err)
		}
	}
	if got := m.addresses(); len(got) > 0 {
		t.Errorf("addresses of whereabouts: %v", got)
	}
	m.release(network, "", addr)
	m.verified = time.Time{}
	m.must()
	if raw, _, err := m.Registry.Pages().Read(t.Context(), pageName("", ip("10.1.0.0"))); err != nil || strings.Contains(string(raw), `"machine"`) {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestOffsets: the keys of whereabouts' allocations are distances from the first address.
func TestOffsets(t *testing.T) {
	for _, c := range []struct{ first, offset, want string }{
		{"10.0.0.0", "1", "10.0.0.1"},
		{"10.0.255.0", "256", "10.1.0.0"},
		{"fd00::", "65536", "fd00::1:0"},
		{"10.0.0.0", "-1", ""},
		{"10.0.0.0", "x", ""},
		{"10.0.0.0", "99999999999999999999", ""},
	} {
		got, ok := addressAt(ip(c.first), c.offset)
		if ok != (c.want != "") || ok && (got.String() != c.want || offsetOf(ip(c.first), got) != c.offset) {
			t.Errorf("%s + %s: %s, %v", c.first, c.offset, got, ok)
		}
	}
	if a, ok := addressAt(ip("255.255.255.255"), "4294967296"); ok && netip.MustParsePrefix("0.0.0.0/0").Contains(a) {
		t.Errorf("an offset beyond IPv4: %s", a)
	}
}
