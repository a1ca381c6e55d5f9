// Package dbus calls methods over D-Bus until a context ends.
//
// It implements what a CNI call needs of the D-Bus Specification, version 0.43: one call at a time, to services that run. Signals and
// calls to this process are read and dropped. A library would add 170 kB to the program.
package dbus

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// ErrProtocol means that the bus violates the D-Bus protocol.
var ErrProtocol = errors.New("D-Bus protocol violation")

// ErrAuth means that the bus refuses this user.
var ErrAuth = errors.New("authentication refused")

// maxRead bounds the bytes that are read for one call.
const maxRead = 1 << 20

// Error is an error that a method returned.
type Error struct {
	// Name is the D-Bus error name, such as org.freedesktop.DBus.Error.ServiceUnknown.
	Name string
	// Text is the first argument of the error, if that is a string.
	Text string
}

// Error returns "name: text".
func (e *Error) Error() string { return e.Name + ": " + e.Text }

// Method identifies a method of an object of a service.
type Method struct{ Destination, Path, Interface, Name string }

// Conn is a connection to a message bus. It serves one goroutine at a time. After an
// error that is not an [Error] it can only be closed.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
	// left is the number of bytes that may still be read.
	left   int
	serial uint32
}

// Dial connects to the bus that listens on a Unix socket, as the user of the process.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return newConn(ctx, nc)
}

// newConn authenticates to the bus on a connection. After an error the connection is closed.
func newConn(ctx context.Context, nc net.Conn) (*Conn, error) {
	c := &Conn{conn: nc, in: bufio.NewReader(nc)}
	defer c.begin(ctx)()
	err := c.authenticate()
	if err == nil {
		const bus = "org.freedesktop.DBus"
		err = c.exchange(Method{Destination: bus, Path: "/org/freedesktop/DBus", Interface: bus, Name: "Hello"}, nil, nil)
	}
	if err != nil {
		return nil, errors.Join(explain(ctx, err), nc.Close())
	}
	return c, nil
}

// authenticate proves the user by the socket's credentials (section "Authentication Protocol").
func (c *Conn) authenticate() error {
	if _, err := fmt.Fprintf(c.conn, "\x00AUTH EXTERNAL %x\r\n", strconv.Itoa(os.Geteuid())); err != nil {
		return err
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("%w: the bus answers %.100q", ErrAuth, line)
	}
	_, err = io.WriteString(c.conn, "BEGIN\r\n")
	return err
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// begin allows maxRead bytes. If ctx ends before the returned function is called, reading and
// writing fail until then.
func (c *Conn) begin(ctx context.Context) (end func()) {
	c.left = maxRead
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() {
		if !stop() { // a call that is complete by now leaves the connection to the next one
			<-ended
			_ = c.conn.SetDeadline(time.Time{})
		}
	}
}

// Call calls a method and stores its answer, one value, in the variable that answer points to. If
// answer is nil, the value is ignored. Call does not start a service that is not running.
func (c *Conn) Call(ctx context.Context, m Method, answer any, args ...any) error {
	defer c.begin(ctx)()
	return explain(ctx, c.exchange(m, answer, args))
}

// explain adds ctx's error to one that follows from it.
func explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) || errors.As(err, new(*Error)) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// Of a message's header (section "Message Format"): types of messages, a flag, fields, and the length before the fields.
const (
	methodCall, methodReply, errorReply    = 1, 2, 3
	noAutoStart                            = 2
	pathField, interfaceField, memberField = 1, 2, 3
	errorField, replyField, toField        = 4, 5, 6
	typesField                             = 8
	headerLength                           = 16
)

// exchange sends a call and reads until its answer.
func (c *Conn) exchange(m Method, answer any, args []any) error {
	c.serial++
	if _, err := c.conn.Write(encodeCall(m, c.serial, args)); err != nil {
		return err
	}
	for {
		head, body, err := c.read()
		if err != nil {
			return err
		}
		switch {
		case head.reply != c.serial:
		case head.kind == errorReply:
			e := &Error{Name: head.failed}
			if strings.HasPrefix(head.types, "s") {
				e.Text = body.text()
			}
			return e
		case head.kind == methodReply && answer == nil:
			return nil
		case head.kind == methodReply:
			if !body.answer(head.types, reflect.ValueOf(answer).Elem()) {
				return fmt.Errorf("answer %q for a %T: %w", head.types, answer, ErrProtocol)
			}
			return nil
		}
	}
}

