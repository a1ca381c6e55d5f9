package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cnibox/cnibox/store"
)

// Delegations outlive the boot unchanged; their outcomes do not.
func TestDelegations(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	of := func(network, id string) store.Delegation {
		return store.Delegation{
			Owner: store.Key{Network: network, ContainerID: id, IfName: "eth0"}, BootID: "b", Created: testTime, Updated: testTime,
			Delegates: []store.Delegate{
				{IfName: "eth0", Name: "a", List: json.RawMessage(`{"name":"a","big":123456789012345678901234567890}`)},
				{IfName: "net1", Name: "a", List: json.RawMessage(`{"name":"a"}`), Runtime: map[string]json.RawMessage{"ips": json.RawMessage(`["10.0.0.1"]`)}},
			},
		}
	}
	want := []store.Delegation{of("a", "c1"), of("a", "c2"), of("ab", "c1")}
	err := s.KeepUpdate(ctx, func(tx *store.KeepTx) error {
		return errors.Join(tx.PutDelegation(&want[0]), tx.PutDelegation(&want[1]), tx.PutDelegation(&want[2]), tx.DeleteDelegation(store.Key{}))
	})
	if err != nil {
		t.Fatal(err)
	}
	outcome := store.Delegated{Owner: want[0].Owner, State: store.Done, Done: []store.Answer{{IfName: "eth0", Gone: true}}, Updated: testTime}
	if err := s.Update(ctx, func(tx *store.Tx) error { return tx.PutDelegated(&outcome) }); err != nil {
		t.Fatal(err)
	}
	err = s.KeepView(ctx, func(tx *store.KeepTx) error {
		all, err := tx.Delegations("")
		if d := cmp.Diff(want, all, cmpopts.EquateEmpty()); d != "" {
			t.Error(d)
		}
		if some, err := tx.Delegations("a"); err != nil || len(some) != 2 {
			t.Errorf("%d delegations of network a, %v", len(some), err)
		}
		if _, err := tx.Delegation(store.Key{Network: "b"}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("error %v", err)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	err = s.Update(ctx, func(tx *store.Tx) error {
		have, err := tx.Delegated(outcome.Owner)
		if d := cmp.Diff(&outcome, have); d != "" {
			t.Error(d)
		}
		if all, err := tx.AllDelegated(); err != nil || len(all) != 1 {
			t.Errorf("%d outcomes, %v", len(all), err)
		}
		return errors.Join(err, tx.DeleteDelegated(outcome.Owner))
	})
	if err != nil {
		t.Error(err)
	}
}
