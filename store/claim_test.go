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