// header is what a message's header says.
type header struct {
	kind          byte
	reply         uint32
	failed, types string
}

// read reads a message.
func (c *Conn) read() (h header, body *decoder, err error) {
	fixed, err := c.bytes(headerLength)
	if err != nil {
		return h, nil, err
	}
	order := map[byte]binary.ByteOrder{'l': binary.LittleEndian, 'B': binary.BigEndian}[fixed[0]]
	if order == nil {
		return h, nil, fmt.Errorf("%w: byte order %q", ErrProtocol, fixed[0])
	}
	h.kind = fixed[1]
	length := int(order.Uint32(fixed[12:]))
	fields, err := c.bytes(aligned(length, 8))
	if err != nil {
		return h, nil, err
	}
	d := &decoder{order: order, b: fields[:length]}
	for d.at < length && !d.failed {
		d.take(0, 8)
		field := d.take(1, 1)
		switch kind := d.signature(); {
		case d.failed:
		case kind == "u" && field[0] == replyField:
			h.reply = d.number()
		case kind == "u":
			d.number()
		case kind == "g" && field[0] == typesField:
			h.types = d.signature()
		case kind == "s" && field[0] == errorField:
			h.failed = d.text()
		case kind == "s", kind == "o":
			d.text()
		default:
			d.failed = true
		}
	}
	if d.failed {
		return h, nil, fmt.Errorf("%w: header %.100x", ErrProtocol, fields)
	}
	content, err := c.bytes(int(order.Uint32(fixed[4:])))
	return h, &decoder{order: order, b: content}, err
}

// bytes reads n bytes.
func (c *Conn) bytes(n int) ([]byte, error) {
	c.left -= n
	if n < 0 || c.left < 0 {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrProtocol, maxRead)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.in, b)
	return b, err
}

func aligned(n, alignment int) int { return (n + alignment - 1) / alignment * alignment }

// decoder reads values (section "Marshaling"). After a failure it returns zeros.
type decoder struct {
	order  binary.ByteOrder
	b      []byte
	at     int
	failed bool
}

// take returns n aligned bytes, or nil.
func (d *decoder) take(n, alignment int) []byte {
	at := aligned(d.at, alignment)
	if d.failed || n < 0 || at+n > len(d.b) {
		d.failed = true
		return nil
	}
	d.at = at + n
	return d.b[at:d.at]
}

func (d *decoder) number() uint32 {
	if b := d.take(4, 4); b != nil {
		return d.order.Uint32(b)
	}
	return 0
}

// text returns a string or a path.
func (d *decoder) text() string { return d.terminated(int(d.number())) }

func (d *decoder) signature() string {
	if n := d.take(1, 1); n != nil {
		return d.terminated(int(n[0]))
	}
	return ""
}

// terminated returns n bytes. A NUL byte follows them.
func (d *decoder) terminated(n int) string {
	b := d.take(n+1, 1)
	if d.failed || b[n] != 0 {
		d.failed = true
		return ""
	}
	return string(b[:n])
}

// answer stores the only value of a message with some signature. A variant's value is stored itself, and a path is a string.
func (d *decoder) answer(signature string, to reflect.Value) bool {
	if signature == "v" {
		signature = d.signature()
	}
	code, _ := typeOf(to.Type())
	if strings.ReplaceAll(signature, "o", "s") != code {
		return false
	}
	d.value(to)
	return !d.failed
}

