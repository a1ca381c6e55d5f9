package nlconn_test

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/test/await"
)

// pair returns two sockets that are connected with each other.
func pair(t *testing.T) (a, b nlconn.Socket) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = nlconn.NewSocket(fds[0], "a"), nlconn.NewSocket(fds[1], "b")
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// TestSocket: the calls of a socket end with their context and with Close, and later calls work.
func TestSocket(t *testing.T) {
	a, b := pair(t)
	buf := make([]byte, 3)
	receive := func(ctx context.Context) (int, error) {
		n, _, err := a.Receive(ctx, buf, unix.MSG_TRUNC)
		return n, err
	}
	cause, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := receive(cause); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before: %v", err)
	}
	for _, end := range []string{"cancel", "close"} {
		if err := b.Send(t.Context(), []byte("hello"), nil); err != nil {
			t.Fatal(err)
		}
		if n, err := receive(t.Context()); n != 5 || string(buf) != "hel" || err != nil {
			t.Errorf("received %d, %q, %v", n, buf, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := receive(ctx)
			ended <- err
		}()
		if end == "close" {
			_ = a.Close()
		} else {
			cancel()
		}
		if err := await.Next(t, ended, end); err == nil || errors.Is(err, context.Canceled) != (end == "cancel") {
			t.Errorf("%s: %v", end, err)
		}
		cancel()
	}
}

// TestSocketFull: a socket that takes no more datagrams does not block its sender for longer than the context.
func TestSocketFull(t *testing.T) {
	a, b := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = a.Send(ctx, make([]byte, 1000), nil)
		}
		ended <- err
	}()
	if _, _, err := b.Receive(t.Context(), make([]byte, 1000), 0); err != nil {
		t.Error(err)
	}
	cancel()
	if err := await.Next(t, ended, "send"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
