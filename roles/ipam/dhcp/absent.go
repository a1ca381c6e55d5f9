package dhcp

import (
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// absent stands for what speaks DHCP in the part of the program that has it not. What is
// on record tells whether it is needed: mostly nothing is, of an ADD that found no daemon.
type absent struct{}

func (absent) Run(context.Context, *roles.Host, []string) error {
	return fmt.Errorf("%w: the DHCP daemon", roles.ErrPartial)
}

func (absent) Release(ctx context.Context, h *roles.Host, _ string, key store.Key) error {
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) error {
		_, err := tx.DHCPLease(key)
		return err
	})
	if err == nil || errors.Is(err, store.ErrDamaged) {
		return fmt.Errorf("%w: an address is to be given back to its DHCP server", roles.ErrPartial)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

func (absent) Collect(ctx context.Context, h *roles.Host, _ string, req *roles.Request) error {
	var all []store.DHCPLease
	err := h.Store.KeepView(ctx, func(tx *store.KeepTx) (err error) {
		all, err = tx.DHCPLeases(req.Network)
		return err
	})
	for _, l := range all {
		if !req.IsValid(l.Owner.ContainerID, l.Owner.IfName) {
			return fmt.Errorf("%w: an address is to be given back to its DHCP server", roles.ErrPartial)
		}
	}
	return err
}
