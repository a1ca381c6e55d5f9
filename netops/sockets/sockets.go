// Package sockets finds the sockets of the host that receive at a port, and the processes that have them open.
package sockets

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// PortRange is a range of ports of one protocol: "tcp", "udp" or "sctp".
type PortRange struct {
	Proto       string
	First, Last uint16
}

// Listener is a socket of the host that receives what arrives at a port.
type Listener struct {
	Proto string
	// Addr is the socket's address. It is unspecified for all addresses of its
	// family.
	Addr netip.Addr
	Port uint16
	// Dual reports that an IPv6 socket for all addresses receives IPv4 too.
	Dual  bool
	inode uint32
}

// Constants of linux/inet_diag.h.
const (
	inetDiagRequestSize = 56 // struct inet_diag_req_v2
	inetDiagMessageSize = 72 // struct inet_diag_msg
	inetDiagBytecode    = 1  // INET_DIAG_REQ_BYTECODE
	inetDiagV6Only      = 11 // INET_DIAG_SKV6ONLY
	diagJump            = 1  // INET_DIAG_BC_JMP
	diagSourceAtLeast   = 2  // INET_DIAG_BC_S_GE
	diagSourceAtMost    = 3  // INET_DIAG_BC_S_LE
	diagAutobound       = 6  // INET_DIAG_BC_AUTO
	diagOp              = 4  // size of struct inet_diag_bc_op
	diagRange           = 4 * diagOp
	// maxFilter keeps the jumps of a filter within 16 bits.
	maxFilter = 3000
	// Socket states of net/tcp_states.h, and of SCTP. A UDP socket without a peer
	// is in the state TCP_CLOSE.
	stateClose, stateListen = 7, 10
)

// Listeners lists the sockets of the thread's namespace that receive at the ports, also at an address
// of only one interface. Connected sockets are no listeners, and a UDP socket whose port the kernel chose is
// a client: it did not bind, and the next one of its program has another port. A protocol whose sockets
// the kernel cannot list is left out.
func Listeners(ctx context.Context, ports []PortRange) ([]Listener, error) {
	byProto := map[string][]PortRange{}
	for _, p := range ports {
		byProto[p.Proto] = append(byProto[p.Proto], p)
	}
	c, err := nlconn.Open(unix.NETLINK_SOCK_DIAG, "socket diagnosis")
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // nothing was written
	var all []Listener
	for _, proto := range []struct {
		name          string
		number, state byte
	}{{"tcp", unix.IPPROTO_TCP, stateListen}, {"udp", unix.IPPROTO_UDP, stateClose}, {"sctp", unix.IPPROTO_SCTP, stateListen}} {
		if len(byProto[proto.name]) == 0 {
			continue
		}
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			m := nlconn.Message{Kind: unix.SOCK_DIAG_BY_FAMILY, Body: make([]byte, inetDiagRequestSize)}
			m.Body[0], m.Body[1] = family, proto.number
			binary.NativeEndian.PutUint32(m.Body[4:], 1<<proto.state)
			filter := portFilter(byProto[proto.name])
			if proto.number == unix.IPPROTO_UDP {
				filter = boundFilter(filter)
			}
			(*nlconn.Body)(&m.Body).Bytes(inetDiagBytecode, filter)
			some, err := nlconn.List(ctx, c, m, func(data []byte) (Listener, bool, error) {
				l, ok := decodeListener(data)
				l.Proto = proto.name
				return l, ok, nil
			})
			// The kernel, or its configuration, lacks the protocol or its diagnosis.
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
				return nil, nlconn.Explain(err, "list "+proto.name+" sockets")
			}
			for _, l := range some {
				for _, p := range byProto[proto.name] { // SCTP ignores the filter
					if p.First <= l.Port && l.Port <= p.Last {
						all = append(all, l)
						break
					}
				}
			}
		}
	}
	return all, nil
}

// portFilter is a program that accepts sockets at one of the ports. Each range is two
// comparisons of the socket's own port. If both hold, a jump to the end accepts the
// socket; if not, the next range is compared. Behind the last range the socket is refused.
func portFilter(ports []PortRange) (b []byte) {
	op := func(code, yes byte, no int) { b = appendOp(b, code, yes, no) }
	if len(ports) > maxFilter {
		ports = []PortRange{{Last: 1<<16 - 1}} // the caller compares the ports again
	}
	for i, p := range ports {
		op(diagSourceAtLeast, 2*diagOp, diagRange+diagOp)
		op(0, 0, int(p.First))
		op(diagSourceAtMost, 2*diagOp, diagRange/2+diagOp)
		op(0, 0, int(p.Last))
		if left := len(ports) - 1 - i; left > 0 {
			op(diagJump, diagOp, left*(diagOp+diagRange))
		}
	}
	return b
}

// boundFilter returns a program that runs another one for sockets that bound to a port of their choice. For others it
// jumps behind the end, which refuses them.
func boundFilter(program []byte) []byte {
	b := appendOp(nil, diagAutobound, diagOp, 2*diagOp)
	b = appendOp(b, diagJump, diagOp, 2*diagOp+len(program))
	return append(b, program...)
}

// appendOp appends a struct inet_diag_bc_op: how far to go if the condition holds, and if not.
func appendOp(b []byte, code, yes byte, no int) []byte {
	return binary.NativeEndian.AppendUint16(append(b, code, yes), uint16(no))
}

// decodeListener reads struct inet_diag_msg and its attributes.
func decodeListener(data []byte) (l Listener, ok bool) {
	if len(data) < inetDiagMessageSize {
		return l, false
	}
	l.Port = binary.BigEndian.Uint16(data[4:])
	l.inode = binary.NativeEndian.Uint32(data[68:])
	l.Addr = netip.AddrFrom4([4]byte(data[8:]))
	if data[0] == unix.AF_INET6 {
		l.Addr = netip.AddrFrom16([16]byte(data[8:])).Unmap()
		l.Dual = l.Addr == netip.IPv6Unspecified()
	}
	err := nlconn.EachAttr(data[inetDiagMessageSize:], func(kind uint16, value []byte) error {
		l.Dual = l.Dual && (kind != inetDiagV6Only || nlconn.Byte(value) == 0)
		return nil
	})
	return l, err == nil
}

// Process is a process that has a socket open.
type Process struct {
	PID  int
	Name string
	Args []string
}

// Processes lists the processes that have each listener's socket open, in the order of the
// listeners. It reads /proc once, which takes a few milliseconds and longer on a busy node;
// processes of other PID namespaces are not there.
func Processes(listeners []Listener) [][]Process {
	at := map[string][]int{}
	for i, l := range listeners {
		socket := fmt.Sprintf("socket:[%d]", l.inode)
		at[socket] = append(at[socket], i)
	}
	all := make([][]Process, len(listeners))
	read := map[string]Process{}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil || at[to] == nil {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		p, ok := read[dir]
		if !ok {
			p = readProcess(dir)
			read[dir] = p
		}
		for _, i := range at[to] {
			if !slices.ContainsFunc(all[i], func(o Process) bool { return o.PID == p.PID }) {
				all[i] = append(all[i], p)
			}
		}
	}
	return all
}

// readProcess reads a process's directory in /proc.
func readProcess(dir string) Process {
	pid, _ := strconv.Atoi(filepath.Base(dir)) // the pattern has a digit first; the kernel has no other such names
	name, _ := os.ReadFile(dir + "/comm")
	args, _ := os.ReadFile(dir + "/cmdline")
	return Process{PID: pid, Name: nlconn.Printable(strings.TrimSpace(string(name))), Args: strings.Split(string(bytes.Trim(args, "\x00")), "\x00")}
}
