package store_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

const bootA = "11111111-2222-3333-4444-555555555555"

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func options(t testing.TB) store.Options {
	t.Helper()
	dir := t.TempDir()
	return store.Options{
		RunDir:      dir + "/run",
		StateDir:    dir + "/state",
		BootID:      bootA,
		LockTimeout: await.Patience,
		Role:        "test",
		Program:     "v1",
	}
}

func newStore(t testing.TB) *store.Store {
	t.Helper()
	return store.New(options(t))
}

func update(t testing.TB, s *store.Store, fn func(*store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func view(t testing.TB, s *store.Store, fn func(*store.Tx) error) {
	t.Helper()
	if err := s.View(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func key(network, id string) store.Key {
	return store.Key{Network: network, ContainerID: id, IfName: "eth0"}
}

func attachment(k store.Key) *store.Attachment {
	return &store.Attachment{
		Key:       k,
		Pod:       "ns/pod",
		Netns:     store.Netns{Path: "/run/netns/x", Dev: 4, Inode: 1 << 40, Mount: 7},
		HostLink:  "veth0",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00::2/64")},
		Parts:     []store.Part{{Role: "bridge", State: store.Pending, Changes: []byte(`[1]`), Time: testTime}},
		Created:   testTime,
		Updated:   testTime,
	}
}

func TestAttachment(t *testing.T) {
	s := newStore(t)
	want := attachment(key("net", "c1"))
	update(t, s, func(tx *store.Tx) error { return tx.PutAttachment(want) })
	view(t, s, func(tx *store.Tx) error {
		got, err := tx.Attachment(want.Key)
		if err != nil {
			return err
		}
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Error(d)
		}
		_, err = tx.Attachment(key("net", "c2"))
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("absent attachment: %v", err)
		}
		return nil
	})
	for range 2 {
		update(t, s, func(tx *store.Tx) error { return tx.DeleteAttachment(want.Key) })
	}
	view(t, s, func(tx *store.Tx) error {
		all, err := tx.Attachments("")
		if len(all) != 0 {
			t.Errorf("after delete: %v", all)
		}
		return err
	})
}

func TestViewMakesNothing(t *testing.T) {
	o := options(t)
	o.Fresh = func(context.Context, *store.Tx) error { t.Error("fresh ran"); return nil }
	s := store.New(o)
	view(t, s, func(tx *store.Tx) error {
		p, err := tx.Pool(store.PoolID{Network: "n"})
		if err != nil {
			return err
		}
		if n, _ := p.Count(); n != 0 {
			t.Errorf("count %d", n)
		}
		for range p.Leases() {
			t.Error("a lease")
		}
		a, ok, err := p.Next(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9"))
		if a.String() != "10.0.0.1" || !ok {
			t.Errorf("next %v %v", a, ok)
		}
		if err := tx.PutNetwork(&store.Network{Name: "n"}); err == nil {
			t.Error("a view wrote")
		}
		return err
	})
	if _, err := os.Stat(o.RunDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run dir: %v", err)
	}
}
