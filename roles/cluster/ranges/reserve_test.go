package ranges

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt" //nolint:depguard // to damage a record

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
)

// request returns a request for a reservation in ranges.
func reserveRequest(key string, of ...string) *Reserve {
	d := &Reserve{ReservationID: store.ReservationID{Network: "net", Key: key}, TTL: 60}
	for _, text := range of {
		r := store.RangeDemand{Bits: 24}
		for _, i := range spans(text) {
			r.Free = append(r.Free, [2]netip.Addr{i.Lo, i.Hi})
		}
		d.Ranges = append(d.Ranges, r)
	}
	return d
}

// held returns the record of the reservation in node.db, or nil.
func (m *member) held(d *Reserve) (found *store.RangeReservation) {
	m.t.Helper()
	m.update(func(tx *store.Tx) error {
		all, err := tx.RangeReservations()
		found = all[d.ReservationID]
		return err
	})
	return found
}

// attach is an ADD: it asks for the reservation and leases its addresses.
func (m *member) attach(d *Reserve) (addrs []netip.Addr, err error) {
	m.t.Helper()
	if err := m.serve(m.t.Context(), d); err != nil {
		return nil, err
	}
	addrs = m.held(d).Addresses
	m.lease(d.Network, d.Pool, addrs...)
	m.update(func(tx *store.Tx) error {
		held, err := tx.RangeReservation(d.ReservationID)
		held.Until = time.Time{}
		return errors.Join(err, tx.PutRangeReservation(held))
	})
	m.must()
	return addrs, nil
}

func (m *member) mustAttach(d *Reserve) []netip.Addr {
	m.t.Helper()
	addrs, err := m.attach(d)
	if err != nil {
		m.t.Fatalf("%s: %v", m.Node, err)
	}
	return addrs
}

func (m *member) detach(d *Reserve) {
	m.t.Helper()
	m.release(d.Network, d.Pool, m.held(d).Addresses...)
	m.must()
}

