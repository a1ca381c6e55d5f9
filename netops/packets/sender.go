package packets

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/reach"
)

// Answers are the answers to the packets of a Sender.
type Answers = reach.Answers

// Refusal is an ICMP error, or an error of the sending host.
type Refusal = reach.Refusal

// The values of Answers.Port.
const (
	PortConnected = reach.Connected
	PortAnswered  = reach.Answered
	PortRefused   = reach.Refused
)

// Sender sends a few packets from one address to another.
type Sender struct {
	net *netops.Net
	ns  *netops.Namespace
	to  netip.Addr
	s   *reach.Sender
}

// OpenSender opens the sockets in ns. With isUDP it sends a UDP datagram in place of a TCP SYN.
func OpenSender(n *netops.Net, ns *netops.Namespace, from, to netip.Addr, isUDP bool) (*Sender, error) {
	s := &Sender{net: n, ns: ns, to: to}
	err := ns.Run(func() (err error) {
		s.s, err = reach.Open(from, to, isUDP)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ID is the source port of TCP or UDP and the identifier of ICMP.
func (s *Sender) ID() uint16 { return s.s.ID }

// Close closes the sockets.
func (s *Sender) Close() { s.s.Close() }

// Send sends an ARP request for the next address of the route, a small and a large ICMP
// echo request, the latter as large as the route's MTU and with the DF bit, and a TCP SYN or an empty UDP datagram
// to the port, if it is not 0. It waits for the answers, at most for patience.
func (s *Sender) Send(ctx context.Context, port uint16, patience time.Duration) (Answers, error) {
	r := reach.Request{Port: port}
	way, err := s.net.Way(ctx, s.ns, netops.Packet{To: s.to})
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
	err = s.ns.Run(func() (err error) {
		a, err = s.s.Send(ctx, r, patience)
		return err
	})
	return a, err
}

// DialUDP opens a UDP socket to an address in ns.
func DialUDP(ctx context.Context, ns *netops.Namespace, to netip.AddrPort) (conn net.Conn, err error) {
	err = ns.Run(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "udp", to.String())
		return err
	})
	return conn, err
}

// Announce announces those of the addresses that a link has to the other hosts on the link, so that they send packets
// for them to its MAC. It returns the announced addresses. A link without a MAC announces none.
func Announce(ctx context.Context, n *netops.Net, ns *netops.Namespace, link string, addrs []netip.Addr) (announced []netip.Addr, err error) {
	l, err := n.Link(ctx, ns, link)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(l.MAC)
	if err != nil || len(mac) != 6 || !l.Up {
		return nil, nil //nolint:nilerr // without an Ethernet address there is nothing to announce
	}
	have, err := n.Addresses(ctx, ns, link)
	if err != nil {
		return nil, err
	}
	err = ns.Run(func() error {
		for _, a := range addrs {
			if !slices.ContainsFunc(have, func(p netip.Prefix) bool { return p.Addr() == a }) {
				continue
			}
			if err := reach.Announce(l.Index, mac, a); err != nil {
				return err
			}
			announced = append(announced, a)
		}
		return nil
	})
	return announced, err
}
