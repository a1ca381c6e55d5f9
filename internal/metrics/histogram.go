package metrics

import "time"

// Histogram counts durations.
type Histogram struct {
	// Buckets has the number of durations up to each bound and above the one before it, and then the
	// number of those above the last bound.
	Buckets [11]uint64
	Sum     time.Duration
}

// bounds are the upper bounds of the buckets. An ADD takes some milliseconds, and a call waits for a lock
// for 30 s at most.
func bounds() [10]time.Duration {
	const ms, s = time.Millisecond, time.Second
	return [...]time.Duration{2 * ms, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, s, 5 * s, 30 * s}
}

// Observe adds a duration.
func (h *Histogram) Observe(d time.Duration) {
	all := bounds()
	i := 0
	for i < len(all) && d > all[i] {
		i++
	}
	h.Buckets[i]++
	h.Sum += d
}
