package dbus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEncode reads a call back: body and signature are where they belong.
func TestEncode(t *testing.T) {
	for _, path := range []string{"/a", "/org/freedesktop/DBus"} {
		call := Method{Destination: busName, Path: path, Interface: busName, Name: "GetNameOwner"}
		m, err := readMessage(bytes.NewReader(call.encode(2, []Value{Text("zone"), Text("10.0.0.1/32")})))
		if err != nil || m.kind != kindCall || m.signature != "ss" {
			t.Fatalf("%s: %+v, %v", path, m, err)
		}
		var zone, source string
		if err := errors.Join(m.text(&zone), m.text(&source)); err != nil || zone != "zone" || source != "10.0.0.1/32" || m.body.at != len(m.body.data) {
			t.Errorf("%s: arguments %q, %q: %v", path, zone, source, err)
		}
	}
}

// reply is a message as a bus sends it.
func reply(kind byte, serial uint32, errorName, signature string, body writer) []byte {
	var fields writer
	fields = append(fields, fieldReplySerial)
	fields.signature("u")
	fields.number(serial)
	if errorName != "" {
		fields.align(8)
		fields = append(fields, fieldErrorName)
		fields.signature("s")
		fields.text(errorName)
	}
	fields.align(8)
	fields = append(fields, fieldSignature)
	fields.signature("g")
	fields.signature(signature)
	out := writer{'l', kind, 0, version}
	out.number(uint32(len(body)))
	out.number(9)
	out.number(uint32(len(fields)))
	out = append(out, fields...)
	out.align(8)
	return append(out, body...)
}

func TestDecode(t *testing.T) {
	var word, words, yes writer
	word.text("trusted")
	yes.number(1)
	words.number(0)
	words.text("10.0.0.1/32")
	words.text("fd00::1/128")
	binary.LittleEndian.PutUint32(words, uint32(len(words)-4))
	for _, tc := range []struct {
		signature string
		body      writer
		answer    any
		want      any
	}{
		{"s", word, new(string), "trusted"},
		{"", nil, new(string), ""},
		{"b", yes, new(bool), true},
		{"as", words, new([]string), []string{"10.0.0.1/32", "fd00::1/128"}},
	} {
		m, err := readMessage(bytes.NewReader(reply(kindReturn, 7, "", tc.signature, tc.body)))
		if err != nil || m.replyTo != 7 {
			t.Fatalf("%q: %+v, %v", tc.signature, m, err)
		}
		if err := m.decode(tc.answer); err != nil {
			t.Errorf("%q: %v", tc.signature, err)
		}
		var have any
		switch a := tc.answer.(type) {
		case *string:
			have = *a
		case *bool:
			have = *a
		case *[]string:
			have = *a
		}
		if diff := cmp.Diff(tc.want, have); diff != "" {
			t.Errorf("%q (-want +have):\n%s", tc.signature, diff)
		}
		if err := m.decode(new(int)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%q into an int: %v", tc.signature, err)
		}
	}
}

// FuzzMessage: no bytes make the reader panic or take more than a message may have.
func FuzzMessage(f *testing.F) {
	var words writer
	words.number(8)
	words.text("abc")
	f.Add(reply(kindReturn, 1, "", "as", words))
	f.Add(reply(kindError, 1, "org.freedesktop.DBus.Error.ServiceUnknown", "s", words))
	f.Add([]byte{'B', 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readMessage(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, ErrProtocol) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, answer := range []any{new(string), new(bool), new([]string), new(Value)} {
			again := *m
			if err := again.decode(answer); err != nil && !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		}
	})
}
