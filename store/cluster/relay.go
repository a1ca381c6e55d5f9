package cluster

import (
	"context"
	"sync"
)

// Relay passes updates from a registry's watcher to its consumer, so that neither
// waits for the other. A newer update replaces one that was not consumed yet.
type Relay struct {
	mu       sync.Mutex
	snapshot func() *Snapshot
	err      error
	wake     chan struct{}
}

// WatchWith runs engine until it returns. Meanwhile another goroutine calls fn with the updates that
// engine puts into the Relay. fn is not called after WatchWith has returned.
func WatchWith(ctx context.Context, fn func(Update), engine func(context.Context, *Relay) error) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &Relay{wake: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx, fn)
	}()
	err := engine(ctx, r)
	cancel()
	<-done
	return err
}

// Put sends a snapshot to the consumer. It means that the registry can be reached.
func (r *Relay) Put(s *Snapshot) { r.PutLater(func() *Snapshot { return s }) }

// PutLater is like Put, but the consumer's goroutine calls fn to make the snapshot, so that only few
// are made in a burst of changes.
func (r *Relay) PutLater(fn func() *Snapshot) {
	r.mu.Lock()
	r.snapshot, r.err = fn, nil
	r.mu.Unlock()
	r.notify()
}

// Fail reports that the registry cannot be reached. A pending snapshot is sent first.
func (r *Relay) Fail(err error) {
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	r.notify()
}

func (r *Relay) notify() {
	select {
	case r.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

func (r *Relay) run(ctx context.Context, fn func(Update)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		s, err := r.snapshot, r.err
		r.snapshot, r.err = nil, nil
		r.mu.Unlock()
		if s != nil {
			fn(Update{Snapshot: s()})
		}
		if err != nil && ctx.Err() == nil {
			fn(Update{Err: err})
		}
	}
}
