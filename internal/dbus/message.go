package dbus

import (
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf8"
)

// Types of messages and what else a header says (section "Message Format").
const (
	kindCall    = 1
	kindReturn  = 2
	kindError   = 3
	noAutoStart = 0x2
	version     = 1

	fieldPath        = 1
	fieldInterface   = 2
	fieldMember      = 3
	fieldErrorName   = 4
	fieldReplySerial = 5
	fieldDestination = 6
	fieldSignature   = 8

	// headerSize is that of the fixed part with the length of the array of fields.
	headerSize = 16
	// maxMessage bounds what is read of one message. The specification has 128 MiB.
	maxMessage = 1 << 20
)

// Method names a method of an object of a service.
type Method struct{ Destination, Path, Interface, Name string }

// encode is the message that calls the method, in little-endian.
func (m Method) encode(serial uint32, args []Value) []byte {
	var body, fields writer
	signature := ""
	for _, a := range args {
		signature += a.signature
		body.value(a)
	}
	for _, f := range []struct {
		code      byte
		signature string
		value     string
	}{
		{fieldPath, "o", m.Path},
		{fieldInterface, "s", m.Interface},
		{fieldMember, "s", m.Name},
		{fieldDestination, "s", m.Destination},
		{fieldSignature, "g", signature},
	} {
		fields.align(8)
		fields = append(fields, f.code)
		fields.signature(f.signature)
		if f.signature == "g" {
			fields.signature(f.value)
		} else {
			fields.text(f.value)
		}
	}
	out := writer{'l', kindCall, noAutoStart, version}
	out.number(uint32(len(body)))
	out.number(serial)
	out.number(uint32(len(fields)))
	out = append(out, fields...)
	out.align(8)
	return append(out, body...)
}

// writer appends values. Alignment counts from its start, so a part that is
// appended to another must begin there at a multiple of 8.
type writer []byte

func (w *writer) align(n int) {
	for len(*w)%n != 0 {
		*w = append(*w, 0)
	}
}

func (w *writer) number(v uint32) {
	w.align(4)
	*w = binary.LittleEndian.AppendUint32(*w, v)
}

func (w *writer) text(s string) {
	w.number(uint32(len(s)))
	*w = append(append(*w, s...), 0)
}

func (w *writer) signature(s string) {
	*w = append(append(append(*w, byte(len(s))), s...), 0)
}

// message is what is read of one.
type message struct {
	kind      byte
	replyTo   uint32
	errorName string
	signature string
	body      reader
}

// readMessage reads one message.
func readMessage(in io.Reader) (*message, error) {
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	var order binary.ByteOrder
	switch head[0] {
	case 'l':
		order = binary.LittleEndian
	case 'B':
		order = binary.BigEndian
	default:
		return nil, fmt.Errorf("message of byte order %q: %w", head[0], ErrProtocol)
	}
	bodyLen, fieldsLen := order.Uint32(head[4:]), order.Uint32(head[12:])
	if head[3] != version || bodyLen > maxMessage || fieldsLen > maxMessage {
		return nil, fmt.Errorf("message of version %d with %d and %d bytes: %w", head[3], fieldsLen, bodyLen, ErrProtocol)
	}
	padded := (int(fieldsLen) + 7) / 8 * 8
	rest := make([]byte, padded+int(bodyLen))
	if _, err := io.ReadFull(in, rest); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	m := &message{kind: head[1], body: reader{order: order, data: rest[padded:]}}
	return m, m.readFields(&reader{order: order, data: rest[:fieldsLen]})
}

