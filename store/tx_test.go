package store_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store"
)

// Different keys never collide, whatever texts they have, and lists are ordered.
func TestStrangeKeys(t *testing.T) {
	s := newStore(t)
	long := strings.Repeat("x", 10_000)
	texts := []string{"", "\x00", "\x00\x01", "\x00\xc3\xbf", "../..", "a", "a/b", "ab", long}
	var want []store.Key
	for _, n := range texts {
		for _, c := range texts {
			for _, i := range texts {
				want = append(want, store.Key{Network: n, ContainerID: c, IfName: i})
			}
		}
	}
	update(t, s, func(tx *store.Tx) error {
		for i, k := range want {
			if err := tx.PutAttachment(&store.Attachment{Key: k, Pod: fmt.Sprintf("%q", k)}); err != nil {
				return err
			}
			if err := tx.Claim(store.Resource{Kind: "port", Name: fmt.Sprint(i)}, k, testTime); err != nil {
				return err
			}
		}
		return nil
	})
	view(t, s, func(tx *store.Tx) error {
		all, err := tx.Attachments("")
		if err != nil {
			return err
		}
		var got []store.Key
		for _, a := range all {
			if a.Pod != fmt.Sprintf("%q", a.Key) {
				t.Errorf("record of %.40q under %.40q", a.Pod, a.Key)
			}
			got = append(got, a.Key)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		some, err := tx.Attachments("a")
		if len(some) != len(texts)*len(texts) {
			t.Errorf("%d attachments of network a", len(some))
		}
		if !tx.Attached("a") || !tx.Attached("") || tx.Attached("aa") || tx.Attached("a/") || tx.Attached("b") {
			t.Error("networks with attachments are not told from others")
		}
		return err
	})
	update(t, s, func(tx *store.Tx) error {
		for _, k := range want {
			if err := errors.Join(tx.DeleteAttachment(k), tx.Unclaim(k)); err != nil {
				return err
			}
		}
		all, err := tx.Attachments("")
		claims, cerr := tx.Claims("")
		if len(all) != 0 || len(claims) != 0 {
			t.Errorf("%d attachments and %d claims left", len(all), len(claims))
		}
		return errors.Join(err, cerr)
	})
}

func TestUnstorableKeys(t *testing.T) {
	s := newStore(t)
	for _, id := range []string{strings.Repeat("x", 40_000), strings.Repeat("\x00", 20_000), "\xff\xfe"} {
		k := key("net", id)
		update(t, s, func(tx *store.Tx) error {
			if err := tx.PutAttachment(attachment(k)); !errors.Is(err, store.ErrInvalid) {
				t.Errorf("put: %v", err)
			}
			if err := tx.Claim(store.Resource{Kind: "port", Name: "1"}, k, testTime); !errors.Is(err, store.ErrInvalid) {
				t.Errorf("claim: %v", err)
			}
			if err := tx.PutNetwork(&store.Network{Name: id}); !errors.Is(err, store.ErrInvalid) {
				t.Errorf("network: %v", err)
			}
			if _, err := tx.Attachment(k); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("get: %v", err)
			}
			if gone, err := tx.DeleteLeases(k); len(gone) != 0 || err != nil {
				t.Errorf("delete leases: %v, %v", gone, err)
			}
			return errors.Join(tx.DeleteAttachment(k), tx.Unclaim(k), tx.DeleteNetwork(id))
		})
		l, err := s.LockAttachment(t.Context(), k)
		if err != nil {
			t.Error(err)
		}
		l.Unlock()
	}
}

func TestClaims(t *testing.T) {
	s := newStore(t)
	a, b := key("net", "a"), key("net", "b")
	update(t, s, func(tx *store.Tx) error {
		if err := errors.Join(
			tx.Claim(store.Resource{Kind: "port", Name: "tcp 80"}, a, testTime),
			tx.Claim(store.Resource{Kind: "port", Name: "tcp 80"}, a, testTime.AddDate(1, 0, 0)),
			tx.Claim(store.Resource{Kind: "port", Name: "tcp 81"}, b, testTime),
			tx.Claim(store.Resource{Kind: "dev", Name: "tcp 80"}, b, testTime),
		); err != nil {
			return err
		}
		var taken *store.TakenError
		if err := tx.Claim(store.Resource{Kind: "port", Name: "tcp 80"}, b, testTime); !errors.As(err, &taken) || taken.Owner != a || taken.What != "port tcp 80" {
			t.Errorf("taken: %v", err)
		}
		return nil
	})
	want := []store.Claim{
		{Kind: "dev", Name: "tcp 80", Owner: b, Time: testTime},
		{Kind: "port", Name: "tcp 80", Owner: a, Time: testTime},
		{Kind: "port", Name: "tcp 81", Owner: b, Time: testTime},
	}
	check := func(kind string, want []store.Claim) {
		t.Helper()
		view(t, s, func(tx *store.Tx) error {
			got, err := tx.Claims(kind)
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			return err
		})
	}
	check("", want)
	check("port", want[1:])
	update(t, s, func(tx *store.Tx) error { return tx.Unclaim(b) })
	check("", want[1:2])
	update(t, s, func(tx *store.Tx) error { return tx.Claim(store.Resource{Kind: "dev", Name: "tcp 80"}, a, testTime) })
}

