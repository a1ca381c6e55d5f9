package rolestest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

// Ready attaches containers on a busy node and checks that each attachment carries packets
// when its ADD has returned. After a request has set a link up, a worker of the kernel
// brings it into operation. Requests in other namespaces delay the worker. The kernel drops
// packets until it is done.
type Ready struct {
	Table roles.Table
	// Type is the role's. Its result begins with the link through which the host reaches
	// the container.
	Type, Conf string
}

// Run attaches and detaches one container after the other, while another host does the same.
func (r Ready) Run(t *testing.T) {
	const containers, busy = 30, 12
	r.keepBusy(t, busy)
	e := NewEnv(t, r.Table)
	host := netopstest.Listen(t, nil, "0.0.0.0:5000")
	for i := range containers {
		r.attach(t, e, host, fmt.Sprintf("c%d", i))
	}
	e.OK(Call{Type: r.Type, Verb: "GC", Conf: WithKeys(t, r.Conf, map[string]any{"cni.dev/valid-attachments": []any{}})})
}

// attach makes one attachment. Both sides send a broadcast: if it is lost it is not sent
// again, unlike an ARP request.
func (r Ready) attach(t *testing.T, e *Env, host *net.UDPConn, id string) {
	t.Helper()
	ns := netopstest.New(t)
	container := netopstest.Listen(t, ns, "0.0.0.0:5000")
	c := Call{Type: r.Type, Verb: "ADD", ID: id, Netns: ns.Path(), IfName: "eth0", Conf: r.Conf}
	var result roles.Result
	if err := json.Unmarshal([]byte(e.OK(c).Stdout), &result); err != nil {
		t.Fatal(err)
	}
	if err := broadcast(host, result.Interfaces[0].Name); err != nil {
		t.Fatalf("%s: host: %v", id, err)
	}
	if err := broadcast(container, "eth0"); err != nil {
		t.Fatalf("%s: container: %v", id, err)
	}
	netopstest.CheckOperational(t, id)
	b := make([]byte, 10)
	for _, at := range []*net.UDPConn{container, host} {
		if _, _, err := at.ReadFromUDP(b); err != nil {
			t.Fatalf("%s: the first datagram is lost: %v", id, err)
		}
	}
	c.Verb = "DEL"
	e.OK(c)
}

// broadcast sends a datagram to all hosts on a link.
func broadcast(from *net.UDPConn, link string) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	var bound error
	err = raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), link) })
	if err == nil && bound == nil {
		_, err = from.WriteToUDPAddrPort([]byte("first"), netip.MustParseAddrPort("255.255.255.255:5000"))
	}
	if err != nil || bound != nil {
		return fmt.Errorf("send a datagram over %q: %w %w", link, bound, err)
	}
	return nil
}

// keepBusy attaches and detaches containers of another host until the test ends.
func (r Ready) keepBusy(t *testing.T, parallel int) {
	t.Helper()
	stop := make(chan struct{})
	var all sync.WaitGroup
	host, e := netopstest.New(t), NewEnv(t, r.Table)
	for i := range parallel {
		c := Call{Type: r.Type, ID: fmt.Sprintf("busy%d", i), Netns: netopstest.New(t).Path(), IfName: "eth0", Conf: r.Conf}
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				c.Verb = []string{"ADD", "DEL"}[n%2]
				host.Do(t, func() error { _, err := run(e.Cmd(c)); return err })
			}
		})
	}
	t.Cleanup(func() { close(stop); all.Wait() })
}
