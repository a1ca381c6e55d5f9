package web

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// Conns are the open connections of clients. The zero value has none.
type Conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
}

// conn is an open connection.
type conn struct {
	net.Conn
	of *Conns
}

// Close closes the connection.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// CloseFrom closes the connections whose own address the node has lost. Their requests fail at once:
// the kernel would repeat the packets for minutes, and no answer can arrive.
func (s *Conns) CloseFrom(lost func(netip.Addr) bool) {
	var from []*conn
	s.mu.Lock()
	for c := range s.open {
		if a, ok := c.LocalAddr().(*net.TCPAddr); ok && lost(a.AddrPort().Addr().Unmap().WithZone("")) {
			from = append(from, c)
		}
	}
	s.mu.Unlock()
	for _, c := range from {
		_ = c.Close()
	}
}

// dialFunc connects to an address.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// register returns a function that connects and adds the connection.
func (s *Conns) register(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &conn{raw, s}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open == nil {
			s.open = map[*conn]struct{}{}
		}
		s.open[c] = struct{}{}
		return c, nil
	}
}
