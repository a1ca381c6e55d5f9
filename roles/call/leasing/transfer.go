package leasing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// maxTransfer is the largest size in bytes of a file of reservations. The reservations of
// a /16 take about 30 MB.
const maxTransfer = 128 << 20

// transferSchema is the version of the format of Transfer.
const transferSchema = 1

// Transfer has all reservations, as `cnibox ipam export` writes them.
type Transfer struct {
	Schema       int               `json:"schema"`
	Reservations []TransferredPool `json:"pools"`
}

// TransferredPool is one pool of a Transfer.
type TransferredPool struct {
	store.PoolID
	Reservations []store.Reservation `json:"reservations"`
}

// ExportReservations reads all reservations.
func ExportReservations(ctx context.Context, h *roles.Host) (*Transfer, error) {
	v, err := takeInventory(ctx, h, "")
	if err != nil {
		return nil, err
	}
	out := &Transfer{Schema: transferSchema, Reservations: []TransferredPool{}}
	for _, id := range v.pools() {
		if all := v.reservations[id]; len(all) > 0 {
			out.Reservations = append(out.Reservations, TransferredPool{id, all})
		}
	}
	return out, nil
}

// ImportReservations stores reservations, all or none. Without force, a conflict with a
// reservation of another identity that has not expired is an error. The time for which a
// reservation is kept begins now if an attachment of another node held it.
func ImportReservations(ctx context.Context, h *roles.Host, t *Transfer, force bool) (string, error) {
	n := 0
	err := KeepUpdate(ctx, h, func(keep *store.KeepTx) error {
		return h.Store.View(ctx, func(tx *store.Tx) error {
			for _, from := range t.Reservations {
				kept, err := keep.Sticky(from.PoolID)
				if err != nil {
					return err
				}
				pool, err := tx.Pool(from.PoolID)
				if err != nil {
					return err
				}
				for i := range from.Reservations {
					if err := importReservation(kept, &from.Reservations[i], force, h); err != nil {
						return fmt.Errorf("network %q: %w", from.Network, err)
					}
					n++
				}
				if err := releaseAbandonedIn(kept, pool, h.Now()); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return fmt.Sprintf("imported %d reservations", n), err
}

// importReservation stores one reservation. Without force it takes no address from
// another identity.
func importReservation(kept *store.StickyPool, r *store.Reservation, force bool, h *roles.Host) error {
	for _, a := range r.Addresses {
		other, err := kept.ReservationAt(a)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if other == nil || other.Identity == r.Identity || force && !other.Held() {
			continue
		}
		if other.Reserves(h.Now()) {
			return fmt.Errorf("%s: %w: kept for %q %s", a, store.ErrTaken, other.Identity, until(other))
		}
	}
	if old, err := kept.Reservation(r.Identity); err == nil && old.Held() {
		return nil // the stored reservation is newer
	}
	return kept.Put(r)
}

// ReadTransfer reads a Transfer from a file.
func ReadTransfer(f io.Reader) (*Transfer, error) {
	raw, err := io.ReadAll(io.LimitReader(f, maxTransfer+1))
	if err != nil {
		return nil, err
	}
	return DecodeTransfer(raw)
}

// DecodeTransfer decodes a Transfer.
func DecodeTransfer(raw []byte) (*Transfer, error) {
	if len(raw) > maxTransfer {
		return nil, fmt.Errorf("%w: larger than %d bytes", roles.ErrDecode, maxTransfer)
	}
	var t Transfer
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&t); err != nil {
		return nil, fmt.Errorf("%w: %w", roles.ErrDecode, roles.Mismatch(err))
	}
	if t.Schema != transferSchema {
		return nil, fmt.Errorf("%w: schema %d is unknown: give a file that 'cnibox ipam export' of this version wrote", roles.ErrDecode, t.Schema)
	}
	return &t, nil
}
