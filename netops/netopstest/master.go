package netopstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// Master makes an interface that others can stand on, in the namespace of the
// calling thread: one end of a veth pair. The other end, outside, has its name
// with an "x" behind it. It ends with the test.
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

// MakeMaster is Master without an end, for a namespace that ends itself.
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

// SetMode changes what only a link's kind has (IFLA_INFO_DATA), and nothing
// else: netlink.LinkModify names the link too, which an old kernel takes for
// renaming one that is up.
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

// Announced runs do and fails the test unless each address is announced on the
// link to whoever is out there: by a gratuitous ARP (RFC 5227) or an unsolicited
// neighbour advertisement (RFC 4861 section 7.2.6). A link that do makes is
// listened on with all others, for "".
func Announced(t *testing.T, link string, do func(), addrs ...netip.Addr) {
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
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		t.Fatal(err)
	}
	do()
	missing := map[netip.Addr]bool{}
	for _, a := range addrs {
		missing[a] = true
	}
	deadline, frame := await.Deadline(), make([]byte, 2048)
	for len(missing) > 0 {
		wait := unix.NsecToTimeval(max(int64(time.Until(deadline)), int64(time.Microsecond)))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			t.Fatal(err)
		}
		n, _, err := unix.Recvfrom(fd, frame, 0)
		if errors.Is(err, unix.EAGAIN) {
			t.Fatalf("not announced on %q: %v", link, missing)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		delete(missing, announcement(frame[:max(n, 0)]))
	}
}

// announcement is the address that an Ethernet frame announces; invalid for all
// other frames.
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
