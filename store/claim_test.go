package store_test

import (
	"errors"
	"testing"

	"github.com/cnibox/cnibox/store"
)

// TestClaimParts claims wholes and parts. Each claim has its expected conflict.
func TestClaimParts(t *testing.T) {
	mine, other := store.Key{Network: "n", ContainerID: "a", IfName: "eth0"}, store.Key{Network: "n", ContainerID: "b", IfName: "eth0"}
	for _, v := range []struct {
		name, held, wanted string
		taken              bool
	}{
		{"the same part", "80/tcp/1", "80/tcp/1", true},
		{"another part", "80/tcp/1", "80/tcp/2", false},
		{"the whole of a part", "80/tcp/1", "80/tcp/", true},
		{"the whole of a part of a part", "80/tcp/1", "80/", true},
		{"a part of the whole", "80/tcp/", "80/tcp/1", true},
		{"a part of a part of the whole", "80/", "80/tcp/1", true},
		{"the same whole", "80/tcp/", "80/tcp/", true},
		{"another whole", "80/tcp/", "80/udp/", false},
		{"a name that begins alike", "80/tcp/1", "80/tcp/11", false},
		{"a whole that begins alike", "80/", "8/", false},
		{"the same range", "range 80-90/tcp/", "range 80-90/tcp/", true},
		{"a range that overlaps", "range 80-90/tcp/", "range 90-99/tcp/", true},
		{"a range within", "range 80-90/tcp/", "range 85-86/tcp/", true},
		{"a range after", "range 80-90/tcp/", "range 91-99/tcp/", false},
		{"a range of another protocol", "range 80-90/tcp/", "range 80-90/udp/", false},
		{"a range of a part", "range 80-90/tcp/", "range 80-90/tcp/1", true},
		{"a range of another part", "range 80-90/tcp/2", "range 80-90/tcp/1", false},
		{"a number of the range", "range 80-90/tcp/", "85/tcp/", true},
		{"a part of a number of the range", "range 80-90/tcp/", "85/tcp/1", true},
		{"the whole number of a part's range", "range 80-90/tcp/1", "85/tcp/", true},
		{"a number beside the range", "range 80-90/tcp/", "8/tcp/", false},
		{"a range with the number", "85/tcp/1", "range 80-90/tcp/", true},
		{"a range with the number of another part", "85/tcp/1", "range 80-90/tcp/2", false},
		{"a range without the number", "8/tcp/", "range 80-90/tcp/", false},
		{"a range that begins alike", "range 80-90/tcp/1", "range 80-90/tcp/11", false},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := newStore(t)
			update(t, s, func(tx *store.Tx) error { return tx.Claim("port", v.held, mine, testTime) })
			update(t, s, func(tx *store.Tx) error {
				if c, err := tx.Holder("port", v.wanted, mine); c != nil || err != nil {
					t.Errorf("my own claim keeps me from it: %v, %v", c, err)
				}
				c, err := tx.Holder("port", v.wanted, other)
				if err != nil || (c != nil) != v.taken || c != nil && (c.Owner != mine || c.Name != v.held) {
					t.Errorf("holder %v, %v, taken is %v", c, err, v.taken)
				}
				if err := tx.Claim("port", v.wanted, mine, testTime); err != nil {
					t.Errorf("beside my own: %v", err)
				}
				return tx.Unclaim(mine)
			})
			update(t, s, func(tx *store.Tx) error { return tx.Claim("port", v.held, mine, testTime) })
			update(t, s, func(tx *store.Tx) error {
				if err := tx.Claim("port", v.wanted, other, testTime); errors.Is(err, store.ErrTaken) != v.taken {
					t.Errorf("claim: %v, taken is %v", err, v.taken)
				}
				return nil
			})
		})
	}
}
