package dbus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/bus"
)

// busName is the bus' own name and interface.
const busName = "org.freedesktop.DBus"

// own returns a method of the bus.
func own(name string) Method {
	return Method{Destination: busName, Path: "/org/freedesktop/DBus", Interface: busName, Name: name}
}

// startBus starts a real bus.
func startBus(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "bus")
	bus.Listen(t, socket)
	return socket
}

// TestBus calls the methods of a real bus.
func TestBus(t *testing.T) {
	ctx := t.Context()
	c, err := Dial(ctx, startBus(t))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := c.Call(ctx, own("ListNames"), &names); err != nil || !slices.Contains(names, busName) {
		t.Errorf("names %q, %v", names, err)
	}
	var has bool
	if err := c.Call(ctx, own("NameHasOwner"), &has, busName); err != nil || !has {
		t.Errorf("the bus has no owner: %v, %v", has, err)
	}
	if err := c.Call(ctx, own("NameHasOwner"), &has, "org.example.None"); err != nil || has {
		t.Errorf("a name without an owner has one: %v, %v", has, err)
	}
	var failed *Error
	if err := c.Call(ctx, own("GetNameOwner"), new(string), "org.example.None"); !errors.As(err, &failed) || failed.Name != busName+".Error.NameHasNoOwner" || failed.Text == "" {
		t.Errorf("owner of none: %v", err)
	}
	if err := c.Call(ctx, Method{Destination: "org.example.None", Path: "/", Interface: "org.example", Name: "X"}, new(string)); !errors.As(err, &failed) || failed.Name != "org.freedesktop.DBus.Error.ServiceUnknown" && failed.Name != "org.freedesktop.DBus.Error.NameHasNoOwner" {
		t.Errorf("call to none: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Call(ctx, own("ListNames"), &names); err == nil {
		t.Error("a closed connection answers")
	}
}

// TestAnswers: an answer of an unexpected type is an error, and a message that is not an answer is
// ignored.
func TestAnswers(t *testing.T) {
	c, err := Dial(t.Context(), startBus(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is lost with it
	for _, answer := range []any{new(string), new(bool), new(int), new([]bool), new([]struct{ A, B string })} {
		if err := c.Call(t.Context(), own("ListNames"), answer); !errors.Is(err, ErrProtocol) {
			t.Errorf("names into a %T: %v", answer, err)
		}
	}
	if err := c.Call(t.Context(), own("ListNames"), nil); err != nil {
		t.Error(err)
	}
	var path string
	get := Method{Destination: busName, Path: "/org/freedesktop/DBus", Interface: "org.freedesktop.DBus.Properties", Name: "Get"}
	var features []string
	if err := c.Call(t.Context(), get, &features, busName, "Features"); err != nil || len(features) == 0 {
		t.Errorf("property %q, %v", features, err)
	}
	if err := c.Call(t.Context(), get, &path, busName, "Features"); !errors.Is(err, ErrProtocol) {
		t.Errorf("a list into a string: %q, %v", path, err)
	}
}

// The stages of a connection after which a fake bus stops answering.
const (
	accept  = iota // accepts only
	admit          // accepts the client
	greet          // answers Hello
	ignored        // answers no other call
)

// serve is a bus that stops answering at a stage. After its last answer it sends tail. It returns when
// the client closes the connection.
func serve(conn net.Conn, until int, tail []byte) {
	in := bufio.NewReader(conn)
	if until >= admit {
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
		if _, err := io.WriteString(conn, "OK 0123\r\n"); err != nil {
			return
		}
		if _, err := in.ReadString('\n'); err != nil { // BEGIN
			return
		}
	}
	if until >= greet {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if _, err := conn.Write(reply(call.Serial(), ":1.1")); err != nil {
			return
		}
	}
	go func() { _, _ = conn.Write(tail) }()
	_, _ = io.Copy(io.Discard, in)
}

// reply returns an answer with one string.
func reply(serial uint32, text string) []byte {
	m := dbus.Message{Type: dbus.TypeMethodReply, Body: []any{text}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(serial), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(text)),
	}}
	var b bytes.Buffer
	if err := m.EncodeTo(&b, binary.LittleEndian); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// fake starts a fake bus for one client, and returns its socket.
func fake(t *testing.T, until int, tail []byte) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := l.Accept(); err == nil {
			serve(conn, until, tail)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done // it ends when the client has closed its end
	})
	return socket
}

