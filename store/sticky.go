package store

import (
	"math"
	"net/netip"
	"time"
)

// KeepForever is the TTL of a reservation that does not expire.
const KeepForever = -1

// Reservation keeps addresses of a pool for an identity: while an attachment
// has them, for a time after its DEL, or because a person said so. It is stored
// before ADD answers, so that it outlives a power cut.
type Reservation struct {
	// Identity says for whom: "pod:default/web-0/eth0". A pool has one
	// reservation of an identity.
	Identity string `json:"identity"`
	// Addresses are at most one of each range set. They are kept, and expire,
	// together.
	Addresses []netip.Addr `json:"addresses"`
	// Holder is the attachment that has them, or had them last; the zero Key
	// when none ever had.
	Holder Key    `json:"holder,omitzero"`
	Pod    string `json:"pod,omitempty"`
	// BootID tells in which boot the holder got them.
	BootID string `json:"bootID,omitempty"`
	// TTL is how many seconds they are kept after DEL; KeepForever, or 0 for not
	// at all.
	TTL int64 `json:"ttl"`
	// Cooldown is how many seconds after DEL no other identity gets them, kept or not.
	Cooldown int64     `json:"cooldown"`
	Created  time.Time `json:"created"`
	// Used is when the holder got them.
	Used time.Time `json:"used,omitzero"`
	// Released is zero while the holder has them.
	Released time.Time `json:"released,omitzero"`
	// Pinned: a person made it. It is kept until Until, or for ever when that is
	// zero, and longer if it is in use, and nobody else gets its addresses.
	Pinned bool      `json:"pinned,omitempty"`
	Until  time.Time `json:"until,omitzero"`
	// Broken: an address was taken from it. What is left cools down, and is not
	// its identity's any more.
	Broken bool `json:"broken,omitempty"`
}

// Stage is where a reservation is in its life.
type Stage string

// The stages of a reservation, in order.
const (
	// Held: an attachment has the addresses, as far as the reservation tells.
	Held Stage = "held"
	// Kept: the addresses wait for their identity.
	Kept Stage = "kept"
	// Cooling: they may be anybody's again, but not at once.
	Cooling Stage = "cooling"
	// Expired: they are anybody's.
	Expired Stage = "expired"
)

// Held tells whether an attachment has the addresses, as far as the reservation
// tells: whoever removed a dead attachment did not say so here.
func (r *Reservation) Held() bool { return r.Holder != (Key{}) && r.Released.IsZero() }

// Stage is the reservation's at a time.
func (r *Reservation) Stage(now time.Time) Stage {
	at := nanos(now)
	switch kept, free := r.ends(); {
	case r.Held():
		return Held
	case at < kept:
		return Kept
	case at < free:
		return Cooling
	}
	return Expired
}

// Expires is when the addresses are no longer kept; false for never, or not as
// long as they are held.
func (r *Reservation) Expires() (time.Time, bool) { return ending(first(r.ends())) }

// Free is when anybody may get the addresses; false for never, or not as long
// as they are held.
func (r *Reservation) Free() (time.Time, bool) { return ending(second(r.ends())) }

func first(a, _ int64) int64  { return a }
func second(_, b int64) int64 { return b }

func ending(n int64) (time.Time, bool) {
	if n == math.MaxInt64 {
		return time.Time{}, false
	}
	return time.Unix(0, n).UTC(), true
}

// ends tells until when the addresses are kept for the identity, and from when
// on they are free for others, in nanoseconds since 1970; math.MaxInt64 is never.
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

// after is some seconds later, never when that is too far away to be told.
func after(t time.Time, seconds int64) int64 {
	n := nanos(t)
	if seconds > (math.MaxInt64-max(n, 0))/int64(time.Second) {
		return math.MaxInt64
	}
	return n + max(seconds, 0)*int64(time.Second)
}

// nanos is Time.UnixNano, with times that are out of its range at its ends.
func nanos(t time.Time) int64 {
	switch {
	case t.Year() < 1700:
		return math.MinInt64
	case t.Year() > 2200:
		return math.MaxInt64
	}
	return t.UnixNano()
}
