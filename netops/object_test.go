package netops

import (
	"reflect"
	"testing"
)

// TestKindsCanBeMadeAndUndone checks that each kind of object has requests, or ways of its own to
// be made and undone.
func TestKindsCanBeMadeAndUndone(t *testing.T) {
	kinds := reflect.ValueOf(stepJSON{})
	for i := 1; i < kinds.NumField(); i++ { // the first field is the verb
		kind, ok := kinds.Field(i).Interface().(kernelObject)
		if !ok {
			t.Errorf("%T is not a kind", kinds.Field(i).Interface())
		}
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
