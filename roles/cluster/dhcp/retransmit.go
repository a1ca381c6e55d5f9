package dhcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Delays before the first repetition. RFC 2131 (section 4.1) and RFC 8415 (section 15)
// begin with seconds to spare a shared network; here the start of a container waits. The
// first message, or its answer, is often lost because the link was set up a millisecond
// ago and does not forward yet.
const (
	discoverDelay = 10 * time.Millisecond
	firstDelay    = 250 * time.Millisecond
)

// errNoAnswer means that no server answered in time.
var errNoAnswer = errors.New("no DHCP server answered")

// retransmission defines when a message is repeated.
type retransmission struct {
	// first and max are the shortest and the longest delay between two messages, total
	// bounds the exchange.
	first, max, total time.Duration
}

// run sends, and repeats after delays that double, until receive returns true. After the total time
// it returns errNoAnswer.
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

// receiveFor receives until receive returns true or the delay is over, which is not an error.
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

// ended returns the reason why ctx ended instead of an error that followed from it.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// jittered varies a delay by a tenth, so that clients do not send at the same time.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