func TestNetworks(t *testing.T) {
	s := newStore(t)
	want := []store.Network{{Name: "a", Role: "bridge", Updated: testTime}, {Name: "b", Role: "ptp", Shared: json.RawMessage(`[1]`), Updated: testTime}}
	update(t, s, func(tx *store.Tx) error { return errors.Join(tx.PutNetwork(&want[1]), tx.PutNetwork(&want[0])) })
	view(t, s, func(tx *store.Tx) error {
		got, err := tx.Networks()
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		n, nerr := tx.Network("b")
		if d := cmp.Diff(&want[1], n); d != "" {
			t.Error(d)
		}
		return errors.Join(err, nerr)
	})
	update(t, s, func(tx *store.Tx) error { return errors.Join(tx.DeleteNetwork("a"), tx.DeleteNetwork("a")) })
	view(t, s, func(tx *store.Tx) error {
		if _, err := tx.Network("a"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("deleted: %v", err)
		}
		return nil
	})
}

func TestErrorRollsBack(t *testing.T) {
	s := newStore(t)
	mine := errors.New("mine")
	err := s.Update(t.Context(), func(tx *store.Tx) error { return errors.Join(attach(tx, "a", 1), mine) })
	if !errors.Is(err, mine) {
		t.Errorf("%v", err)
	}
	checkSound(t, s, 0)
}

func dumpOf(t testing.TB, s *store.Store) []byte {
	t.Helper()
	var b []byte
	view(t, s, func(tx *store.Tx) error {
		d, err := tx.Export()
		if err != nil {
			return err
		}
		d.Info = store.Info{}
		b, err = json.MarshalIndent(d, "", " ")
		return err
	})
	return b
}

// TestDumpIsComplete checks that an export has every kind of record of node.db, that
// an import restores it, and that with replace nothing of before stays.
func TestDumpIsComplete(t *testing.T) {
	s := newStore(t)
	cloud := store.PoolID{DataDir: store.CloudDataDir, Network: "net"}
	fill := func(n int) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			k := key("net", fmt.Sprintf("c%d", n))
			p, err := tx.Pool(cloud)
			if err != nil {
				return err
			}
			a := netip.AddrFrom4([4]byte{10, 9, 0, byte(n)})
			return errors.Join(
				attach(tx, "a", n), p.Reserve(store.Lease{Address: a, Owner: k}), p.Release(a),
				tx.PutCloudSource(&store.CloudSource{Name: fmt.Sprintf("aws %d", n), Revision: 7}),
				tx.PutDelegated(&store.Delegated{Owner: k, State: store.Done}),
			)
		}
	}
	update(t, s, fill(1))
	text := dumpOf(t, s)
	for _, part := range []string{"aws 1", `"freed"`, "10.9.0.1", `"delegated"`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the export lacks %s", part)
		}
	}
	var d store.Dump
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	other := newStore(t)
	update(t, other, fill(2))
	update(t, other, func(tx *store.Tx) error {
		_, err := tx.Derive("x", func(*store.Attachment) []byte { return []byte("x") })
		return errors.Join(err, tx.ConfirmShared("net", "role", nil))
	})
	update(t, other, func(tx *store.Tx) error { return tx.Import(&d, true) })
	if diff := cmp.Diff(string(text), string(dumpOf(t, other))); diff != "" {
		t.Error(diff)
	}
	view(t, other, func(tx *store.Tx) error {
		if tx.SharedConfirmed("net", "role", nil) {
			t.Error("a confirmation stays")
		}
		return nil
	})
}

func TestDump(t *testing.T) {
	o, _ := filled(t, 50)
	s := store.New(o)
	update(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		return errors.Join(p.SetCursor(3, addr("10.1.0.9")), tx.PutNetwork(&store.Network{Name: "net", Shared: json.RawMessage(`{}`)}))
	})
	text := dumpOf(t, s)
	var d store.Dump
	if err := json.Unmarshal(bytes.Replace(text, []byte("{"), []byte(`{"future":[{}],`), 1), &d); err != nil {
		t.Fatal(err)
	}
	other := newStore(t)
	update(t, other, func(tx *store.Tx) error { return attach(tx, "there", 0) })
	// The attachment's lease is the first address, which is also in the dump.
	err := other.Update(t.Context(), func(tx *store.Tx) error { return tx.Import(&d, false) })
	if !errors.Is(err, store.ErrTaken) {
		t.Errorf("import beside: %v", err)
	}
	checkSound(t, other, 1)
	for range 2 {
		update(t, other, func(tx *store.Tx) error { return tx.Import(&d, true) })
		checkSound(t, other, 50)
		if diff := cmp.Diff(string(text), string(dumpOf(t, other))); diff != "" {
			t.Error(diff)
		}
		update(t, other, func(tx *store.Tx) error { return tx.Import(&d, false) })
		checkSound(t, other, 50)
	}
}
