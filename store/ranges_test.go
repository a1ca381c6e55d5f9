package store_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// TestRanges: blocks and demands are stored, replaced and deleted, and a network may have any name.
func TestRanges(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a := netip.MustParseAddr("10.1.0.1")
	blocks := []store.RangeBlock{{Pool: "lan", First: a, Last: a.Next(), Since: testTime, Until: testTime.Add(time.Hour), UntilBoot: time.Hour}}
	demands := []store.RangeDemand{
		{Network: "grants", Free: [][2]netip.Addr{{a, a}}, Time: testTime}, {Network: "net", Set: 1, Pool: "lan", Free: [][2]netip.Addr{{a, a.Next()}}, Time: testTime},
	}
	read := func() (b []store.RangeBlock, d []store.RangeDemand) {
		t.Helper()
		err := s.View(ctx, func(tx *store.Tx) (err error) {
			b, err = tx.RangeBlocks()
			if err == nil {
				d, err = tx.RangeDemands()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return b, d
	}
	if b, d := read(); b != nil || d != nil {
		t.Errorf("an empty store has %v and %v", b, d)
	}
	update := func(fn func(*store.Tx) error) {
		t.Helper()
		if err := s.Update(ctx, fn); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		update(func(tx *store.Tx) error { return tx.PutRangeBlocks(blocks) })
		for i := range demands {
			update(func(tx *store.Tx) error { return tx.PutRangeDemand(&demands[i]) })
		}
	}
	if b, d := read(); !reflect.DeepEqual(b, blocks) || !reflect.DeepEqual(d, demands) {
		t.Errorf("%+v and %+v", b, d)
	}
	update(func(tx *store.Tx) error { return tx.DeleteRangeDemand(&demands[0]) })
	if b, d := read(); len(b) != 1 || !reflect.DeepEqual(d, demands[1:]) {
		t.Errorf("%+v and %+v", b, d)
	}
}

// TestRangeValid: a block is valid until either clock has passed its end.
func TestRangeValid(t *testing.T) {
	now, boot := time.Now(), store.SinceBoot()
	for _, c := range []struct {
		clock, boot time.Duration
		want        bool
	}{{time.Hour, time.Hour, true}, {-time.Second, time.Hour, false}, {time.Hour, -time.Second, false}} {
		b := store.RangeBlock{Until: now.Add(c.clock), UntilBoot: boot + c.boot}
		if got := b.Valid(now, boot); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
