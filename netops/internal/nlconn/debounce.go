package nlconn

import (
	"sync"
	"time"
)

// Debouncer notifies of changes, once for all that come within an interval. The
// interval begins with the first of them, so that it ends however many follow.
type Debouncer struct {
	// C receives a value some time after changes.
	C chan struct{}

	mu       sync.Mutex
	interval time.Duration
	timer    *time.Timer
	ended    bool
}

// NewDebouncer waits for nothing yet.
func NewDebouncer(interval time.Duration) *Debouncer {
	return &Debouncer{C: make(chan struct{}, 1), interval: interval}
}

// SetInterval sets the interval of the changes to come.
func (d *Debouncer) SetInterval(interval time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.interval = interval
}

// Notify announces a change.
func (d *Debouncer) Notify() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil || d.ended {
		return
	}
	d.timer = time.AfterFunc(d.interval, func() {
		d.mu.Lock()
		d.timer = nil
		d.mu.Unlock()
		select {
		case d.C <- struct{}{}:
		default:
		}
	})
}

// Stop ends it. What was about to be announced may still arrive.
func (d *Debouncer) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
