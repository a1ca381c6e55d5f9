package web

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff gives the pauses between attempts. Each is random, up to twice as long as
// the one before and at least half of that, so that nodes that lost a registry
// together do not return together. The zero value goes from 100 ms to 10 s.
type Backoff struct {
	Min, Max time.Duration
	failed   int
}

// Next returns how long to wait now, not less than least.
func (b *Backoff) Next(least time.Duration) time.Duration {
	low, high := b.Min, b.Max
	if low <= 0 {
		low = 100 * time.Millisecond
	}
	if high <= 0 {
		high = 10 * time.Second
	}
	d := low
	for range b.failed {
		d *= 2
		if d >= high {
			d = high
			break
		}
	}
	b.failed++
	return max(least, d/2+rand.N(d/2+1))
}

// Reset starts again with short pauses, after a success.
func (b *Backoff) Reset() { b.failed = 0 }

// Wait waits as long as Next says, or until ctx is done; then it returns ctx's error.
func (b *Backoff) Wait(ctx context.Context, least time.Duration) error {
	t := time.NewTimer(b.Next(least))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
