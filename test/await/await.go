// Package await is how tests wait for what the kernel, another process or another
// thread does in its own time. How long that takes is never judged: a machine that is
// busy with other things is no reason to fail.
package await

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what has to come. It passes only where the
// test fails.
const Patience = 2 * time.Minute

// pause is how long Until rests between two looks, so that what it waits for has the
// processor.
const pause = 2 * time.Millisecond

// Deadline is when a wait that begins now is over, for a socket.
func Deadline() time.Time { return time.Now().Add(Patience) }

// Until looks again and again until it is so; what tells then what is wrong.
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

// Next takes what comes next.
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
