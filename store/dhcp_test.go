package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cnibox/cnibox/store"
)

// DHCP leases outlive the boot and are listed by network and owner.
func TestDHCPLeases(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	lease := func(network, id string) store.DHCPLease {
		return store.DHCPLease{
			Owner: store.Key{Network: network, ContainerID: id, IfName: "eth0"}, Identity: id, Conf: json.RawMessage(`{}`), Created: testTime, Updated: testTime,
			Grants: []store.DHCPGrant{{Family: "ipv4", Address: netip.MustParsePrefix("10.9.0.2/24"), Start: testTime, Renew: testTime, Rebind: testTime, Result: json.RawMessage(`{}`)}},
		}
	}
	want := []store.DHCPLease{lease("a", "c1"), lease("a", "c2"), lease("ab", "c1")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		for i := range want {
			if err := tx.PutDHCPLease(&want[i]); err != nil {
				return err
			}
		}
		return tx.DeleteDHCPLease(store.Key{Network: "none"})
	}))
	must(s.KeepView(ctx, func(tx *store.KeepTx) error {
		all, err := tx.DHCPLeases("")
		if d := cmp.Diff(want, all, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
			t.Error(d)
		}
		if some, err := tx.DHCPLeases("a"); err != nil || len(some) != 2 {
			t.Errorf("%d leases of network a, %v", len(some), err)
		}
		return err
	}))
	must(s.KeepUpdate(ctx, func(tx *store.KeepTx) error { return tx.DeleteDHCPLease(want[0].Owner) }))
	must(s.KeepView(ctx, func(tx *store.KeepTx) error {
		if _, err := tx.DHCPLease(want[0].Owner); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("error %v", err)
		}
		l, err := tx.DHCPLease(want[1].Owner)
		if err == nil && l.Identity != "c2" {
			t.Errorf("lease %+v", l)
		}
		return err
	}))
}
