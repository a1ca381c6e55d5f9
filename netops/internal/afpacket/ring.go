package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// blockSize is more than the largest packet and its header. A ring has 16 MiB.
	blockSize = 512 << 10
	blocks    = 32
	// blockTime is the longest time in milliseconds for which the kernel keeps a block that is not full. So the ring
	// bridges a pause of its reader of blocks * blockTime, however few packets there are.
	blockTime = 50
)

// Offsets of struct tpacket_block_desc, and of struct tpacket3_hdr with the struct sockaddr_ll that follows it
// (linux/if_packet.h).
const (
	blockStatus, blockPackets, blockFirst         = 8, 12, 16
	packetNext, packetSeconds, packetNanoseconds  = 0, 4, 8
	packetSnaplen, packetSize, packetStatus       = 12, 16, 20
	packetMAC, packetVLAN, packetVLANType, llType = 24, 32, 36, 58
	packetHeader                                  = 68
)

const (
	vlanTag = 4
	// etherAddresses is the size of the two MACs, after which a VLAN tag is.
	etherAddresses = 12
)

// ring receives the packets of one link. The kernel writes them to blocks of shared memory (TPACKET_V3).
type ring struct {
	name   string
	fd     int
	memory []byte
	// block is the block that is read next, left the number of its unread packets, and at the offset of the
	// first of them, which is decoded in packet. left is 0 while the kernel has the block.
	block, left, at int
	packet          Packet
	tagged          []byte // the memory of a packet with a VLAN tag
	// received counts the packets that the kernel has written, read those that were read, and dropped those for
	// which the ring had no room.
	received, read, dropped uint64
}

// open opens the ring of a link. Nothing arrives before bind, so no packet escapes the filter.
func (r *ring) open(l Link, program []unix.SockFilter) (err error) {
	r.name = l.Name
	r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := r.filter(program); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return err
	}
	// The kernel puts packets of any size into a block; it needs a size of frames only formally.
	request := unix.TpacketReq3{Block_size: blockSize, Block_nr: blocks, Frame_size: blockSize, Frame_nr: blocks, Retire_blk_tov: blockTime}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request); err != nil {
		return err
	}
	r.memory, err = unix.Mmap(r.fd, 0, blockSize*blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index}); err != nil {
		return err
	}
	_, kind, err := r.link()
	if err == nil && kind != unix.ARPHRD_ETHER && kind != unix.ARPHRD_LOOPBACK {
		err = fmt.Errorf("%w: its packets have no Ethernet header (type %d)", nlconn.ErrInvalid, kind)
	}
	return err
}

// filter replaces the filter.
func (r *ring) filter(program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// link returns the index of the link, which is -1 after its end, and its type (ARPHRD_ETHER and so on).
func (r *ring) link() (index int, kind uint16, err error) {
	sa, err := unix.Getsockname(r.fd)
	if err != nil {
		return 0, 0, err
	}
	own, isLink := sa.(*unix.SockaddrLinklayer)
	if !isLink {
		return 0, 0, nlconn.ErrDamaged
	}
	return own.Ifindex, own.Hatype, nil
}

func (r *ring) close() error {
	var errs []error
	if r.memory != nil {
		errs = append(errs, unix.Munmap(r.memory))
	}
	if r.fd >= 0 {
		errs = append(errs, unix.Close(r.fd))
	}
	return errors.Join(errs...)
}

// isGone reads the pending error of the socket, and reports whether the link was deleted or moved to another namespace.
// A link that is only down stays: the socket receives again when it is up. A deletion sets the link down first,
// and only this is an error of the socket.
func (r *ring) isGone() (bool, error) {
	code, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return false, err
	}
	if code != 0 && unix.Errno(code) != unix.ENETDOWN {
		return false, unix.Errno(code)
	}
	index, _, err := r.link()
	return err == nil && index <= 0, err
}

// count reads the kernel's counters, which it clears.
func (r *ring) count() error {
	s, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil {
		r.received += uint64(s.Packets - s.Drops)
		r.dropped += uint64(s.Drops)
	}
	return err
}

// fill takes the next block if the kernel has completed it.
func (r *ring) fill() error {
	if r.left > 0 {
		return nil
	}
	if atomic.LoadUint32(r.status())&unix.TP_STATUS_USER == 0 {
		return nil
	}
	b := r.memory[r.block*blockSize:]
	r.left, r.at = int(binary.NativeEndian.Uint32(b[blockPackets:])), int(binary.NativeEndian.Uint32(b[blockFirst:]))
	if r.left == 0 {
		r.release()
		return nil
	}
	return r.decode()
}

// status returns the word by which the kernel and the reader hand over the block.
func (r *ring) status() *uint32 {
	return (*uint32)(unsafe.Pointer(&r.memory[r.block*blockSize+blockStatus]))
}

// release returns the block to the kernel.
func (r *ring) release() {
	atomic.StoreUint32(r.status(), unix.TP_STATUS_KERNEL)
	r.block = (r.block + 1) % blocks
}

// advance goes to the next packet.
func (r *ring) advance() error {
	r.read++
	r.left--
	if r.left == 0 {
		r.release()
		return nil
	}
	r.at += int(binary.NativeEndian.Uint32(r.memory[r.block*blockSize+r.at+packetNext:]))
	return r.decode()
}

// decode reads the packet at r.at.
func (r *ring) decode() error {
	b := r.memory[r.block*blockSize:][:blockSize]
	if r.at > blockSize-packetHeader {
		return fmt.Errorf("packet at %d: %w", r.at, nlconn.ErrDamaged)
	}
	b = b[r.at:]
	start, size := int(binary.NativeEndian.Uint16(b[packetMAC:])), int(binary.NativeEndian.Uint32(b[packetSnaplen:]))
	if start+size > len(b) {
		return fmt.Errorf("packet of %d bytes: %w", size, nlconn.ErrDamaged)
	}
	r.packet = Packet{
		Time:     time.Unix(int64(binary.NativeEndian.Uint32(b[packetSeconds:])), int64(binary.NativeEndian.Uint32(b[packetNanoseconds:]))),
		Data:     b[start : start+size],
		Size:     int(binary.NativeEndian.Uint32(b[packetSize:])),
		Outgoing: b[llType] == unix.PACKET_OUTGOING,
	}
	if status := binary.NativeEndian.Uint32(b[packetStatus:]); status&unix.TP_STATUS_VLAN_VALID != 0 && size >= etherAddresses {
		r.insertTag(status, b)
	}
	return nil
}

// insertTag inserts the VLAN tag, which the kernel keeps apart from the packet.
func (r *ring) insertTag(status uint32, header []byte) {
	kind := uint16(unix.ETH_P_8021Q)
	if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		kind = binary.NativeEndian.Uint16(header[packetVLANType:])
	}
	data := r.packet.Data
	r.tagged = append(r.tagged[:0], data[:etherAddresses]...)
	r.tagged = binary.BigEndian.AppendUint16(r.tagged, kind)
	r.tagged = binary.BigEndian.AppendUint16(r.tagged, uint16(binary.NativeEndian.Uint32(header[packetVLAN:])))
	r.packet.Data = append(r.tagged, data[etherAddresses:]...)
	r.tagged = r.packet.Data
	r.packet.Size += vlanTag
}
