package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/cnibox/cnibox/netops"
)

// pingTimeout is the maximum time to wait for an answer.
const pingTimeout = 5 * time.Second

// Types of ICMP messages (RFC 792).
const (
	echoReply   = 0
	unreachable = 3
	echoRequest = 8
)

// ping sends one echo request from a namespace and waits for its answer.
func ping(ctx context.Context, from *netops.Namespace, to netip.Addr) (time.Duration, error) {
	var conn net.PacketConn
	err := from.Run(func() (err error) {
		conn, err = (&net.ListenConfig{}).ListenPacket(ctx, "ip4:icmp", "0.0.0.0")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	start := time.Now()
	if err := conn.SetDeadline(start.Add(pingTimeout)); err != nil {
		return 0, err
	}
	id := uint16(rand.N(1 << 16))
	if _, err := conn.WriteTo(echo(id), &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buf)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return 0, fmt.Errorf("ping: no answer within %v", pingTimeout)
		}
		if err != nil {
			return 0, fmt.Errorf("ping: %w", err)
		}
		if m := buf[:n]; n >= 8 && m[0] == echoReply && binary.BigEndian.Uint16(m[4:]) == id {
			return time.Since(start), nil
		} else if n >= 8 && m[0] == unreachable {
			return 0, fmt.Errorf("ping: unreachable (code %d)", m[1])
		}
	}
}

// echo returns an echo request: type, code, checksum, identifier, sequence number.
func echo(id uint16) []byte {
	m := make([]byte, 8+32)
	m[0] = echoRequest
	binary.BigEndian.PutUint16(m[4:], id)
	binary.BigEndian.PutUint16(m[6:], 1)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return m
}

// checksum returns the checksum of RFC 1071 of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
