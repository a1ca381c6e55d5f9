package nlconn

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a socket whose calls end with their context. It is safe for one sender and one receiver.
type Socket struct{ file *os.File }

// NewSocket returns the socket of a descriptor that does not block. Close closes it.
func NewSocket(fd int, name string) Socket { return Socket{os.NewFile(uintptr(fd), name)} }

// Receive waits for a datagram. It returns its sender, and its size, which with MSG_TRUNC may exceed b.
func (s Socket) Receive(ctx context.Context, b []byte, flags int) (n int, from unix.Sockaddr, err error) {
	err = s.until(ctx, s.file.SetReadDeadline, syscall.RawConn.Read, func(fd int) (err error) {
		n, from, err = unix.Recvfrom(fd, b, flags)
		return err
	})
	return n, from, err
}

// Send sends a datagram.
func (s Socket) Send(ctx context.Context, b []byte, to unix.Sockaddr) error {
	return s.until(ctx, s.file.SetWriteDeadline, syscall.RawConn.Write, func(fd int) error { return unix.Sendto(fd, b, 0, to) })
}

// until calls try whenever the socket is ready, until try has another result than EAGAIN or ctx ends.
func (s Socket) until(ctx context.Context, deadline func(time.Time) error, wait func(syscall.RawConn, func(fd uintptr) bool) error, try func(fd int) error) error {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = deadline(time.Unix(0, 1))
		close(expired)
	})
	var result error
	err = wait(conn, func(fd uintptr) bool {
		for {
			if result = try(int(fd)); !errors.Is(result, unix.EINTR) {
				return !errors.Is(result, unix.EAGAIN)
			}
		}
	})
	if !stop() {
		<-expired
		_ = deadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case err != nil:
		return err
	}
	return result
}

// Close closes the socket, which ends its calls.
func (s Socket) Close() error { return s.file.Close() }
