package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRetryLatest: after a failure, new requests lead to an early retry, however many they are. A
// different request is executed at once. A request that another program keeps undoing is executed
// at growing intervals. The test uses synthetic time.
func TestRetryLatest(t *testing.T) {
	same := func(a, b int) bool { return a == b }
	// run sends a request at every step for a time. It returns the number of executions and the longest
	// time between two of them.
	run := func(t *testing.T, length, step time.Duration, request func(time.Duration) int, do func(int) error) (n int, longest time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			asked, start, last := make(chan int), time.Now(), time.Now()
			end := make(chan struct{})
			go func() {
				defer close(end)
				retryLatest(ctx, asked, same, func(_ context.Context, what int) error {
					n, longest, last = n+1, max(longest, time.Since(last)), time.Now()
					return do(what)
				})
			}()
			steps := time.NewTicker(step)
			defer steps.Stop()
			for ; time.Since(start) < length; <-steps.C {
				asked <- request(time.Since(start))
			}
			stop()
			<-end
		})
		return n, longest
	}
	one := func(time.Duration) int { return 1 }
	held := errors.New("held")
	if n, longest := run(t, time.Minute, step, one, func(int) error { return held }); n < 25 || longest > newsRetryDelay+step {
		t.Errorf("with steady requests, a failure was retried %d times, at most %v apart", n, longest)
	}
	if n, _ := run(t, 10*time.Minute, step, one, func(int) error { return nil }); n < 5 || n > 60 {
		t.Errorf("a request that is always undone was executed %d times in 10 minutes", n)
	}
	each := func(d time.Duration) int { return int(d / time.Second) }
	if n, longest := run(t, 20*time.Second, time.Second, each, func(int) error { return nil }); n != 20 || longest > time.Second {
		t.Errorf("%d of 20 requests were executed, at most %v apart", n, longest)
	}
}

const step = 100 * time.Millisecond
