// Package sim runs parts of the program in an order that a seed determines, and finds the shortest history of a failure.
//
// A world is made of the seed. Each step is a number, from which the world chooses what happens next. So a history is
// a list of numbers, and stays one if some are left out.
package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// World is what a seed plays in. Its methods are called by one goroutine.
type World interface {
	// Do performs a step and says what happened.
	Do(r *rand.Rand) string
	// Check returns an error if a promise is broken.
	Check() error
	// End ends all faults, and returns an error if something does not recover or is left.
	End() error
	Close()
}

// Plan makes worlds.
type Plan struct {
	// New makes a world of n nodes.
	New func(n int, r *rand.Rand) World
	// Steps is the number of steps of a world of n nodes.
	Steps func(n int) int
	// Play calls play where a history is to be played, or is nil.
	Play func(play func())
}

// failure is the first broken promise of a history.
type failure struct {
	err error
	// at is the number of steps before it.
	at   int
	text []string
}

// size returns the number of nodes of a seed: mostly 3 to 5 or 20.
func size(seed uint64) int {
	switch {
	case seed%100 == 99:
		return 1000
	case seed%2 == 1:
		return 20
	}
	return 3 + int(seed/2%3)
}

// play plays a history.
func (p *Plan) play(seed uint64, steps []uint64) (f *failure) {
	if p.Play == nil {
		return p.playHere(seed, steps)
	}
	p.Play(func() { f = p.playHere(seed, steps) })
	return f
}

func (p *Plan) playHere(seed uint64, steps []uint64) *failure {
	n := size(seed)
	w := p.New(n, rand.New(rand.NewPCG(seed, 1)))
	defer w.Close()
	var text []string
	for i, s := range steps {
		text = append(text, w.Do(rand.New(rand.NewPCG(s, 2))))
		if err := w.Check(); err != nil {
			return &failure{err, i + 1, text}
		}
	}
	err := w.End()
	if err == nil {
		err = w.Check()
	}
	if err != nil {
		return &failure{fmt.Errorf("at the end: %w", err), len(steps), text}
	}
	return nil
}

// history returns the steps of a seed.
func (p *Plan) history(seed uint64) []uint64 {
	r := rand.New(rand.NewPCG(seed, 3))
	steps := make([]uint64, p.Steps(size(seed)))
	for i := range steps {
		steps[i] = r.Uint64()
	}
	return steps
}

// shrinkTime bounds the search for a shorter history.
const shrinkTime = 20 * time.Second

// shrink leaves out steps as long as a promise is still broken.
func (p *Plan) shrink(seed uint64, steps []uint64, f *failure) (*failure, int) {
	steps = steps[:f.at]
	until := time.Now().Add(shrinkTime)
	for part := (len(steps) + 1) / 2; part > 0; part /= 2 {
		for at := 0; at < len(steps) && time.Now().Before(until); {
			shorter := append(append([]uint64{}, steps[:at]...), steps[min(at+part, len(steps)):]...)
			if g := p.play(seed, shorter); g != nil {
				f, steps = g, shorter[:g.at]
			} else {
				at += part
			}
		}
	}
	return f, len(steps)
}

// Run plays CNIBOX_SEEDS seeds, or count, or the one in SEED, and reports the shortest history of the first failure.
func (p *Plan) Run(t *testing.T, count int) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a tenth of the time
	first := uint64(0)
	if s := os.Getenv("CNIBOX_SEEDS"); s != "" {
		count = number(t, s)
	}
	if s := os.Getenv("CNIBOX_FIRST_SEED"); s != "" {
		first = uint64(number(t, s))
	}
	if s := os.Getenv("SEED"); s != "" {
		first, count = uint64(number(t, s)), 1
	}
	began := time.Now()
	var mu sync.Mutex
	var failed []uint64
	var steps int
	seeds := make(chan uint64)
	var playing sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		playing.Go(func() {
			for seed := range seeds {
				history := p.history(seed)
				f := p.play(seed, history)
				mu.Lock()
				steps += len(history)
				if f != nil {
					failed = append(failed, seed)
				}
				mu.Unlock()
			}
		})
	}
	played := 0
	for seed := first; seed < first+uint64(count); seed++ {
		mu.Lock()
		stop := len(failed) > 0
		mu.Unlock()
		if stop {
			break
		}
		seeds <- seed
		played++
	}
	close(seeds)
	playing.Wait()
	t.Logf("%d seeds, %d steps, %.1fs", played, steps, time.Since(began).Seconds())
	if len(failed) == 0 {
		return
	}
	seed := failed[0]
	history := p.history(seed)
	f := p.play(seed, history)
	if f == nil {
		t.Fatalf("seed %d failed and does not fail again", seed)
	}
	short, n := p.shrink(seed, history, f)
	t.Fatalf("seed %d of %d nodes: %v\nRepeat it with SEED=%d. The shortest history found has %d of %d steps: %v\n%s",
		seed, size(seed), f.err, seed, n, f.at, short.err, strings.Join(short.text, "\n"))
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Task is a goroutine that runs only while another one waits for it in Resume.
type Task struct {
	resume chan bool // false kills the goroutine
	parked chan struct{}
	// Done is true after the end of the goroutine.
	Done bool
	dead bool
}

// Go starts a task and returns when it has parked or ended.
func Go(fn func(t *Task)) *Task {
	t := &Task{resume: make(chan bool), parked: make(chan struct{})}
	go func() {
		defer close(t.parked)
		fn(t)
	}()
	t.wait()
	return t
}

func (t *Task) wait() {
	_, ok := <-t.parked
	t.Done = !ok
}

// Park is called by the task. It returns when the task is to go on.
func (t *Task) Park() {
	if t.dead { // a deferred function
		runtime.Goexit()
	}
	t.parked <- struct{}{}
	if !<-t.resume {
		t.dead = true
		runtime.Goexit()
	}
}

// Resume lets the task run until it parks again or ends.
func (t *Task) Resume() {
	t.resume <- true
	t.wait()
}

// Kill ends the task where it has parked. Only its deferred functions run.
func (t *Task) Kill() {
	if !t.Done {
		t.resume <- false
		t.wait()
	}
}
