package agent_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cnibox/cnibox/test/await"
)

// transfer sends from one pod to another over a TCP connection until end is called. end returns the
// longest time without data, and fails the test if data was lost.
func (w *world) transfer(from, to *pod) (end func() time.Duration) {
	w.t.Helper()
	var l *net.TCPListener
	to.ns.Do(w.t, func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.addr4, echoPort)))
		return err
	})
	w.t.Cleanup(func() { l.Close() })
	var c *net.TCPConn
	from.ns.Do(w.t, func() (err error) {
		c, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		return err
	})
	w.t.Cleanup(func() { c.Close() })
	type arrived struct {
		bytes   int64
		silence time.Duration
		err     error
	}
	received, sent, stop := make(chan arrived, 1), make(chan int64, 1), make(chan struct{})
	go func() {
		a := arrived{}
		a.bytes, a.silence, a.err = receive(l)
		received <- a
	}()
	go func() {
		var n int64
		for b := make([]byte, 1<<16); ; {
			_ = c.SetWriteDeadline(await.Deadline())
			k, err := c.Write(b)
			n += int64(k)
			select {
			case <-stop:
			default:
				if err == nil {
					continue
				}
				w.t.Errorf("send: %v", err)
			}
			_ = c.Close()
			sent <- n
			return
		}
	}()
	return func() time.Duration {
		w.t.Helper()
		close(stop)
		n, a := <-sent, <-received
		if a.err != nil || a.bytes != n || n == 0 {
			w.t.Errorf("%d bytes arrived of %d: %v", a.bytes, n, a.err)
		}
		return a.silence
	}
}

// receive reads one connection to its end.
func receive(l net.Listener) (n int64, silence time.Duration, err error) {
	s, err := l.Accept()
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	last := time.Now()
	for b := make([]byte, 1<<16); ; {
		_ = s.SetReadDeadline(await.Deadline())
		k, err := s.Read(b)
		n += int64(k)
		silence = max(silence, time.Since(last))
		last = time.Now()
		if errors.Is(err, io.EOF) {
			return n, silence, nil
		}
		if err != nil {
			return n, silence, err
		}
	}
}

// TestTransferSoak: a TCP connection between pods of two nodes continues while agents stop, are
// killed and start again, for CNIBOX_SOAK seconds. In a soak of a minute or more, which needs an
// idle machine, it is never silent for a second.
func TestTransferSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	w := newWorld(t, 2, vxlan)
	pods := w.startAll()
	w.reach(false, pods...)
	end := w.transfer(pods[0], pods[1])
	soak, _ := strconv.Atoi(os.Getenv("CNIBOX_SOAK"))
	for over, round := time.Now().Add(time.Duration(soak)*time.Second), 0; round < 3 || time.Now().Before(over); round++ {
		for _, n := range w.nodes {
			n.kill()
			n.start()
			n.stop()
			n.start()
		}
	}
	longest := end()
	t.Logf("the longest silence was %s", longest)
	if soak >= 60 && longest > time.Second {
		t.Errorf("nothing arrived for %s", longest)
	}
}
