package agent_test

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// pod2 is an address of a node that answers as a pod does.
type pod2 struct {
	*node
	addr netip.Addr
}

func (p *pod2) echo(t *testing.T) {
	t.Helper()
	var c *net.UDPConn
	p.ns.Do(t, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.addr, echoPort)))
		return err
	})
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], from)
		}
	}()
}

// asksAddr tells whether an address answers the pod once.
func (p *pod) asksAddr(to netip.Addr) bool {
	t := p.node.w.t
	t.Helper()
	var c *net.UDPConn
	p.ns.Do(t, func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
		return err
	})
	defer c.Close()
	b := []byte("are you there?")
	if _, err := c.Write(b); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := c.Read(b)
	return err == nil
}
