package dhcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// How long the first answer is waited for. RFC 2131 (section 4.1) and RFC 8415
// (section 15) begin with seconds, on a wire that many share; here somebody waits
// for a container. The very first message, or its answer, is often lost to a
// link that was set up this millisecond and does not forward yet.
const (
	discoverDelay = 10 * time.Millisecond
	firstDelay    = 250 * time.Millisecond
)

// errNoAnswer means that no server answered in time.
var errNoAnswer = errors.New("no DHCP server answered")

// retransmission says how often a message is repeated.
type retransmission struct {
	// first and max are the shortest and the longest delay between two, total ends it.
	first, max, total time.Duration
}

// run sends, and sends again after delays that double, until receive says that
// it is done. It is errNoAnswer when the time is up.
func (r retransmission) run(ctx context.Context, send func(context.Context) error, receive func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.total, errNoAnswer)
	defer cancel()
	for delay := r.first; ; delay = min(2*delay, r.max) {
		if err := send(ctx); err != nil {
			return ended(ctx, err)
		}
		done, err := receiveFor(ctx, jittered(delay), receive)
		if err != nil || done {
			return ended(ctx, err)
		}
	}
}

// receiveFor receives until it is done or the delay is over, which is no error.
func receiveFor(ctx context.Context, delay time.Duration, receive func(context.Context) (bool, error)) (bool, error) {
	wait, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	for {
		done, err := receive(wait)
		if err != nil && wait.Err() != nil && ctx.Err() == nil {
			return false, nil
		}
		if err != nil || done {
			return done, err
		}
	}
}

// ended gives the reason why ctx ended, if it did and something failed.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// jittered varies a delay by a tenth, so that clients do not keep step.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