// TestSilent: if a bus stops answering, at any stage, the call ends with the context, and no goroutine
// and no descriptor stays.
func TestSilent(t *testing.T) {
	for until := accept; until <= ignored; until++ {
		t.Run(fmt.Sprint(until), func(t *testing.T) {
			goroutines, files := runtime.NumGoroutine(), openFiles(t)
			t.Run("bus", func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				c, err := Dial(ctx, fake(t, until, nil))
				if until < greet {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("dial: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Call(ctx, own("ListNames"), nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("call: %v", err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			await.Until(t, func() bool {
				return runtime.NumGoroutine() <= goroutines && openFiles(t) <= files
			}, func() string {
				return fmt.Sprintf("%d goroutines and %d files are left of %d and %d", runtime.NumGoroutine(), openFiles(t), goroutines, files)
			})
		})
	}
}

// ender ends a context when it has read.
type ender struct {
	net.Conn
	end context.CancelFunc
}

func (e *ender) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	e.end()
	return n, err
}

// TestEndsWithAnswer: after a call whose context ends with its answer the connection serves the next call.
func TestEndsWithAnswer(t *testing.T) {
	nc, err := net.Dial("unix", startBus(t))
	if err != nil {
		t.Fatal(err)
	}
	e := &ender{Conn: nc, end: func() {}}
	c, err := newConn(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is lost with it
	for n := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if n > 0 { // the answer to the first call comes behind signals
			e.end = cancel
		}
		if err := c.Call(ctx, own("GetId"), nil); err != nil {
			t.Fatal(err)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestRefused: the errors of a bus that refuses the user and of one that closes the connection differ.
func TestRefused(t *testing.T) {
	for answer, refused := range map[string]bool{"REJECTED\r\n": true, "NONSENSE\r\n": true, "REJECTED EXT": false, "": false} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = bufio.NewReader(theirs).ReadString('\n')
			_, _ = io.WriteString(theirs, answer)
			_ = theirs.Close()
		}()
		if _, err := newConn(t.Context(), ours); err == nil || errors.Is(err, ErrAuth) != refused {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

// TestFlood: the connection to a bus that sends more than the limit is closed.
func TestFlood(t *testing.T) {
	signal := dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/")), dbus.FieldInterface: dbus.MakeVariant("a.b"), dbus.FieldMember: dbus.MakeVariant("c"),
	}}
	var one bytes.Buffer
	if err := signal.EncodeTo(&one, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	for name, tail := range map[string][]byte{
		"signals": bytes.Repeat(one.Bytes(), 2*maxRead/one.Len()),
		"answer":  reply(2, strings.Repeat("x", 2*maxRead)),
		"zeros":   make([]byte, 2*maxRead),
		"nothing": bytes.Repeat([]byte("l"), 2*maxRead),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Dial(t.Context(), fake(t, ignored, tail))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Call(t.Context(), own("ListNames"), nil); err == nil || errors.As(err, new(*Error)) {
				t.Errorf("error %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzMessage: no bytes of a bus cause a panic or a wait beyond the context.
func FuzzMessage(f *testing.F) {
	lost := dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/")), dbus.FieldInterface: dbus.MakeVariant(busName),
		dbus.FieldMember: dbus.MakeVariant("NameLost"), dbus.FieldSender: dbus.MakeVariant(busName),
	}}
	call := dbus.Message{Type: dbus.TypeMethodCall, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/a")), dbus.FieldMember: dbus.MakeVariant("Ping"),
	}}
	for _, m := range []*dbus.Message{&lost, &call} {
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			var b bytes.Buffer
			if err := m.EncodeTo(&b, order); err != nil {
				f.Fatal(err)
			}
			f.Add(b.Bytes())
		}
	}
	f.Add(reply(2, "abc"))
	f.Add([]byte("l\x02\x00\x01\xff\xff\xff\x07"))
	f.Fuzz(func(t *testing.T, tail []byte) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(theirs, ignored, tail)
			_ = theirs.Close()
		}()
		c, err := newConn(t.Context(), ours)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var texts []string
		_ = c.Call(ctx, own("ListNames"), &texts)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}
