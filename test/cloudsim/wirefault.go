package cloudsim

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// sending is an answer while it is sent.
type sending struct {
	w http.ResponseWriter
	r *http.Request
	// stop ends a lasting fault: the simulator ends, or the fault is healed.
	stop  <-chan struct{}
	reply *reply
	delay time.Duration
}

// errCut means that the connection must be closed without further data.
var errCut = errors.New("the connection is cut")

// wireKinds change how answers are sent.
func wireKinds() []*kind {
	return []*kind{
		{name: refuse, help: "no process listens, and open connections end"},
		{name: "reset", help: "the connection is reset instead of answered", early: true, send: (*sending).reset},
		{name: "hang", help: "the request is taken and never answered", early: true, send: func(s *sending) error {
			return s.wait(maxDelay)
		}},
		{name: "slow-headers", help: "the answer begins after --delay", early: true, send: func(s *sending) error {
			return s.wait(s.delay)
		}},
		{name: "slow-body", help: "the body comes in ten pieces over --delay", send: (*sending).slowly},
		{name: "cut", help: "the connection ends in the middle of the body", send: (*sending).cut},
		{name: "endless", help: "the body does not end", send: (*sending).endless},
	}
}

// wait waits until the client closes or the fault is healed. After healing the answer is sent.
func (s *sending) wait(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-s.stop:
		return nil
	case <-s.r.Context().Done():
		return context.Cause(s.r.Context())
	}
}

// reset ends a connection with RST: data that was not read or sent is lost, and the client sees an error.
func (s *sending) reset() error {
	h, ok := s.w.(http.Hijacker)
	if !ok {
		return errCut
	}
	c, _, err := h.Hijack()
	if err != nil {
		return err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return errors.Join(errCut, c.Close())
}

// head sends status and headers, including the length of the body.
func (s *sending) head(length int) {
	for name, values := range s.reply.header {
		s.w.Header()[name] = values
	}
	if length >= 0 {
		s.w.Header().Set("Content-Length", strconv.Itoa(length))
	}
	s.w.WriteHeader(s.reply.status)
}

// piece sends a part of the body at once.
func (s *sending) piece(b []byte) error {
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

func (s *sending) slowly() error {
	body := s.reply.body
	s.head(len(body))
	const pieces = 10
	for i := range pieces {
		if err := s.piece(body[len(body)*i/pieces : len(body)*(i+1)/pieces]); err != nil {
			return err
		}
		if err := s.wait(s.delay / pieces); err != nil {
			return err
		}
	}
	return nil
}

func (s *sending) cut() error {
	s.head(len(s.reply.body) + 1)
	return errors.Join(s.piece(s.reply.body[:len(s.reply.body)/2]), errCut)
}

func (s *sending) endless() error {
	s.head(-1)
	if err := s.piece(s.reply.body); err != nil {
		return err
	}
	for more := spaces(64 << 10); ; {
		select {
		case <-s.stop:
			return errCut
		default:
		}
		if err := s.piece(more); err != nil {
			return err
		}
	}
}

func spaces(n int) []byte { return bytes.Repeat([]byte{' '}, n) }

// sayGzip compresses the body without a request for it.
func sayGzip(_ *fault, r *reply) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(r.body) // a buffer takes everything
	_ = z.Close()
	r.body = b.Bytes()
	r.header.Set("Content-Encoding", "gzip")
}
