package dbus

import (
	"bytes"
	"errors"
	"testing"
)

// TestValue hands a property on as an argument: its elements arrive as they were,
// wherever they begin.
func TestValue(t *testing.T) {
	var elements writer // one structure of (iayqs)
	elements.number(2)
	elements.number(4)
	elements = append(elements, 168, 63, 129, 16, 53, 0)
	elements.text("dns")
	var body writer
	body.signature("a(iayqs)")
	body.number(uint32(len(elements)))
	body.align(8)
	body = append(body, elements...)
	m, err := readMessage(bytes.NewReader(reply(kindReturn, 7, "", "v", body)))
	if err != nil {
		t.Fatal(err)
	}
	var v Value
	if err := m.decode(&v); err != nil || v.Signature() != "a(iayqs)" || v.IsEmpty() || !bytes.Equal(v.elements, elements) {
		t.Fatalf("%+v, %v", v, err)
	}
	call := Method{Destination: "a.b", Path: "/a", Interface: "a.b", Name: "Set"}.encode(2, []Value{Number(12), v, Text("x")})
	m, err = readMessage(bytes.NewReader(call))
	if err != nil || m.signature != "ia(iayqs)s" {
		t.Fatalf("%+v, %v", m, err)
	}
	want := writer{12, 0, 0, 0}
	want.number(uint32(len(elements)))
	want = append(want, elements...)
	want.text("x")
	if !bytes.Equal(m.body.data, want) {
		t.Errorf("body %x, want %x", m.body.data, want)
	}
	if o := (Value{signature: v.signature}); !o.IsEmpty() || o.Equal(v) || !v.Equal(Value{signature: v.signature, elements: elements}) {
		t.Error("an empty array equals a full one, or is none")
	}
	for _, broken := range []writer{{}, {1, 'x', 0}, {2, 'a', 'y', 0}, append(writer{4, 'a', '(', 's', ')', 0, 0, 0}, 0xff, 0xff, 0xff, 0x7f)} {
		m, err := readMessage(bytes.NewReader(reply(kindReturn, 7, "", "v", broken)))
		if err == nil {
			err = m.decode(new(Value))
		}
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%x: %v", broken, err)
		}
	}
}
