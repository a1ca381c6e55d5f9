package netops_test

import (
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// live is a TCP connection that sends one echo after another without a pause.
type live struct {
	conn    net.Conn
	stop    atomic.Bool
	done    chan struct{}
	longest atomic.Int64
	echoes  atomic.Int64
	err     error
}

// newLive opens a connection from the node to the outside.
func newLive(t testing.TB, box *netopstest.NS, local, remote string) *live {
	t.Helper()
	var l net.Listener
	box.Do(t, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(remote, "0"))
		return err
	})
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	d := net.Dialer{Timeout: await.Patience}
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	conn, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	v := &live{conn: conn, done: make(chan struct{})}
	t.Cleanup(func() {
		v.stop.Store(true)
		<-v.done
		_ = conn.Close()
		_ = l.Close()
	})
	go v.run()
	return v
}

func (v *live) run() {
	defer close(v.done)
	b := make([]byte, 100)
	for !v.stop.Load() {
		begun := time.Now()
		_ = v.conn.SetDeadline(begun.Add(await.Patience))
		if _, v.err = v.conn.Write(b); v.err != nil {
			return
		}
		if _, v.err = io.ReadFull(v.conn, b); v.err != nil {
			return
		}
		v.longest.Store(max(v.longest.Load(), int64(time.Since(begun))))
		v.echoes.Add(1)
	}
}

// more waits until the connection has carried another echo.
func (v *live) more(t testing.TB) {
	t.Helper()
	from := v.echoes.Load()
	await.Until(t, func() bool {
		select {
		case <-v.done:
			t.Fatalf("the connection ended: %v", v.err)
		default:
		}
		return v.echoes.Load() >= from+3
	}, func() string { return "the connection carries nothing" })
}

// end closes the connection and returns the longest duration of an echo.
func (v *live) end(t testing.TB) time.Duration {
	t.Helper()
	v.stop.Store(true)
	<-v.done
	if v.err != nil {
		t.Fatalf("the connection ended: %v", v.err)
	}
	return v.stall()
}

// stall returns the longest duration of an echo since the last call.
func (v *live) stall() time.Duration { return time.Duration(v.longest.Swap(0)) }

// sentAgain returns the number of TCP segments that were retransmitted.
func sentAgain(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[0] != "Tcp:" {
			continue
		}
		if i := slices.Index(names, "RetransSegs"); i >= 0 {
			n, err := strconv.Atoi(f[i])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		names = f
	}
	t.Fatal("no count of what TCP sent again")
	return 0
}

func more(t testing.TB, all []*live) {
	t.Helper()
	for _, v := range all {
		v.more(t)
	}
}
