package netrpc

import (
	"bufio"
	"bytes"
	"errors"
	"testing"
)

// TestDescriptions: a peer can describe the types of the protocol, but cannot fill the
// memory with descriptions, in which an empty field takes one byte.
func TestDescriptions(t *testing.T) {
	const fields = 40 << 10
	describe := func(id int64) []byte {
		b := appendInt(nil, -id)
		b = append(b, 3, 2)                    // StructT: Field
		b = appendUint(b, fields)              // the number of fields
		b = append(b, make([]byte, fields)...) // all of them empty
		b = append(b, 0, 0)
		return append(appendUint(nil, uint64(len(b))), b...)
	}
	d, err := newDecoder(bufio.NewReader(bytes.NewReader(append(describe(70), describe(71)...))))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.decode(&request{}); !errors.Is(err, errTooLarge) {
		t.Errorf("%d types described: %v", len(d.types), err)
	}
	if w := d.types[70]; w.StructT == nil || len(w.StructT.Field) != fields {
		t.Error("the first description is not taken")
	}
}
