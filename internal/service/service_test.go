package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// bed is a server with handlers.
type bed struct {
	*Server
	log *bytes.Buffer
	// held is received from when a handler has begun that waits.
	held chan struct{}
	// look makes the handler of "gone" look at its client, and gone is what it finds.
	look chan struct{}
	gone chan bool
}

func newBed(t *testing.T, options ...func(*Server)) *bed {
	t.Helper()
	b := &bed{log: &bytes.Buffer{}, held: make(chan struct{}), look: make(chan struct{}), gone: make(chan bool)}
	s := New(filepath.Join(t.TempDir(), "run", "x.sock"), slog.New(slog.NewTextHandler(b.log, nil)))
	for _, set := range options {
		set(s)
	}
	stop, err := s.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.Server = s
	end := s.Handle(map[string]Handler{
		"echo": func(_ context.Context, r *Request) (any, error) {
			var v string
			err := r.Decode(&v)
			return v, err
		},
		"refuse": func(context.Context, *Request) (any, error) {
			return nil, errors.New(strings.Repeat("<", maxError) + "cut")
		},
		"mute":  func(context.Context, *Request) (any, error) { return nil, errors.New("") },
		"panic": func(context.Context, *Request) (any, error) { panic("broken") },
		"tell":  func(context.Context, *Request) (any, error) { b.held <- struct{}{}; return nil, nil },
		"hold": func(ctx context.Context, _ *Request) (any, error) {
			b.held <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"much": func(_ context.Context, r *Request) (any, error) {
			for range 1000 {
				if err := r.Line(strings.Repeat("x", 1000)); err != nil {
					return nil, err
				}
			}
			return "end", nil
		},
		"gone": func(_ context.Context, r *Request) (any, error) {
			<-b.look
			b.gone <- r.IsGone()
			return nil, nil
		},
	})
	t.Cleanup(end)
	return b
}

// raw sends bytes and returns all that the server answers.
func (b *bed) raw(t *testing.T, text string, closes bool) string {
	t.Helper()
	c, err := net.Dial("unix", b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test ends
	_ = c.SetDeadline(await.Deadline())
	_, _ = io.WriteString(c, text)
	if closes {
		_ = c.(*net.UnixConn).CloseWrite()
	}
	answer, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%.40q: %v", text, err)
	}
	return string(answer)
}

func (b *bed) echo(t *testing.T, when string) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), await.Deadline())
	defer cancel()
	var got string
	if err := Ask(ctx, b.path, "echo", "<hello>", Into(&got)); err != nil || got != "<hello>" {
		t.Errorf("%s: %q, %v", when, got, err)
	}
}

// TestFrame: what a client may send, and its answer. After each the server answers others.
func TestFrame(t *testing.T) {
	b := newBed(t)
	for _, c := range []struct {
		name, send, want string
		closes           bool
	}{
		{"a request", `{"ask":"echo","args":"a"}` + "\n", `{"end":true,"data":"a"}` + "\n", false},
		{"unknown keys", `{"ask":"echo","more":1,"args":"a"}` + "\n", `{"end":true,"data":"a"}` + "\n", false},
		{"an unknown name", `{"ask":"other"}` + "\n", `{"end":true,"absent":true}` + "\n", false},
		{"no name", "{}\n", `{"end":true,"absent":true}` + "\n", false},
		{"no arguments", `{"ask":"echo"}` + "\n", `{"end":true,"error":"the arguments of the request: unexpected end of JSON input"}` + "\n", false},
		{"other arguments", `{"ask":"echo","args":{}}` + "\n", `{"end":true,"error":"the arguments of the request: json: cannot unmarshal object into Go value of type string"}` + "\n", false},
		{"garbage", "\x00\xff\n", `{"end":true,"error":"the request is not JSON: invalid character '\\x00' looking for beginning of value"}` + "\n", false},
		{"an empty line", "\n", `{"end":true,"error":"the request is not JSON: unexpected end of JSON input"}` + "\n", false},
		{"half a line", `{"ask":"echo","args":"a"}`, "", true},
		{"nothing", "", "", true},
		{"a long line", `{"ask":"echo","args":"` + strings.Repeat("a", MaxRequest) + `"}` + "\n", "", false},
		{"a fault", `{"ask":"panic"}` + "\n", `{"end":true,"error":"the daemon has a fault, which its log describes: broken"}` + "\n", false},
		{"an error without a text", `{"ask":"mute"}` + "\n", `{"end":true,"error":"refused"}` + "\n", false},
	} {
		if got := b.raw(t, c.send, c.closes); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		b.echo(t, "after "+c.name)
	}
	if !strings.Contains(b.log.String(), "service_test.go") {
		t.Errorf("the log does not say where the fault was: %s", b.log)
	}
}

