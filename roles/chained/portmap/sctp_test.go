package portmap_test

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// sctpSocket is a raw socket for SCTP in a namespace: the kernels of test
// machines have no SCTP sockets, but they translate SCTP ports.
func sctpSocket(t *testing.T, ns *netopstest.NS) int {
	t.Helper()
	var fd int
	ns.Do(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(await.Patience.Seconds())}))
	return fd
}

// sctpInit is the first packet of an association (RFC 9260, sections 3.1 and
// 3.3.2).
func sctpInit(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)  // verification tag, checksum
	b = append(b, 1, 0, 0, 20, 0, 0, 0, 1) // INIT of 20 bytes, initiate tag
	b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestSCTP sends the first packet of an association to a mapped port.
func TestSCTP(t *testing.T) {
	w := newTown(t)
	a := w.run("a").publish(conf(`{"hostPort":36412,"containerPort":3868,"protocol":"sctp"}`))
	seen, client := sctpSocket(t, a.NS), sctpSocket(t, w.outside)
	must(t, unix.Sendto(client, sctpInit(1000, 36412), 0, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}}))
	b := make([]byte, 100)
	n, from, err := unix.Recvfrom(seen, b, 0)
	must(t, err)
	const header = 20 // the IPv4 header, which raw sockets include
	if n < header+4 || binary.BigEndian.Uint16(b[header+2:]) != 3868 || binary.BigEndian.Uint16(b[header:]) != 1000 {
		t.Errorf("the container sees %x", b[:n])
	}
	if s, ok := from.(*unix.SockaddrInet4); !ok || s.Addr != [4]byte{192, 0, 2, 2} {
		t.Errorf("from %v", from)
	}
}
