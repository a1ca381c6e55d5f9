package dbus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
)

// settings has a type of each kind that answers and arguments have.
type settings []struct {
	Family  int32
	Address []byte
	Port    uint16
	Name    string
	Parts   []struct {
		Name string
		Is   bool
	}
}

// answers returns a variable of each type to decode.
func answers() []any {
	return []any{new(string), new(bool), new(int32), new(uint16), new([]byte), new([]string), new([][]string), new(settings)}
}

// values are examples of them.
var values = []any{
	"text", "", true, int32(-2), uint16(0xfffe), []byte("abc"),
	[]string{"a", "", "bc"},
	[][]string{{}, {"a"}},
	settings{},
	[]string{},
	settings{{Family: 10, Address: []byte{1, 2, 3}, Port: 53, Name: "n"}, {Parts: []struct {
		Name string
		Is   bool
	}{{"a", true}, {"bcde", false}}}},
}

// encode returns a message as the library encodes it.
func encode(m *dbus.Message, order binary.ByteOrder) []byte {
	var b bytes.Buffer
	if err := m.EncodeTo(&b, order); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// TestEncode: the library decodes our calls.
func TestEncode(t *testing.T) {
	method := Method{Destination: "a.b", Path: "/a/b", Interface: "c.d", Name: "E"}
	for _, args := range append([][]any{nil, {"a", int32(1), true, []byte{2}, "b"}, values}, []any{[]byte("a"), settings{}}) {
		m, err := dbus.DecodeMessage(bytes.NewReader(encodeCall(method, 7, args)))
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		want := map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant("a.b"), dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/a/b")),
			dbus.FieldInterface: dbus.MakeVariant("c.d"), dbus.FieldMember: dbus.MakeVariant("E"),
		}
		if len(args) > 0 {
			want[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(args...))
		}
		if m.Type != dbus.TypeMethodCall || m.Flags != dbus.FlagNoAutoStart || m.Serial() != 7 || !reflect.DeepEqual(m.Headers, want) || m.IsValid() != nil {
			t.Errorf("%v: %+v", args, m)
		}
		for i, a := range args {
			got := reflect.New(reflect.TypeOf(a))
			if err := dbus.Store(m.Body[i:i+1], got.Interface()); err != nil || !same(got.Elem(), reflect.ValueOf(a)) {
				t.Errorf("%#v is %#v: %v", a, got.Elem(), err)
			}
		}
	}
}

// FuzzDecode: what the library decodes, too, is the same.
func FuzzDecode(f *testing.F) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, v := range append(slices.Clone(values), dbus.MakeVariant("a"), dbus.MakeVariant(values[len(values)-1]), dbus.ObjectPath("/a"), []dbus.ObjectPath{"/", "/b"}) {
			m := dbus.Message{Type: dbus.TypeMethodReply, Body: []any{v}, Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldReplySerial: dbus.MakeVariant(uint32(2)), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(v)), dbus.FieldSender: dbus.MakeVariant("a.b"),
			}}
			f.Add(encode(&m, order))
			f.Add(bytes.Replace(encode(&m, order), []byte("text\x00"), []byte("text!"), 1))
			m.Type, m.Headers[dbus.FieldErrorName] = dbus.TypeError, dbus.MakeVariant("a.b")
			f.Add(encode(&m, order))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want, failed := decoded(b)
		c := &Conn{in: bufio.NewReader(bytes.NewReader(b)), left: maxRead}
		head, body, err := c.read()
		if err != nil || failed != nil {
			return
		}
		reply, _ := want.Headers[dbus.FieldReplySerial].Value().(uint32)
		name, _ := want.Headers[dbus.FieldErrorName].Value().(string)
		types, _ := want.Headers[dbus.FieldSignature].Value().(dbus.Signature)
		if head.kind != byte(want.Type) || head.reply != reply || head.failed != name || head.types != types.String() {
			t.Errorf("%+v, and the library says %+v", head, want)
		}
		if len(want.Body) != 1 || strings.ContainsAny(types.String(), "v") && types.String() != "v" {
			return
		}
		for _, to := range answers() {
			theirs := reflect.New(reflect.TypeOf(to).Elem())
			d := *body
			ok := d.answer(head.types, reflect.ValueOf(to).Elem())
			value := want.Body[0]
			if v, is := value.(dbus.Variant); is {
				value = v.Value()
			}
			if err := dbus.Store([]any{value}, theirs.Interface()); ok && (err != nil || !same(reflect.ValueOf(to).Elem(), theirs.Elem())) {
				t.Errorf("%q into a %T is %#v, and the library says %#v, %v", types, to, reflect.ValueOf(to).Elem(), theirs.Elem(), err)
			}
		}
	})
}

// decoded decodes by the library, which panics on some messages.
func decoded(b []byte) (m *dbus.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = ErrProtocol
		}
	}()
	m, err = dbus.DecodeMessage(bytes.NewReader(b))
	if err == nil {
		err = m.IsValid()
	}
	return m, err
}

// same compares values. An empty slice is the same as nil.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}
