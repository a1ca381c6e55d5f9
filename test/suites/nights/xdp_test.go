package nights

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attachXDP gives a link a program of XDP that returns a value for each packet: xdp LINK VALUE.
func attachXDP(args []string) error {
	value, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	link, err := net.InterfaceByName(args[0])
	if err != nil {
		return err
	}
	code := binary.NativeEndian.AppendUint64(nil, 0xb7|value<<32) // r0 = value
	code = binary.NativeEndian.AppendUint64(code, 0x95)           // exit
	license := []byte("GPL\x00")
	load := struct { // union bpf_attr of BPF_PROG_LOAD begins so
		kind, size    uint32
		code, license unsafe.Pointer
		more          [12]uint64
	}{unix.BPF_PROG_TYPE_XDP, 2, unsafe.Pointer(&code[0]), unsafe.Pointer(&license[0]), [12]uint64{}}
	fd, _, failed := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)), unsafe.Sizeof(load))
	if failed != 0 {
		return fmt.Errorf("load: %w", failed)
	}
	var b []byte
	for _, v := range []uint32{60, unix.RTM_SETLINK | (unix.NLM_F_REQUEST|unix.NLM_F_ACK)<<16, 1, 0, 0, uint32(link.Index), 0, 0, // nlmsghdr, ifinfomsg
		20 | (unix.IFLA_XDP|unix.NLA_F_NESTED)<<16, 8 | unix.IFLA_XDP_FD<<16, uint32(fd), 8 | unix.IFLA_XDP_FLAGS<<16, unix.XDP_FLAGS_SKB_MODE} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	if err := unix.Sendto(s, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, os.Getpagesize())
	if _, err := unix.Read(s, answer); err != nil {
		return err
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
