package pool

import (
	"math"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/store/internal/kv"
)

// KeepForever is the TTL of a reservation that does not expire.
const KeepForever = -1

// Reservation keeps addresses of a pool for an identity: while an attachment uses them, for a time
// after its DEL, or because an operator pinned them. It is stored before ADD returns, so that it
// survives a power failure.
type Reservation struct {
	// Identity is the owner of the reservation: "pod:default/web-0/eth0". A pool has at most one
	// reservation for an identity.
	Identity string `json:"identity"`
	// Addresses are at most one of each range set. They are kept and expire
	// together.
	Addresses []netip.Addr `json:"addresses"`
	// Holder is the attachment that uses the addresses, or used them last, or the zero Key.
	Holder kv.Key `json:"holder,omitzero"`
	Pod    string `json:"pod,omitempty"`
	// BootID is the boot in which the holder got them.
	BootID string `json:"bootID,omitempty"`
	// TTL is the number of seconds for which they are kept after DEL. KeepForever does not expire, 0
	// means that they are not kept.
	TTL int64 `json:"ttl"`
	// Cooldown is the number of seconds after DEL in which no other identity gets them, kept or not.
	Cooldown int64     `json:"cooldown"`
	Created  time.Time `json:"created"`
	// Used is when the holder got them.
	Used time.Time `json:"used,omitzero"`
	// Released is zero while the holder uses them.
	Released time.Time `json:"released,omitzero"`
	// Pinned means that an operator made the reservation. It is kept until Until, or without end if
	// Until is zero, and while it is in use. Meanwhile no other identity gets its addresses.
	Pinned bool      `json:"pinned,omitempty"`
	Until  time.Time `json:"until,omitzero"`
	// Broken means that another identity has got one of the addresses. The others cool down, and the
	// identity does not get them again.
	Broken bool `json:"broken,omitempty"`
}

// Stage is a state of a reservation.
type Stage string

// The stages of a reservation, in order.
const (
	// Held means that an attachment uses the addresses. See Reservation.Held.
	Held Stage = "held"
	// Kept means that only the identity gets the addresses.
	Kept Stage = "kept"
	// Cooling means that the addresses are no longer kept, but no other identity gets them yet.
	Cooling Stage = "cooling"
	// Expired means that any identity may get the addresses.
	Expired Stage = "expired"
)

// Held reports whether an attachment uses the addresses according to the
// reservation. It stays true when a dead attachment was removed without an update
// of the reservation.
func (r *Reservation) Held() bool { return r.Holder != (kv.Key{}) && r.Released.IsZero() }

// Stage returns the reservation's stage at a time.
func (r *Reservation) Stage(now time.Time) Stage {
	if r.Held() {
		return Held
	}
	kept, free := r.ends()
	return stage(now, kept, free)
}

// Reserves reports whether only the identity may have the addresses at a time.
func (r *Reservation) Reserves(now time.Time) bool {
	s := r.Stage(now)
	return s == Held || s == Kept
}

// stage returns the stage of a reservation that is not held.
func stage(now time.Time, kept, free int64) Stage {
	switch at := nanos(now); {
	case at < kept:
		return Kept
	case at < free:
		return Cooling
	}
	return Expired
}

// Expires returns when the addresses are no longer kept. It returns false for never, or while they are
// held.
func (r *Reservation) Expires() (time.Time, bool) {
	kept, _ := r.ends()
	return ending(kept)
}

// Free returns when any identity may get the addresses. It returns false for never, or while they are
// held.
func (r *Reservation) Free() (time.Time, bool) {
	_, free := r.ends()
	return ending(free)
}

func ending(n int64) (time.Time, bool) {
	if n == math.MaxInt64 {
		return time.Time{}, false
	}
	return time.Unix(0, n).UTC(), true
}

// ends returns the end of the time in which the addresses are kept for the identity, and the end of the
// time in which no other identity gets them, in nanoseconds since 1970. math.MaxInt64 means never.
func (r *Reservation) ends() (kept, free int64) {
	if r.Held() || r.TTL < 0 || r.Pinned && r.Until.IsZero() {
		return math.MaxInt64, math.MaxInt64
	}
	kept = math.MinInt64
	free = kept
	if !r.Released.IsZero() {
		kept, free = after(r.Released, r.TTL), after(r.Released, r.Cooldown)
	}
	if r.Pinned {
		kept = max(kept, nanos(r.Until))
	}
	return kept, max(kept, free)
}

// after adds seconds to a time. The result is math.MaxInt64 on overflow.
func after(t time.Time, seconds int64) int64 {
	n := nanos(t)
	if seconds > (math.MaxInt64-max(n, 0))/int64(time.Second) {
		return math.MaxInt64
	}
	return n + max(seconds, 0)*int64(time.Second)
}

// nanos is Time.UnixNano, limited to its range for times outside it.
func nanos(t time.Time) int64 {
	switch {
	case t.Year() < 1700:
		return math.MinInt64
	case t.Year() > 2200:
		return math.MaxInt64
	}
	return t.UnixNano()
}