// value stores a value of a variable's type.
func (d *decoder) value(to reflect.Value) {
	code, alignment := typeOf(to.Type())
	switch code[0] {
	case 'y':
		if b := d.take(1, alignment); b != nil {
			to.SetUint(uint64(b[0]))
		}
	case 'q':
		if b := d.take(2, alignment); b != nil {
			to.SetUint(uint64(d.order.Uint16(b)))
		}
	case 'b':
		to.SetBool(d.number() != 0)
	case 'i':
		to.SetInt(int64(int32(d.number())))
	case 's':
		to.SetString(d.text())
	case 'a':
		length := int(d.number())
		_, alignment := typeOf(to.Type().Elem())
		d.take(0, alignment)
		all, end := reflect.MakeSlice(to.Type(), 0, 0), d.at+length
		for d.at < end && !d.failed {
			element := reflect.New(to.Type().Elem()).Elem()
			d.value(element)
			all = reflect.Append(all, element)
		}
		to.Set(all)
		d.failed = d.failed || d.at != end
	case '(':
		d.take(0, alignment)
		for i := range to.NumField() {
			d.value(to.Field(i))
		}
	}
}

// typeOf returns the signature of a type's values, and their alignment.
func typeOf(t reflect.Type) (signature string, alignment int) {
	switch t.Kind() {
	case reflect.Uint8:
		return "y", 1
	case reflect.Uint16:
		return "q", 2
	case reflect.Bool:
		return "b", 4
	case reflect.Int32:
		return "i", 4
	case reflect.String:
		return "s", 4
	case reflect.Slice:
		element, _ := typeOf(t.Elem())
		return "a" + element, 4
	case reflect.Struct:
		signature = "("
		for i := range t.NumField() {
			field, _ := typeOf(t.Field(i).Type)
			signature += field
		}
		return signature + ")", 8
	}
	return "?", 1 // no message has it
}

// encoder appends values in little endian.
type encoder []byte

func (e *encoder) align(alignment int) {
	*e = append(*e, make([]byte, aligned(len(*e), alignment)-len(*e))...)
}

func (e *encoder) number(n uint32) {
	e.align(4)
	*e = binary.LittleEndian.AppendUint32(*e, n)
}

func (e *encoder) text(s string) {
	e.number(uint32(len(s)))
	*e = append(append(*e, s...), 0)
}

func (e *encoder) signature(s string) {
	*e = append(append(append(*e, byte(len(s))), s...), 0)
}

func (e *encoder) value(v reflect.Value) {
	code, alignment := typeOf(v.Type())
	e.align(alignment)
	switch code[0] {
	case 'y':
		*e = append(*e, byte(v.Uint()))
	case 'q':
		*e = binary.LittleEndian.AppendUint16(*e, uint16(v.Uint()))
	case 'b':
		if v.Bool() {
			e.number(1)
		} else {
			e.number(0)
		}
	case 'i':
		e.number(uint32(v.Int()))
	case 's':
		e.text(v.String())
	case 'a':
		at := len(*e)
		e.number(0)
		_, alignment := typeOf(v.Type().Elem())
		e.align(alignment)
		first := len(*e)
		for i := range v.Len() {
			e.value(v.Index(i))
		}
		binary.LittleEndian.PutUint32((*e)[at:], uint32(len(*e)-first))
	case '(':
		for i := range v.NumField() {
			e.value(v.Field(i))
		}
	}
}

// encodeCall returns a call's message.
func encodeCall(m Method, serial uint32, args []any) []byte {
	var body encoder
	types := ""
	for _, a := range args {
		code, _ := typeOf(reflect.TypeOf(a))
		types += code
		body.value(reflect.ValueOf(a))
	}
	e := encoder{'l', methodCall, noAutoStart, 1}
	e.number(uint32(len(body)))
	e.number(serial)
	at := len(e)
	e.number(0)
	for _, f := range []struct {
		field      byte
		kind, text string
	}{{pathField, "o", m.Path}, {interfaceField, "s", m.Interface}, {memberField, "s", m.Name}, {toField, "s", m.Destination}} {
		e.align(8)
		e = append(e, f.field)
		e.signature(f.kind)
		e.text(f.text)
	}
	if types != "" {
		e.align(8)
		e = append(e, typesField)
		e.signature("g")
		e.signature(types)
	}
	binary.LittleEndian.PutUint32(e[at:], uint32(len(e)-headerLength))
	e.align(8)
	return append(e, body...)
}