// TestAsk: what the client function returns.
func TestAsk(t *testing.T) {
	b := newBed(t)
	var said Error
	if err := Ask(t.Context(), b.path, "refuse", nil, nil); !errors.As(err, &said) || string(said) != strings.Repeat("<", maxError) {
		t.Errorf("a long error: %d bytes, %v", len(said), err != nil)
	}
	if err := Ask(t.Context(), b.path, "other", nil, nil); !errors.Is(err, ErrAbsent) || err.Error() != fmt.Sprintf(`no process listens for "other" on %q`, b.path) {
		t.Errorf("an unknown name: %v", err)
	}
	if err := Ask(t.Context(), b.path+"x", "echo", nil, nil); !errors.Is(err, ErrAbsent) || err.Error() != fmt.Sprintf("no process listens on %q", b.path+"x") {
		t.Errorf("no file: %v", err)
	}
	if err := Tell(b.path+"x", "echo"); !errors.Is(err, ErrAbsent) {
		t.Errorf("no file: %v", err)
	}
	if err := Ask(t.Context(), b.path, "echo", strings.Repeat("a", MaxRequest), nil); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long request: %v", err)
	}
	if err := Tell(b.path, "tell"); err != nil {
		t.Errorf("tell: %v", err)
	}
	<-b.held
	lines, last := 0, ""
	if err := Ask(t.Context(), b.path, "much", nil, func(b []byte) error { lines, last = lines+1, string(b); return nil }); err != nil || lines != 1001 || last != `"end"` {
		t.Errorf("%d lines, the last is %q: %v", lines, last, err)
	}
	broken := errors.New("broken")
	if err := Ask(t.Context(), b.path, "much", nil, func([]byte) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a client that ends: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Ask(ctx, b.path, "hold", nil, nil) }()
	<-b.held
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that gives up: %v", err)
	}
}

// TestAnswers: what a daemon may answer that is no daemon of ours.
func TestAnswers(t *testing.T) {
	for _, c := range []struct{ answer, want string }{
		{"", "the answer is cut short"},
		{`{"data":1}` + "\n", "the answer is cut short"},
		{`{"end":tr`, "the answer is cut short: "},
		{"\x00\n", "the answer is cut short: invalid character"},
		{`{"end":true}`, ""},
		{`{"end":true}` + "\nrest", ""},
		{`{"node":"a","ready":true}` + "\n" + `{"end":true}` + "\n", "the answer is cut short"}, // what a former agent sent to every client
		{`{"error":"no"}` + "\n", "no"},
		{strings.Repeat("\n", 10), "the answer is cut short"},
	} {
		err := receive(strings.NewReader(c.answer), nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.answer, err, c.want)
		}
	}
}

