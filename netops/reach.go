package netops

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops/internal/reach"
)

// Answers are the answers to the packets of a Sender.
type Answers = reach.Answers

// Refusal is an ICMP error, or an error of the sending host.
type Refusal = reach.Refusal

// The values of Answers.TCP.
const (
	TCPConnected = reach.Connected
	TCPRefused   = reach.Refused
)

// Sender sends a few packets from one address to another.
type Sender struct {
	net *Net
	ns  *Namespace
	to  netip.Addr
	s   *reach.Sender
}

// OpenSender opens the sockets in ns, or in the host's namespace for a nil ns.
func (n *Net) OpenSender(ns *Namespace, from, to netip.Addr) (*Sender, error) {
	s := &Sender{net: n, ns: ns, to: to}
	err := n.observed(ns).visit(func() (err error) {
		s.s, err = reach.Open(from, to)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ID is the source port of TCP and the identifier of ICMP.
func (s *Sender) ID() uint16 { return s.s.ID }

// Close closes the sockets.
func (s *Sender) Close() { s.s.Close() }

// Send sends an ARP request for the next address of the route, a small and a large ICMP
// echo request, the latter as large as the route's MTU and with the DF bit, and a TCP SYN
// to the port, if it is not 0. It waits for the answers, at most for patience.
func (s *Sender) Send(ctx context.Context, port uint16, patience time.Duration) (Answers, error) {
	r := reach.Request{Port: port}
	way, err := s.net.Way(ctx, s.ns, Packet{To: s.to})
	if err != nil {
		return Answers{}, err
	}
	if !way.Local {
		l, err := s.net.Link(ctx, s.ns, way.Link)
		if err != nil {
			return Answers{}, err
		}
		r.Link, r.Next = l.Index, s.to
		if way.Via.IsValid() {
			r.Next = way.Via
		}
		r.MAC, _ = net.ParseMAC(l.MAC) // a link without a MAC has no ARP
	}
	var a Answers
	err = s.net.observed(s.ns).visit(func() (err error) {
		a, err = s.s.Send(ctx, r, patience)
		return err
	})
	return a, err
}
