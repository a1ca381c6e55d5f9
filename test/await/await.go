// Package await waits for conditions in tests: for the kernel, another process or another thread. It bounds the waits generously,
// because a slow machine is not a defect.
package await

import (
	"testing"
	"time"
)

// Patience is how long a test waits for a condition. Only a failing test waits that long.
const Patience = 2 * time.Minute

// pause is the time between two checks of Until.
const pause = 2 * time.Millisecond

// Deadline returns the time at which a wait that begins now ends, for a socket.
func Deadline() time.Time { return time.Now().Add(Patience) }

// Until checks a condition until it is true. If it stays false the test fails with the text of what.
func Until(t testing.TB, is func() bool, what func() string) {
	t.Helper()
	if is() {
		return
	}
	late, again := time.NewTimer(Patience), time.NewTicker(pause)
	defer late.Stop()
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-late.C:
			if !is() {
				t.Fatal(what())
			}
			return
		}
		if is() {
			return
		}
	}
}

// Next returns the next value of a channel.
func Next[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	late := time.NewTimer(Patience)
	defer late.Stop()
	var v T
	select {
	case v = <-from:
	case <-late.C:
		t.Fatalf("%s: nothing came within %v", what, Patience)
	}
	return v
}
