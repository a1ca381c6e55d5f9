package cluster

import (
	"sync"
	"time"
)

// Relay passes updates from a registry's Watch to its consumer, so that neither waits for the other. A newer snapshot
// replaces one that was not taken yet.
type Relay struct {
	mu       sync.Mutex
	snapshot func() *Snapshot
	since    time.Time
	err      error
	changes  chan struct{}
}

// Update is what came since the last Take: a new Snapshot and the time of the first one, or an error while the registry
// cannot be reached, or both, in this order. The last snapshot stays valid during an error.
type Update struct {
	Snapshot *Snapshot
	Since    time.Time
	Err      error
}

// NewRelay returns a Relay without an update.
func NewRelay() *Relay { return &Relay{changes: make(chan struct{}, 1)} }

// Changes returns a channel that receives when there may be an update.
func (r *Relay) Changes() <-chan struct{} { return r.changes }

// Take returns the update, which is empty if there is none.
func (r *Relay) Take() Update {
	r.mu.Lock()
	snapshot, u := r.snapshot, Update{Since: r.since, Err: r.err}
	r.snapshot, r.err = nil, nil
	r.mu.Unlock()
	if snapshot != nil {
		u.Snapshot = snapshot()
	}
	return u
}

// Put reports that the registry can be reached and has another snapshot. fn makes it when Take needs it, so a burst of changes
// makes only few snapshots.
func (r *Relay) Put(fn func() *Snapshot) {
	r.mu.Lock()
	if r.snapshot == nil {
		r.since = time.Now()
	}
	r.snapshot, r.err = fn, nil
	r.mu.Unlock()
	r.notify()
}

// Fail reports that the registry cannot be reached.
func (r *Relay) Fail(err error) {
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	r.notify()
}

func (r *Relay) notify() {
	select {
	case r.changes <- struct{}{}:
	default: // a wake-up is pending
	}
}
