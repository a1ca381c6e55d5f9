package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// counter breaks its promise after three steps of one kind.
type counter struct{ n int }

func (c *counter) Do(r *rand.Rand) string {
	kind := r.IntN(20)
	if kind == 0 {
		c.n++
	}
	return fmt.Sprint(kind)
}

func (c *counter) Check() error {
	if c.n == 3 {
		return errors.New("three")
	}
	return nil
}
func (*counter) End() error { return nil }
func (*counter) Close()     {}

// TestShrink: the shortest history has the necessary steps only, and a seed repeats exactly.
func TestShrink(t *testing.T) {
	p := Plan{New: func(int, *rand.Rand) World { return &counter{} }, Steps: func(int) int { return 400 }}
	h := p.history(7)
	f := p.play(7, h)
	if f == nil {
		t.Fatal("no failure")
	}
	if again := p.play(7, p.history(7)); again.at != f.at || fmt.Sprint(again.text) != fmt.Sprint(f.text) {
		t.Errorf("%v, then %v", f, again)
	}
	if short, n := p.shrink(7, h, f); n != 3 || strings.Join(short.text, " ") != "0 0 0" {
		t.Errorf("%d steps: %v", n, short.text)
	}
}

// TestTask: a task runs only in Go and Resume, and a killed one does nothing more.
func TestTask(t *testing.T) {
	var did []string
	start := func() *Task {
		did = nil
		return Go(func(t *Task) {
			defer func() { did = append(did, "deferred") }()
			did = append(did, "one")
			t.Park()
			did = append(did, "two")
			t.Park()
			did = append(did, "three")
		})
	}
	a := start()
	a.Resume()
	if fmt.Sprint(did) != "[one two]" || a.Done {
		t.Error(did)
	}
	a.Resume()
	if fmt.Sprint(did) != "[one two three deferred]" || !a.Done {
		t.Error(did)
	}
	a = start()
	a.Kill()
	if fmt.Sprint(did) != "[one deferred]" || !a.Done {
		t.Error(did)
	}
}
