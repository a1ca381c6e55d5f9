package nodeipam

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnibox/cnibox/store/cluster/web"
)

// A name that is added while a worker has it is given again. A name that failed is given after a growing pause, or
// when it is added.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(web.Backoff{Min: time.Second, Max: time.Minute})
		defer q.stop()
		ctx, stop := context.WithCancel(t.Context())
		next := func(want string) time.Duration {
			t.Helper()
			begin := time.Now()
			if name, ok := q.next(ctx); !ok || name != want {
				t.Fatalf("got %q %v, want %q", name, ok, want)
			}
			return time.Since(begin)
		}
		q.add("a", "b", "a")
		next("a")
		next("b")
		q.add("a")
		q.done("b", false)
		q.done("a", false)
		next("a")
		q.done("a", true)
		first := next("a")
		q.done("a", true)
		second := next("a")
		if first < 500*time.Millisecond || first > time.Second || second < time.Second || second > 2*time.Second {
			t.Errorf("pauses of %v and %v", first, second)
		}
		q.done("a", true)
		q.add("a")
		if d := next("a"); d != 0 {
			t.Errorf("given after %v", d)
		}
		q.done("a", false)
		q.add("a")
		next("a")
		q.done("a", true)
		if d := next("a"); d > time.Second {
			t.Errorf("the first pause after a success is %v", d)
		}
		go stop()
		if name, ok := q.next(ctx); ok {
			t.Errorf("got %q after the end", name)
		}
	})
}
