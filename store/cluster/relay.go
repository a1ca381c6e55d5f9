package cluster

import (
	"context"
	"sync"
)

// Relay stands between an engine that watches and whoever is told, so that
// neither waits for the other: what was not taken yet is replaced by what is
// newer.
type Relay struct {
	mu       sync.Mutex
	snapshot func() *Snapshot
	err      error
	wake     chan struct{}
}

// WatchWith runs an engine, which puts what it learns into the Relay, until it
// returns, and has fn told meanwhile, by one goroutine of its own. When it
// returns, fn was called for the last time.
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

// Put has a snapshot told. It is told that the registry is heard, too.
func (r *Relay) Put(s *Snapshot) { r.PutLater(func() *Snapshot { return s }) }

// PutLater has the snapshot told that fn makes when it is taken: of a burst of
// changes only few are made. fn is called by another goroutine.
func (r *Relay) PutLater(fn func() *Snapshot) {
	r.mu.Lock()
	r.snapshot, r.err = fn, nil
	r.mu.Unlock()
	r.notify()
}

// Fail has it told that the registry cannot be heard. A snapshot that was not
// taken yet is told before.
func (r *Relay) Fail(err error) {
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	r.notify()
}

func (r *Relay) notify() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
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
