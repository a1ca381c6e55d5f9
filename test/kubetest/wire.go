package kubetest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Wire is a connection to the server that a test can cut. Like a load balancer, it forwards bytes without reading them.
type Wire struct {
	// Address is the host:port on which it listens, also while it is cut.
	Address string

	to     string
	accept sync.WaitGroup

	mu    sync.Mutex
	l     net.Listener
	conns map[net.Conn]bool
}

// NewWire returns a wire to the server.
func (s *Server) NewWire(tb testing.TB) *Wire {
	tb.Helper()
	w := &Wire{Address: "127.0.0.1:0", to: s.Address, conns: map[net.Conn]bool{}}
	w.Join(tb)
	tb.Cleanup(w.Cut)
	return w
}

// Join connects the wire to the server.
func (w *Wire) Join(tb testing.TB) {
	tb.Helper()
	l, err := net.Listen("tcp", w.Address)
	if err != nil {
		tb.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.l, w.Address = l, l.Addr().String()
	w.accept.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.accept.Go(func() { w.carry(c) })
		}
	})
}

// Cut closes every connection and stops listening until Join.
func (w *Wire) Cut() {
	w.mu.Lock()
	if w.l != nil {
		_ = w.l.Close()
		w.l = nil
	}
	for c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.accept.Wait()
}

func (w *Wire) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer far.Close()
	if !w.hold(near, far) {
		return
	}
	defer w.drop(near, far)
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(far, near); done <- struct{}{} }()
	go func() { _, _ = io.Copy(near, far); done <- struct{}{} }()
	<-done
	_, _ = near.Close(), far.Close()
	<-done
}

// hold records connections, unless the wire was cut meanwhile.
func (w *Wire) hold(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		w.conns[c] = w.l != nil
	}
	return w.l != nil
}

func (w *Wire) drop(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.conns, c)
	}
}
