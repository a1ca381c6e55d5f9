package nlconn

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// EthtoolValue makes an ethtool request that sets or returns one number (struct ethtool_value of linux/ethtool.h).
// The kernel accepts it on a netlink socket too, in the namespace of the socket.
func (c *Conn) EthtoolValue(link string, command, value uint32) (uint32, error) {
	data := [2]uint32{command, value}
	request := struct { // struct ifreq of linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&data)}
	copy(request.name[:unix.IFNAMSIZ-1], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return data[1], nil
}
