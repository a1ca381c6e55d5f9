package nlconn

import (
	"sync"
	"time"
)

// Debouncer combines the changes of an interval into one notification. The
// interval begins with the first change, so later changes do not delay the
// notification.
type Debouncer struct {
	// C receives a value at the end of an interval with changes.
	C chan struct{}

	mu       sync.Mutex
	interval time.Duration
	timer    *time.Timer
	ended    bool
}

// NewDebouncer returns a Debouncer. The first interval begins with the first call
// of Notify.
func NewDebouncer(interval time.Duration) *Debouncer {
	return &Debouncer{C: make(chan struct{}, 1), interval: interval}
}

// SetInterval sets the length of later intervals.
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

// Stop prevents further notifications. A notification that is already in progress
// may still arrive in C.
func (d *Debouncer) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
