package grpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serve serves gRPC calls on a socket.
func serve(t *testing.T, answer http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: answer, Protocols: protocols, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return socket
}

// sends accepts one connection, sends bytes when the request has come, and reads until the client closes it. A connection that ends
// before the request is another error.
func sends(t *testing.T, b []byte) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = l.Close() // HTTP/2 tries some requests again
		r := bufio.NewReader(c)
		_, _ = r.Discard(len(http2.ClientPreface))
		for f := http2.NewFramer(nil, r); ; {
			if frame, err := f.ReadFrame(); err != nil || frame.Header().Type == http2.FrameHeaders {
				break
			}
		}
		read := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, r); close(read) }()
		_, _ = c.Write(b)
		_ = c.(*net.UnixConn).CloseWrite() //nolint:forcetypeassert // of a Unix socket
		<-read
		_ = c.Close()
	}()
	return socket
}

func call(t *testing.T, socket string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return Call(ctx, socket, "/v1.Service/Method", []byte("question"))
}

func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// TestReply: messages of all sizes, and a refusal with and without a message.
func TestReply(t *testing.T) {
	for _, size := range []int{0, 1, 15_000, 40_000, maxReply} {
		want := bytes.Repeat([]byte{7}, size)
		have, err := call(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if r.URL.Path != "/v1.Service/Method" || r.Header.Get("Content-Type") != "application/grpc" || r.Header.Get("Te") != "trailers" || string(b) != "\x00\x00\x00\x00\x08question" || err != nil {
				t.Errorf("%s %v %q, %v", r.URL, r.Header, b, err)
			}
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write(framed(want))
			w.Header().Set("Grpc-Status", "0")
		}))
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("%d bytes: %d, %v", size, len(have), err)
		}
	}
	for _, early := range []bool{false, true} {
		_, err := call(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if !early {
				w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
				w.WriteHeader(http.StatusOK)
			}
			w.Header().Set("Grpc-Status", "8")
			w.Header().Set("Grpc-Message", "rejected by rate limit: 100%25 ä")
		}))
		var refused *StatusError
		if !errors.As(err, &refused) || refused.Code != ResourceExhausted || refused.Message != "rejected by rate limit: 100% ä" {
			t.Errorf("early %v: have %v", early, err)
		}
	}
}

// TestHostile: each answer is an error that says what is wrong, before the deadline.
func TestHostile(t *testing.T) {
	status := func(code int, body, grpc string) string {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Grpc-Status")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
			w.Header().Set("Grpc-Status", grpc)
		})
	}
	frames := func(write func(f *http2.Framer)) string {
		var b bytes.Buffer
		f := http2.NewFramer(&b, nil)
		_ = f.WriteSettings()
		write(f)
		return sends(t, b.Bytes())
	}
	var fields bytes.Buffer
	e := hpack.NewEncoder(&fields)
	_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	for i := range 100 {
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprint("x", i), Value: strings.Repeat("x", 1000)})
	}
	for name, c := range map[string]struct{ socket, want string }{
		"nothing": {sends(t, nil), ""},
		"HTTP/1":  {sends(t, []byte("HTTP/1.1 400 Bad Request\r\n\r\n")), "http2"},
		"garbage": {sends(t, bytes.Repeat([]byte{0xff}, 1<<16)), "http2"},
		"reset":   {frames(func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream) }), ""},
		"goaway":  {frames(func(f *http2.Framer) { _ = f.WriteGoAway(0, http2.ErrCodeNo, nil) }), "no such file"},
		"endless ping": {frames(func(f *http2.Framer) {
			for range 100_000 {
				_ = f.WritePing(false, [8]byte{})
			}
		}), ""},
		"fields": {frames(func(f *http2.Framer) {
			b := fields.Bytes()
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:16000]})
			for b = b[16000:]; len(b) > 16000; b = b[16000:] {
				_ = f.WriteContinuation(1, false, b[:16000])
			}
			_ = f.WriteContinuation(1, true, b)
		}), "PROTOCOL_ERROR"},
		"status":         {status(http.StatusNotFound, "", "0"), "HTTP status 404"},
		"no grpc-status": {status(http.StatusOK, string(framed([]byte("x"))), ""), `grpc-status ""`},
		"large":          {status(http.StatusOK, string(framed(make([]byte, maxReply+1))), "0"), "more than 1048576 bytes"},
		"length":         {status(http.StatusOK, "\x00\x00\x00\x00\x02x", "0"), "want one message"},
		"compressed":     {status(http.StatusOK, "\x01\x00\x00\x00\x01x", "0"), "want one message"},
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := call(t, c.socket); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("have %q, %v; want %q", m, err, c.want)
			}
		})
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
