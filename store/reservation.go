package store

import (
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// ReservationID identifies a reservation of addresses of a cluster-wide range. Pool is that of RangeBlock.
type ReservationID struct {
	Pool    string `json:"pool,omitempty"`
	Network string `json:"network"`
	Key     string `json:"key"`
}

// RangeReservation is a reservation that this node holds: the agent has recorded the node in the registry as one of
// its holders.
type RangeReservation struct {
	ReservationID
	// Addresses has one address of each range of the network.
	Addresses []netip.Addr `json:"addresses"`
	Since     time.Time    `json:"since"`
	// Until and UntilBoot are those of RangeBlock: until then the ADD that asked for the reservation may lease the
	// addresses. That ADD sets them to zero at its end.
	Until     time.Time     `json:"until,omitzero"`
	UntilBoot time.Duration `json:"untilBoot,omitempty"`
	// Quiet means that another node held the reservation first and announces its addresses.
	Quiet bool `json:"quiet,omitempty"`
}

// Valid reports whether an ADD may lease the addresses.
func (r *RangeReservation) Valid(now time.Time, sinceBoot time.Duration) bool {
	return now.Before(r.Until) && sinceBoot < r.UntilBoot
}

// RangeReservation returns a reservation, or ErrNotFound if this node does not hold it.
func (tx *Tx) RangeReservation(id ReservationID) (*RangeReservation, error) {
	r := new(RangeReservation)
	return r, kv.Get(tx.b, bucketReservations, kv.EncodeKey(id.Network, id.Key, id.Pool), r)
}

// RangeReservations returns the reservations that this node holds. Damaged records are skipped and named in the error.
func (tx *Tx) RangeReservations() (map[ReservationID]*RangeReservation, error) {
	list, err := kv.List[*RangeReservation](tx.b, bucketReservations, nil)
	all := make(map[ReservationID]*RangeReservation, len(list))
	for _, r := range list {
		all[r.ReservationID] = r
	}
	return all, err
}

// PutRangeReservation stores a reservation.
func (tx *Tx) PutRangeReservation(r *RangeReservation) error {
	return kv.Store(tx.b, bucketReservations, "reservation", r, r.Network, r.Key, r.Pool)
}

// DeleteRangeReservation deletes a reservation.
func (tx *Tx) DeleteRangeReservation(id ReservationID) error {
	return kv.Delete(tx.b, bucketReservations, kv.EncodeKey(id.Network, id.Key, id.Pool))
}
