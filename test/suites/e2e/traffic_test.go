//go:build cluster

package e2e

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// placed is a pod and its network namespace, as a path of the test's mount namespace.
type placed struct{ name, node, ip, netns string }

// placedPods finds the running pods with a label in the state of their nodes.
func (c *cluster) placedPods(t *testing.T, label string, nodes ...*node) []placed {
	t.Helper()
	var pods []placed
	for _, n := range nodes {
		var state struct {
			Attachments []struct {
				Pod, Netns string
				Addresses  []string
			}
		}
		decode(t, n.run(t, filepath.Join(root(t), "bin", "cnibox"), "state", "--json"), &state)
		names := c.kubectl(t, "get", "pods", "-l", label, "--field-selector", "spec.nodeName="+n.name, "-o", "name")
		for _, name := range strings.Fields(names) {
			name = strings.TrimPrefix(name, "pod/")
			for _, a := range state.Attachments {
				if a.Pod == "default/"+name {
					ip, _, _ := strings.Cut(a.Addresses[0], "/")
					pods = append(pods, placed{name, n.name, ip, fmt.Sprintf("/proc/%d/root%s", n.pid, strings.TrimPrefix(a.Netns, "/var"))})
				}
			}
		}
	}
	return pods
}

// traffic is open connections between pods, in the pods' namespaces. Each sends a number every 20 ms and reads it back.
type traffic struct {
	conns []net.Conn
	ends  []io.Closer
	work  sync.WaitGroup
	over  atomic.Bool
	sent  atomic.Int64

	mu   sync.Mutex
	lost []string
}

const echoPort = "7"

// newTraffic opens connections from each pod to each other one.
func newTraffic(t *testing.T, pods []placed) *traffic {
	t.Helper()
	tr := &traffic{}
	t.Cleanup(tr.close)
	for _, p := range pods {
		var l net.Listener
		netopstest.At(p.netns).Do(t, func() (err error) {
			l, err = net.Listen("tcp", net.JoinHostPort(p.ip, echoPort))
			return err
		})
		tr.ends = append(tr.ends, l)
		tr.work.Go(func() { tr.serve(l) })
	}
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			var conn net.Conn
			netopstest.At(from.netns).Do(t, func() (err error) {
				conn, err = net.DialTimeout("tcp", net.JoinHostPort(to.ip, echoPort), await.Patience)
				return err
			})
			tr.conns = append(tr.conns, conn)
			tr.work.Go(func() { tr.use(conn, fmt.Sprintf("%s on %s to %s on %s", from.name, from.node, to.name, to.node)) })
		}
	}
	return tr
}

// serve returns what it reads.
func (tr *traffic) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		tr.work.Go(func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the client reports the end of a connection
		})
	}
}

func (tr *traffic) use(conn net.Conn, name string) {
	defer conn.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var buf [8]byte
	for n := byte(0); !tr.over.Load(); n++ {
		buf[0] = n
		_ = conn.SetDeadline(await.Deadline())
		_, err := conn.Write(buf[:])
		if err == nil {
			_, err = io.ReadFull(conn, buf[:])
		}
		if err == nil && buf[0] != n {
			err = fmt.Errorf("got %d, want %d", buf[0], n)
		}
		if err != nil {
			tr.mu.Lock()
			tr.lost = append(tr.lost, fmt.Sprintf("%s: %v", name, err))
			tr.mu.Unlock()
			return
		}
		tr.sent.Add(1)
		<-tick.C
	}
}

// check fails the test if a connection was lost since the traffic began.
func (tr *traffic) check(t *testing.T, when string) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t.Logf("%s: %d connections, %d lost, %d round trips", when, len(tr.conns), len(tr.lost), tr.sent.Load())
	if len(tr.lost) > 0 {
		t.Errorf("%s: lost connections:\n%s", when, strings.Join(tr.lost, "\n"))
	}
}

// close ends the connections.
func (tr *traffic) close() {
	tr.over.Store(true)
	for _, e := range tr.ends {
		_ = e.Close()
	}
	tr.work.Wait()
}