// readFields reads the header's fields; those that nobody asks for are texts,
// paths and numbers too, and newer ones of other types end the reading.
func (m *message) readFields(r *reader) error {
	for r.at < len(r.data) {
		var code, kind string
		if err := r.fieldStart(&code, &kind); err != nil {
			return err
		}
		var text string
		var number uint32
		var err error
		switch kind {
		case "s", "o":
			err = r.text(&text)
		case "g":
			err = r.signature(&text)
		case "u":
			err = r.number(&number)
		default:
			return fmt.Errorf("header field of type %q: %w", kind, ErrProtocol)
		}
		if err != nil {
			return err
		}
		switch code[0] {
		case fieldErrorName:
			m.errorName = text
		case fieldReplySerial:
			m.replyTo = number
		case fieldSignature:
			m.signature = text
		}
	}
	return nil
}

// text reads the body's first argument.
func (m *message) text(s *string) error { return m.body.text(s) }

// decode reads the body, which has to be of the answer's type. A *string takes
// an empty body too: the method has no answer.
func (m *message) decode(answer any) error {
	switch a := answer.(type) {
	case *string:
		if m.signature == "" {
			return nil
		}
		if m.signature == "s" || m.signature == "o" {
			return m.body.text(a)
		}
	case *bool:
		if m.signature == "b" {
			var n uint32
			err := m.body.number(&n)
			*a = n != 0
			return err
		}
	case *[]string:
		if m.signature == "as" {
			return m.body.texts(a)
		}
	}
	if v, ok := answer.(*Value); ok && m.signature == "v" {
		return m.body.variant(v)
	}
	return fmt.Errorf("answer of type %q for a %T: %w", m.signature, answer, ErrProtocol)
}

// reader reads values of a part of a message that begins at a multiple of 8.
type reader struct {
	order binary.ByteOrder
	data  []byte
	at    int
}

// take returns the next n bytes.
func (r *reader) take(n int) ([]byte, error) {
	if n < 0 || n > len(r.data)-r.at {
		return nil, fmt.Errorf("value of %d bytes where %d are left: %w", n, len(r.data)-r.at, ErrProtocol)
	}
	b := r.data[r.at : r.at+n]
	r.at += n
	return b, nil
}

// align skips padding.
func (r *reader) align(n int) error {
	_, err := r.take((n - r.at%n) % n)
	return err
}

func (r *reader) number(v *uint32) error {
	if err := r.align(4); err != nil {
		return err
	}
	b, err := r.take(4)
	if err == nil {
		*v = r.order.Uint32(b)
	}
	return err
}

// text reads a text and its final NUL.
func (r *reader) text(s *string) error {
	var n uint32
	if err := r.number(&n); err != nil {
		return err
	}
	return r.terminated(int64(n), s)
}

// signature reads a list of types.
func (r *reader) signature(s *string) error {
	n, err := r.take(1)
	if err != nil {
		return err
	}
	return r.terminated(int64(n[0]), s)
}

func (r *reader) terminated(n int64, s *string) error {
	if n > int64(len(r.data)) {
		return fmt.Errorf("text of %d bytes: %w", n, ErrProtocol)
	}
	b, err := r.take(int(n) + 1)
	if err != nil {
		return err
	}
	if b[n] != 0 || !utf8.Valid(b[:n]) {
		return fmt.Errorf("text without a NUL, or not UTF-8: %w", ErrProtocol)
	}
	*s = string(b[:n])
	return nil
}

// texts reads an array of texts.
func (r *reader) texts(list *[]string) error {
	var n uint32
	if err := r.number(&n); err != nil {
		return err
	}
	end := int64(r.at) + int64(n)
	if end > int64(len(r.data)) {
		return fmt.Errorf("array of %d bytes: %w", n, ErrProtocol)
	}
	*list = nil
	for int64(r.at) < end {
		var s string
		if err := r.text(&s); err != nil {
			return err
		}
		*list = append(*list, s)
	}
	return nil
}

// fieldStart reads a header field's code, as a text of one byte, and its type.
func (r *reader) fieldStart(code, kind *string) error {
	if err := r.align(8); err != nil {
		return err
	}
	b, err := r.take(1)
	if err != nil {
		return err
	}
	*code = string(b)
	return r.signature(kind)
}