// TestNoData: an answer without the data that a client wants is no answer.
func TestNoData(t *testing.T) {
	var got int
	for answer, want := range map[string]bool{`{"end":true}`: false, `{"end":true,"data":1}`: true, `{"data":1}` + "\n" + `{"end":true}`: true} {
		if err := receive(strings.NewReader(answer), Into(&got)); (err == nil) != want {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// TestMany: 300 clients at once, beside others that say nothing and others that do not read.
func TestMany(t *testing.T) {
	b := newBed(t)
	b.idle(t, maxClients/2)
	var many sync.WaitGroup
	for range 300 {
		many.Go(func() { b.echo(t, "one of 300 at once") })
	}
	many.Wait()
}

// TestStalled: clients that say nothing, and clients that do not read, do not keep others out for longer than their time, however many they are.
func TestStalled(t *testing.T) {
	b := newBed(t, func(s *Server) {
		s.clients, s.requestTime, s.answerTime = 10, 100*time.Millisecond, 100*time.Millisecond
	})
	b.idle(t, 40)
	b.echo(t, "beside stalled clients")
}

// idle makes clients that say nothing, and as many that do not read.
func (b *bed) idle(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		c, err := net.Dial("unix", b.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if i%2 == 0 {
			_, _ = io.WriteString(c, `{"ask":"much"}`+"\n")
		}
	}
}

// TestIsGone: a handler finds out that its client is gone.
func TestIsGone(t *testing.T) {
	b := newBed(t)
	for _, closes := range []bool{false, true} {
		c, err := net.Dial("unix", b.path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, `{"ask":"gone"}`+"\n")
		if closes {
			_ = c.Close()
		}
		b.look <- struct{}{}
		if gone := <-b.gone; gone != closes {
			t.Errorf("closed: %v, gone: %v", closes, gone)
		}
		_ = c.Close()
	}
}

// TestHandle: handlers end with their part, which waits for them, and the former ones answer again.
func TestHandle(t *testing.T) {
	b := newBed(t)
	ended := make(chan error)
	other := b.Handle(map[string]Handler{
		"echo": func(context.Context, *Request) (any, error) { return "other", nil },
		"wait": func(ctx context.Context, _ *Request) (any, error) {
			b.held <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		},
	})
	if got := b.raw(t, `{"ask":"echo","args":"a"}`+"\n", false); !strings.Contains(got, "other") {
		t.Errorf("the later handler does not answer: %s", got)
	}
	asked := make(chan error)
	go func() { asked <- Ask(t.Context(), b.path, "wait", nil, nil) }()
	<-b.held
	done := make(chan struct{})
	go func() { other(); close(done) }()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-done:
		t.Fatal("the part ended before its handler")
	}
	<-done
	if err := <-asked; err == nil {
		t.Error("the client got an answer of an ended part")
	}
	b.echo(t, "after the part")
}

// TestPass: an answer arrives although the context ends, and a context that ends is waited for no longer.
func TestPass(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	to, done := make(chan int), make(chan string, 1)
	go func() { <-to; done <- "answer"; cancel() }()
	if a, err := Pass(ctx, to, 1, done); a != "answer" || err != nil {
		t.Errorf("%q, %v", a, err)
	}
	if _, err := Pass(ctx, to, 1, done); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody receives: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() { <-to; cancel() }()
	if _, err := Pass(ctx, to, 1, done); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody answers: %v", err)
	}
}

// TestFile: a deleted socket is made again, also if its lock was deleted. One that another daemon has made in its place is not.
func TestFile(t *testing.T) {
	b := newBed(t)
	for _, removed := range []string{b.path, filepath.Dir(b.path)} {
		if err := os.RemoveAll(removed); err != nil {
			t.Fatal(err)
		}
		await.Until(t, func() bool {
			var got string
			return Ask(t.Context(), b.path, "echo", "a", Into(&got)) == nil && got == "a"
		}, func() string { return "not made again after " + removed + " was removed" })
		if err := New(b.path, nil).Open(); !errors.Is(err, ErrRuns) {
			t.Errorf("a second daemon got the socket: %v", err)
		}
	}
	if b.Fault() != nil {
		t.Error(b.Fault())
	}
}

// failing is a listener whose first Accept fails.
type failing struct {
	listener
	failed bool
}

func (f *failing) Accept() (net.Conn, error) {
	if !f.failed {
		f.failed = true
		return nil, unix.EMFILE
	}
	return f.listener.Accept()
}

// TestAccept: a process that had too many open files answers again.
func TestAccept(t *testing.T) {
	s := New(filepath.Join(t.TempDir(), "x.sock"), slog.New(slog.DiscardHandler))
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.listener = &failing{listener: s.listener}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	if err := Ask(t.Context(), s.path, "echo", nil, nil); !errors.Is(err, ErrAbsent) {
		t.Error(err)
	}
	stop()
	<-ended
	if err := s.Open(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.path); err == nil {
		t.Error("the socket is made again after the end, and nobody answers")
	}
}

// TestReplaced: a server whose socket another daemon has made anew neither takes nor deletes it.
func TestReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "x.sock")
	first, second := New(path, nil), New(path, nil)
	if err := errors.Join(first.Open(), os.RemoveAll(filepath.Dir(path)), second.Open()); err != nil {
		t.Fatal(err)
	}
	if err := first.Open(); !errors.Is(err, ErrRuns) || !errors.Is(first.Fault(), ErrRuns) {
		t.Errorf("beside another daemon: %v", err)
	}
	first.Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the other daemon's socket was deleted: %v", err)
	}
	second.Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left")
	}
}

// TestListen: only one process listens at a time, and the socket of a killed process is replaced.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "x.sock")
	l, unlock, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", file, st.Mode(), err, want)
		}
	}
	if _, _, err := Listen(path); !errors.Is(err, ErrRuns) || !strings.Contains(err.Error(), fmt.Sprintf("a daemon runs already, process %d", os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	unlock()
	l, unlock, err = Listen(path)
	if err != nil {
		t.Fatalf("after a dead one: %v", err)
	}
	defer l.Close()
	unlock()
	if _, _, err := Listen(path); err == nil {
		t.Error("took the socket of one that answers")
	}
}

// TestListenMode: the socket's file has its mode from the beginning.
func TestListenMode(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	l, unlock, err := Listen(filepath.Join(dir, "x.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	defer l.Close()
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the mode was changed after bind: %d bytes of events, %v", n, err)
	}
}

// FuzzRequest: a request that is taken is one that send writes.
func FuzzRequest(f *testing.F) {
	for _, line := range []string{`{"ask":"echo","args":{"a":[1]}}`, `{"ask":1}`, "{}", "null", "[", `{"ask":"a","ask":"b"}`, "\xff", `{"args":"\ud800"}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r := &Request{}
		name, err := r.parse(line)
		if err != nil {
			return
		}
		if len(r.args) > 0 && !json.Valid(r.args) {
			t.Errorf("%q: the arguments %q", line, r.args)
		}
		if len(name) > len(line)*3 {
			t.Errorf("%q: the name %q", line, name)
		}
	})
}

// FuzzAnswer: an answer ends once, with data that is JSON.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{`{"data":1}` + "\n" + `{"end":true}` + "\n", `{"end":true,"error":"no"}`, `{"absent":true}`, "\n\n", `{"end":true,"data":"\u003c"}`} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		_ = receive(bytes.NewReader(answer), func(data []byte) error {
			if !json.Valid(data) {
				t.Errorf("%q: the data %q", answer, data)
			}
			return nil
		})
	})
}
