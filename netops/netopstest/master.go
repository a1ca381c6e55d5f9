package netopstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// Master creates an interface that can be the parent of others, in the calling
// thread's namespace. It is one end of a veth pair. The other end has the same
// name with the suffix "x". The pair is deleted at the end of the test.
func Master(t testing.TB, name string) {
	t.Helper()
	if err := MakeMaster(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
}

// MakeMaster is like Master, but does not delete the pair. It is for a namespace
// that is deleted itself.
func MakeMaster(name string) error {
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "x"}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("make master %q: %w", name, err)
	}
	for _, end := range []string{v.PeerName, name} {
		l, err := netlink.LinkByName(end)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

// SetMode changes one kind-specific attribute of a link (IFLA_INFO_DATA). It
// does not use netlink.LinkModify, because that sends the link's name too, which
// an old kernel rejects as a rename of a link that is up.
func SetMode(l netlink.Link, attr int, value []byte) error {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(l.Attrs().Index)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(l.Type()))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(attr, value)
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.AddData(m)
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Announced runs do. It fails the test unless each address is announced on the
// link, by a gratuitous ARP (RFC 5227) or an unsolicited neighbour advertisement
// (RFC 4861 section 7.2.6). If do creates the link, pass "" to listen on all
// links.
func Announced(t *testing.T, link string, do func(), addrs ...netip.Addr) {
	t.Helper()
	next := Announcements(t, link)
	do()
	missing := map[netip.Addr]bool{}
	for _, a := range addrs {
		missing[a] = true
	}
	for len(missing) > 0 {
		a := next()
		if !a.Addr.IsValid() {
			t.Fatalf("not announced on %q: %v", link, missing)
		}
		delete(missing, a.Addr)
	}
}

// Announcement is an address and the MAC that has it.
type Announcement struct {
	Addr netip.Addr
	MAC  string
}

// Announcements listens on a link, or on all links with "". next waits for the next
// announcement. It returns the zero value at the test's deadline.
func Announcements(t *testing.T, link string) (next func() Announcement) {
	t.Helper()
	index := 0
	if link != "" {
		l, err := netlink.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		index = l.Attrs().Index
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		t.Fatal(err)
	}
	return func() Announcement {
		t.Helper()
		for deadline, frame := await.Deadline(), make([]byte, 2048); ; {
			wait := unix.NsecToTimeval(max(int64(time.Until(deadline)), int64(time.Microsecond)))
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
				t.Fatal(err)
			}
			n, _, err := unix.Recvfrom(fd, frame, 0)
			if errors.Is(err, unix.EAGAIN) {
				return Announcement{}
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				t.Fatal(err)
			}
			if a := announcement(frame[:max(n, 0)]); a.IsValid() {
				return Announcement{a, net.HardwareAddr(frame[6:12]).String()}
			}
		}
	}
}

// announcement returns the address that an Ethernet frame announces, or an
// invalid address for all other frames.
func announcement(f []byte) netip.Addr {
	if len(f) < 14 {
		return netip.Addr{}
	}
	kind, b := binary.BigEndian.Uint16(f[12:]), f[14:]
	switch {
	case kind == unix.ETH_P_ARP && len(b) >= 28: // RFC 826: sender's address at 14, target's at 24
		sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
		if sender == target {
			return sender
		}
	case kind == unix.ETH_P_IPV6 && len(b) >= 64 && b[6] == unix.IPPROTO_ICMPV6 && b[40] == 136: // RFC 4861 section 4.4
		solicited := b[44]&0x40 != 0
		if !solicited {
			return netip.AddrFrom16([16]byte(b[48:]))
		}
	}
	return netip.Addr{}
}
