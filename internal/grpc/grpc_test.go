package grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

// encode encodes header fields as a server does that was told not to use its dynamic table.
func encode(fields ...hpack.HeaderField) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for _, f := range fields {
		if err := e.WriteField(f); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// reply encodes a server's answer: its settings, a ping, header fields, a message and trailers.
func reply(message []byte, status, text string) []byte {
	b := appendFrame(nil, typeSettings, 0, 0, []byte{0, 5, 0, 0x10, 0, 0})
	b = appendFrame(b, typeSettings, flagAck, 0, nil)
	b = appendFrame(b, typePing, 0, 0, []byte("12345678"))
	head := encode(hpack.HeaderField{Name: ":status", Value: "200"}, hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	b = appendFrame(b, typeHeaders, 0, 1, head[:1])
	b = appendFrame(b, typeContinuation, flagEndHeaders, 1, head[1:])
	data := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	for part := range slices.Chunk(data, 16000) {
		b = appendFrame(b, typeData, 0, 1, part)
	}
	trailers := encode(hpack.HeaderField{Name: "grpc-status", Value: status}, hpack.HeaderField{Name: "grpc-message", Value: text})
	return appendFrame(b, typeHeaders, flagEndStream|flagEndHeaders, 1, trailers)
}

// conn is a connection whose server has sent all that it will send.
type conn struct {
	io.Reader
	sent bytes.Buffer
}

func (c *conn) Write(p []byte) (int, error) { return c.sent.Write(p) }

func receive(b []byte) ([]byte, *conn, error) {
	c := &conn{Reader: bytes.NewReader(b)}
	var a answer
	if err := a.read(c); err != nil {
		return nil, c, err
	}
	m, err := a.message()
	return m, c, err
}

// TestReply: an answer as another implementation of HTTP/2 encodes it.
func TestReply(t *testing.T) {
	for _, size := range []int{0, 1, 15_000, 40_000, maxReply} {
		want := bytes.Repeat([]byte{7}, size)
		have, c, err := receive(reply(want, "0", ""))
		if err != nil || !bytes.Equal(have, want) {
			t.Fatalf("%d bytes: %d, %v", size, len(have), err)
		}
		acks := appendFrame(appendFrame(nil, typeSettings, flagAck, 0, nil), typePing, flagAck, 0, []byte("12345678"))
		if !bytes.Equal(c.sent.Bytes(), acks) {
			t.Errorf("sent % x", c.sent.Bytes())
		}
	}
	_, _, err := receive(reply(nil, "8", "rejected by rate limit: 100%25 ä"))
	var refused *StatusError
	if !errors.As(err, &refused) || refused.Code != ResourceExhausted || refused.Message != "rejected by rate limit: 100% ä" {
		t.Errorf("have %v", err)
	}
}

// TestHostile: each answer is an error that says what is wrong.
func TestHostile(t *testing.T) {
	good := reply([]byte("x"), "0", "")
	frame := func(kind, flags byte, stream uint32, payload string) []byte {
		return appendFrame(nil, kind, flags, stream, []byte(payload))
	}
	for _, c := range []struct {
		name string
		sent []byte
		want string
	}{
		{"nothing", nil, "unexpected EOF"},
		{"cut", good[:len(good)-3], "unexpected EOF"},
		{"HTTP/1", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "frame 48 54 54 50"},
		{"push", frame(5, 0, 1, "abcd"), "frame 00 00 04 05"},
		{"reset", frame(3, 0, 1, "\x00\x00\x00\x08"), "frame 00 00 04 03 00 00 00 00 01: 00 00 00 08"},
		{"goaway", frame(7, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x00"), "frame 00 00 08 07"},
		{"stream", frame(typeData, 0, 3, "abcd"), "frame 00 00 04 00 00 00 00 00 03"},
		{"padding", frame(typeData, flagPadded, 1, "\xff"), "frame 00 00 01 00 08"},
		{"no fields", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, ""), `HTTP status ""`},
		{"large", reply(make([]byte, maxReply+1), "0", ""), "more than 1048576 bytes"},
		{"endless pings", bytes.Repeat(frame(typePing, 0, 0, "12345678"), maxBytes/17+1), "unexpected EOF"},
		{"endless fields", bytes.Repeat(frame(typeContinuation, 0, 1, strings.Repeat("x", 1000)), 17), "more than"},
		{"dynamic table", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, "\xbe"), "invalid header fields"},
		{"number", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, "\xff\xff\xff\xff\xff\xff"), "invalid header fields"},
		{"end of string in a string", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, "\x00\x84\xff\xff\xff\xff\x00"), "invalid header fields"},
		{"zero padding", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, "\x00\x81\x00\x00"), "invalid header fields"},
		{"status", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, "\x8d"), `HTTP status "404"`},
		{"no grpc-status", frame(typeHeaders, flagEndHeaders|flagEndStream, 1, "\x88"), `grpc-status ""`},
		{"length", bytes.Replace(good, []byte{1, 'x', 0, 0}, []byte{2, 'x', 0, 0}, 1), "want one message"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if m, _, err := receive(c.sent); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("have %q, %v; want %q", m, err, c.want)
			}
		})
	}
}

// TestFields compares the decoder with another one, for every byte and for the whole static table.
func TestFields(t *testing.T) {
	var all []hpack.HeaderField
	for i := range 256 {
		all = append(all, hpack.HeaderField{Name: "grpc-message", Value: strings.Repeat(string([]byte{byte(i), 'a'}), 3) + strings.Repeat("0", i)})
	}
	for _, f := range all {
		var a answer
		if err := a.readFields(encode(hpack.HeaderField{Name: ":status", Value: "200"}, f)); err != nil || a.text != f.Value || a.http != "200" {
			t.Errorf("%q: have %q, %v", f.Value, a.text, err)
		}
	}
	for i := 1; i <= 61; i++ {
		var a answer
		if err := a.readFields([]byte{0x80 | byte(i)}); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		var want string
		_, _ = hpack.NewDecoder(0, func(f hpack.HeaderField) {
			if f.Name == ":status" {
				want = f.Value
			}
		}).Write([]byte{0x80 | byte(i)})
		if a.http != want {
			t.Errorf("%d: status %q, want %q", i, a.http, want)
		}
	}
}

// TestCallEnds: a server that accepts and is silent does not delay a call beyond its deadline.
func TestCallEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := Call(t.Context(), socket, "/x", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no server: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Call(ctx, socket, "/x", nil); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("silent server: %v", err)
	}
}

// FuzzReceive: bytes of a server are a reply or an error, and the decoder of header fields agrees with another one.
func FuzzReceive(f *testing.F) {
	f.Add(reply([]byte("x"), "0", ""))
	f.Add(reply(nil, "2", "a b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, _, err := receive(b); err == nil && len(m) > maxReply {
			t.Errorf("%d bytes", len(m))
		}
		var a, want answer
		d := hpack.NewDecoder(0, func(f hpack.HeaderField) {
			switch f.Name {
			case ":status":
				want.http = f.Value
			case "grpc-status":
				want.status = f.Value
			case "grpc-message":
				want.text = f.Value
			}
		})
		_, err := d.Write(b)
		if err == nil {
			err = d.Close()
		}
		if mine := a.readFields(b); err == nil && mine == nil && (a.http != want.http || a.status != want.status || a.text != want.text) {
			t.Errorf("have %+v, want %+v", a, want)
		} else if err != nil && mine == nil {
			t.Errorf("accepted, but %v", err)
		}
	})
}