// registered returns a reservation as the registry has it, or nil.
func (m *member) registered(d *Reserve) *reservation {
	m.t.Helper()
	r, err := m.lookUp(m.t.Context(), d.ReservationID)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// TestReserve: a reservation moves between nodes with its addresses, two nodes at most hold it at once, and its
// addresses are free after its time to live.
func TestReserve(t *testing.T) {
	root := registry(t)
	a, b, c := newMember(t, root, "a"), newMember(t, root, "b"), newMember(t, root, "c")
	d := reserveRequest("pod:default/web-0/net1", "192.168.2.1-192.168.2.20", "fd00::1-fd00::ff")
	addrs := a.mustAttach(d)
	if len(addrs) != 2 || !addrs[0].Is4() || !addrs[1].Is6() || a.held(d).Quiet {
		t.Fatalf("%v, %+v", addrs, a.held(d))
	}
	if got := b.mustAttach(d); !slices.Equal(got, addrs) || !b.held(d).Quiet {
		t.Errorf("the second holder has %v, quiet %v", got, b.held(d).Quiet)
	}
	_, err := c.attach(d)
	if err == nil || !strings.Contains(err.Error(), "the nodes a and b have ["+addrs[0].String()) {
		t.Errorf("a third holder: %v", err)
	}
	a.detach(d)
	b.must()
	if r := b.registered(d); len(r.Holders) != 1 || r.Holders[0].Node != "b" || !r.Until.IsZero() {
		t.Errorf("after the first has ended: %+v", r)
	}
	if got := c.mustAttach(d); !slices.Equal(got, addrs) {
		t.Errorf("the third has %v, then", got)
	}
	b.detach(d)
	c.detach(d)
	if got := a.mustAttach(d); !slices.Equal(got, addrs) || a.held(d).Quiet {
		t.Errorf("within the time to live: %v", got)
	}
	a.detach(d)
	a.later = time.Hour
	a.must()
	if r := a.registered(d); r != nil {
		t.Errorf("after the time to live: %+v", r)
	}
	raw, _, err := a.Registry.Pages().Read(t.Context(), pageName("", pageOf(addrs[0])))
	if err != nil || strings.Contains(string(raw), "reserved") {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestReserveForeign: no reservation begins, and none is granted, while another program gives addresses of the range, also if
// that begins after an address was taken.
func TestReserveForeign(t *testing.T) {
	a := newMember(t, registry(t), "a")
	s := a.share()
	d := reserveRequest("key", "10.1.0.1-10.1.0.9")
	s.foreign = foreign("10.1.0.0/24", false)
	if _, err := a.attach(d); err == nil || !strings.Contains(err.Error(), "IPPool kube-system/x") || a.registered(d) != nil {
		t.Errorf("%v, %+v", err, a.registered(d))
	}
	s.foreign = nil
	s.wrote = func() { s.foreign = foreign("10.1.0.0/24", false) }
	if _, err := a.attach(d); err == nil || !strings.Contains(err.Error(), "IPPool kube-system/x") || a.held(d) != nil {
		t.Errorf("after a write: %v, %+v", err, a.held(d))
	}
	s.foreign, s.wrote = nil, func() {}
	a.mustAttach(d)
}

// TestReserveStrangers: no block and no other reservation gets a reserved address, to the last address of the range, and
// no reservation gets one of a block.
func TestReserveStrangers(t *testing.T) {
	root := registry(t)
	a, b := newMember(t, root, "a"), newMember(t, root, "b")
	const of = "192.168.2.1-192.168.2.6"
	seen := map[netip.Addr]bool{}
	take := func(addrs ...netip.Addr) {
		t.Helper()
		for _, a := range addrs {
			if seen[a] {
				t.Errorf("%s is given out twice", a)
			}
			seen[a] = true
		}
	}
	a.demand("net", "", spans(of)...)
	a.must("net")
	own := a.addresses()
	for i, m := range []*member{a, b, a, b, a} {
		take(m.mustAttach(reserveRequest(string(rune('k'+i)), of))...)
	}
	if seen[own[0]] {
		t.Errorf("the block %v has a reservation", own)
	}
	b.demand("net", "", spans(of)...)
	if err := b.step("net"); !errors.Is(err, errNone) {
		t.Errorf("a block of the rest: %v, %v", err, b.addresses())
	}
	if _, err := b.attach(reserveRequest("other", of)); !errors.Is(err, errNone) {
		t.Errorf("a reservation in another node's block: %v", err)
	}
	if _, err := a.attach(reserveRequest("more", of)); !errors.Is(err, errNone) {
		t.Errorf("a full range: %v", err)
	}
}

// TestReserveUnused: a hold that no ADD used ends, also after a restart of the agent.
func TestReserveUnused(t *testing.T) {
	m := newMember(t, registry(t), "a")
	d := reserveRequest("k", "192.168.2.1-192.168.2.20")
	if err := m.serve(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	m.must()
	if r := m.registered(d); len(r.Holders) != 1 {
		t.Fatalf("before the ADD: %+v", r)
	}
	m.restart()
	m.later = 2 * grantTime
	m.must()
	m.listed = false
	m.must()
	if r := m.registered(d); m.held(d) != nil || len(r.Holders) != 0 {
		t.Errorf("%+v, %+v", m.held(d), r)
	}
}

// TestReserveFenced: a holder whose node has no record any more is removed after the grace period, and one that lives
// prevents that.
func TestReserveFenced(t *testing.T) {
	root := registry(t)
	a, b, c := newMember(t, root, "a"), newMember(t, root, "b"), newMember(t, root, "c")
	d := reserveRequest("k", "192.168.2.1-192.168.2.20")
	for _, m := range []*member{a, b, c} {
		m.Grace = 0
	}
	addrs := a.mustAttach(d)
	b.mustAttach(d)
	a.die()
	attach := func() error { _, err := c.attach(d); return err }
	if attach() == nil || a.registered(d).Holders[0].Fence == "" {
		t.Fatalf("not fenced: %+v", a.registered(d))
	}
	a.verified = time.Time{}
	a.must() // it lives
	if r := a.registered(d); r.Holders[0].Fence != "" || !strings.Contains(a.log.String(), "wanted to end its hold") {
		t.Errorf("%+v, log %s", r, a.log)
	}
	a.die()
	for range 2 { // the fence is written, and read first
		if attach() == nil {
			t.Fatal("a third holder without the grace period")
		}
	}
	if err := attach(); err != nil {
		t.Fatal(err)
	}
	if r := c.registered(d); r.holders() != "b and c" {
		t.Errorf("held by %s", r.holders())
	}
	a.verified = time.Time{}
	if err := a.step(); err == nil || !strings.Contains(err.Error(), "delete the container") || !strings.Contains(err.Error(), "c-"+addrs[0].String()) {
		t.Errorf("the fenced node returns: %v", err)
	}
}

// TestReserveLost: a node whose reservation the registry has lost makes it again.
func TestReserveLost(t *testing.T) {
	root := registry(t)
	m := newMember(t, root, "a")
	d := reserveRequest("k", "192.168.2.1-192.168.2.20")
	addrs := m.mustAttach(d)
	for _, name := range []string{registerOf(d.ReservationID), pageName("", pageOf(addrs[0]))} {
		_, version, err := m.Registry.Pages().Read(t.Context(), name)
		if err == nil {
			text := `{"first":"192.168.2.0","revision":9,"blocks":[]}`
			if isRegister(name) {
				text = `{}`
			}
			_, err = m.Registry.Pages().Write(t.Context(), name, []byte(text), version)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // it is recorded, taken and held
		m.verified = time.Time{}
		m.must()
	}
	if r := m.registered(d); r == nil || !slices.Equal(r.Addresses, addrs) || r.holders() != "a" {
		t.Errorf("%+v", r)
	}
	raw, _, _ := m.Registry.Pages().Read(t.Context(), pageName("", pageOf(addrs[0])))
	if !strings.Contains(string(raw), m.registered(d).ID) {
		t.Errorf("%s", raw)
	}
}

// TestReserveFinished: another node finishes what a node that was killed has begun, and frees what it began to free.
func TestReserveFinished(t *testing.T) {
	root := registry(t)
	a, b := newMember(t, root, "a"), newMember(t, root, "b")
	d := reserveRequest("k", "192.168.2.1-192.168.2.20")
	if err := a.begin(t.Context(), d, nil); err != nil {
		t.Fatal(err)
	}
	begun := a.registered(d)
	if got := b.mustAttach(d); !slices.Equal(got, begun.Addresses) || b.registered(d).ID != begun.ID {
		t.Errorf("%v, begun were %v", got, begun.Addresses)
	}
	b.detach(d)
	if _, err := a.Keeper.update(t.Context(), begun, func(_ *register, r *reservation) bool { r.State = freeing; return true }); err != nil {
		t.Fatal(err)
	}
	b.mustAttach(d)
	if r := b.registered(d); r.ID == begun.ID {
		t.Errorf("%+v is used again while it is freed", r)
	}
	if err := a.serve(t.Context(), &Reserve{ReservationID: d.ReservationID, Free: true}); err == nil || !strings.Contains(err.Error(), "in use on b") {
		t.Errorf("released while it is held: %v", err)
	}
	b.detach(d)
	if err := a.serve(t.Context(), &Reserve{ReservationID: d.ReservationID, Free: true}); err != nil || a.registered(d) != nil {
		t.Errorf("%v, %+v", err, a.registered(d))
	}
}

// TestDecodeRegister: a damaged register is refused.
func TestDecodeRegister(t *testing.T) {
	m := newMember(t, registry(t), "a")
	d := reserveRequest("k", "192.168.2.1-192.168.2.20")
	m.mustAttach(d)
	name := registerOf(d.ReservationID)
	good, _, err := m.Registry.Pages().Read(t.Context(), name)
	if _, decodeErr := decodeRegister(name, good); err != nil || decodeErr != nil {
		t.Fatal(err, decodeErr)
	}
	for _, change := range [][2]string{
		{`"key":"k"`, `"key":"l"`},
		{`"state":"reserved"`, `"state":"taking"`},
		{`"state":"reserved"`, `"state":""`},
		{`"node":"a"`, `"node":"../a"`},
		{`"192.168.2.`, `"::ffff:192.168.2.`},
		{`"reservations":[`, `"reservations":[null,`},
		{`"reservations":[`, ``},
		{`"id":"`, `"id":"","x":"`},
		{`"addresses":["`, `"addresses":["x`},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if _, err := decodeRegister(name, []byte(bad)); !errors.Is(err, cluster.ErrInvalid) || bad == string(good) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestReserveDamaged: a damaged record of node.db is written again from the registry.
func TestReserveDamaged(t *testing.T) {
	m := newMember(t, registry(t), "a")
	d := reserveRequest("k", "192.168.2.1-192.168.2.20")
	m.mustAttach(d)
	db, err := bolt.Open(m.Host.Store.Path(), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("reservations"))
		k, _ := b.Cursor().First()
		return b.Put(k, []byte("x"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	m.verified = time.Time{}
	m.must()
	if got := m.held(d); got == nil || m.registered(d).holders() != "a" {
		t.Errorf("%+v, %+v", got, m.registered(d))
	}
}
