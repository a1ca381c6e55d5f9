package web

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Backoff computes the pauses between attempts. They double from Min to Max, by default from 100 ms to
// 10 s. Half of each pause is random, so that nodes that lost a registry together do not retry together.
type Backoff struct {
	Min, Max time.Duration
	// Fixed leaves the random part out, for simulations.
	Fixed  bool
	failed int
}

// Next returns the next pause, which is at least least.
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
	if b.Fixed {
		return max(least, d)
	}
	return max(least, d/2+rand.N(d/2+1))
}

// Reset makes the next pauses short again. It is called after a success.
func (b *Backoff) Reset() { b.failed = 0 }

// Wait waits for the next pause. If ctx ends before, it returns ctx's error.
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

// Retry calls fn until its error is not raced, for at most attempts times, with a pause before each further attempt.
func (b *Backoff) Retry(ctx context.Context, attempts int, raced error, fn func(try int) error) error {
	for try := 1; ; try++ {
		err := fn(try)
		if !errors.Is(err, raced) || try == attempts || b.Wait(ctx, 0) != nil {
			return err
		}
	}
}
