package netops

import (
	"sync"
	"time"
)

// gathered tells of changes, once for those that come within a quiet time. That
// begins with the first of them, so that it ends however many follow.
type gathered struct {
	told chan struct{}

	mu    sync.Mutex
	quiet time.Duration
	timer *time.Timer
	ended bool
}

func gather(quiet time.Duration) *gathered {
	return &gathered{told: make(chan struct{}, 1), quiet: quiet}
}

// pace sets the quiet time of those to come.
func (g *gathered) pace(quiet time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.quiet = quiet
}

// tell announces a change.
func (g *gathered) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil || g.ended {
		return
	}
	g.timer = time.AfterFunc(g.quiet, func() {
		g.mu.Lock()
		g.timer = nil
		g.mu.Unlock()
		select {
		case g.told <- struct{}{}:
		default:
		}
	})
}

// stop ends it; nothing is told any more, but for what was about to.
func (g *gathered) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	if g.timer != nil {
		g.timer.Stop()
	}
}
