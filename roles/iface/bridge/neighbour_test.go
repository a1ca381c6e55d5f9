package bridge_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// TestNeighbourOfDeleted: the host does not send packets to the address of a removed container with
// its MAC, which the bridge would send to every port. The host asks who has the address.
func TestNeighbourOfDeleted(t *testing.T) {
	p := newPods(t, guarded)
	p.add("witness")
	for name, end := range map[string]func(id string){
		"DEL":                  func(id string) { p.del(id) },
		"namespace gone first": func(id string) { p.spaces[id].Remove(t); p.del(id) },
		"GC":                   func(string) { p.OK(p.gc("witness")) },
		"no record":            func(id string) { p.loseRecord(id); p.del(id) },
		"GC without a record":  func(id string) { p.loseRecord(id); p.OK(p.gc("witness")) },
		"state lost":           func(id string) { p.Forget(); p.del(id) },
	} {
		t.Run(name, func(t *testing.T) {
			id := fmt.Sprintf("c%x", name)
			p.add(id)
			mac := p.spaces[id].Link(t, "eth0").Attrs().HardwareAddr
			all := addresses(t, p.results[id])
			for _, a := range all {
				sendTo(t, a.Addr())
				await.Until(t, func() bool { return knows(t, a.Addr(), mac) }, func() string { return "the host does not learn " + a.String() })
			}
			end(id)
			delete(p.results, id)
			frames := listen(t, attachment.HostLink(p.key("witness")))
			for _, a := range all {
				sendTo(t, a.Addr())
				for {
					f := frames()
					if bytes.HasPrefix(f, mac) {
						t.Fatalf("a packet to %s left by the port of another container", a)
					}
					if bytes.Contains(f[14:], a.Addr().AsSlice()) { // who has the address?
						break
					}
				}
			}
		})
	}
}

func (p *pods) key(id string) store.Key {
	return store.Key{Network: "guarded", ContainerID: id, IfName: "eth0"}
}

// loseRecord deletes a container's record.
func (p *pods) loseRecord(id string) {
	p.t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: p.RunDir(), StateDir: p.StateDir(), Role: "test", Reference: migrate.ReferencePlugins{}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer done()
	if err := h.Store.Update(context.Background(), func(tx *store.Tx) error { return tx.DeleteAttachment(p.key(id)) }); err != nil {
		p.t.Fatal(err)
	}
}

// sendTo sends a datagram from the host.
func sendTo(t *testing.T, a netip.Addr) {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

// knows reports whether the host has a neighbour entry with the MAC.
func knows(t *testing.T, a netip.Addr, mac net.HardwareAddr) bool {
	t.Helper()
	all, err := netlink.NeighList(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(n netlink.Neigh) bool { return n.IP.Equal(a.AsSlice()) && bytes.Equal(n.HardwareAddr, mac) })
}

// listen returns a function that returns the next frame at a link of the host.
func listen(t *testing.T, link string) func() []byte {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(network))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	patience := unix.NsecToTimeval(await.Patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: l.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	return func() []byte {
		t.Helper()
		f := make([]byte, 2048)
		n, _, err := unix.Recvfrom(fd, f, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f[:n]
	}
}
