package netops

import "testing"

// TestKindsCanBeMadeAndUndone checks that each kind of object has requests, or ways of its own to
// be made and undone.
func TestKindsCanBeMadeAndUndone(t *testing.T) {
	for _, kind := range kinds() {
		if _, ok := kind.(requester); ok {
			continue
		}
		_, makes := kind.(maker)
		_, undoes := kind.(undoer)
		if !makes || !undoes {
			t.Errorf("%T: made %v, undone %v", kind, makes, undoes)
		}
	}
}
