package nlconn_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// listenToLinks returns a Listener with the smallest receive buffer.
func listenToLinks(t *testing.T) *nlconn.Listener {
	t.Helper()
	nstest.Fresh(t)
	l, err := nlconn.Listen(unix.NETLINK_ROUTE, "rtnetlink", []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	l.SetReceiveBuffer(1)
	return l
}

// changeLinks returns a program that changes the loopback link many times.
func changeLinks(times int) *exec.Cmd {
	var batch strings.Builder
	for i := range times {
		fmt.Fprintf(&batch, "link set lo mtu %d\n", 65000+i%2)
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	return cmd
}

// TestListenerOverrun: after it has reported an overrun once, the kernel drops everything until
// the receive queue is empty and reports nothing more. The Listener reports the loss again when
// the queue is empty, because only then is nothing more dropped.
func TestListenerOverrun(t *testing.T) {
	l := listenToLinks(t)
	if out, err := changeLinks(50).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, stop := context.WithDeadline(context.Background(), await.Deadline())
	defer stop()
	next := func() (messages int, lost bool) {
		lost, err := l.Next(ctx, func(unix.NlMsghdr, []byte) bool { messages++; return false })
		if err != nil {
			t.Fatal(err)
		}
		return messages, lost
	}
	if n, lost := next(); !lost || n > 0 {
		t.Fatalf("%d messages, lost %t; want the overrun", n, lost)
	}
	if err := l.Mark(1); err != nil {
		t.Fatal(err)
	}
	for {
		n, lost := next()
		if lost {
			break
		}
		if n == 0 {
			t.Fatal("neither a message nor a loss")
		}
	}
	if err := l.Mark(2); err != nil {
		t.Fatal(err)
	}
	if n, lost := next(); n != 1 || lost {
		t.Errorf("after the queue was empty: %d messages, lost %t; want the mark", n, lost)
	}
}

// TestListenerDuringOverrun reads while the kernel drops notifications. If the kernel drops one
// while the last one of the queue is read, Go's poller sees an error without data and refuses to
// wait any more.
func TestListenerDuringOverrun(t *testing.T) {
	l := listenToLinks(t)
	ctx, stop := context.WithDeadline(context.Background(), await.Deadline())
	defer stop()
	found := make(chan error, 1)
	go func() {
		for {
			last := false
			_, err := l.Next(ctx, func(h unix.NlMsghdr, _ []byte) bool { last = last || h.Type == unix.RTM_NEWADDR; return false })
			if err != nil || last {
				found <- err
				return
			}
		}
	}()
	if out, err := changeLinks(20_000).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	i := 0
	await.Until(t, func() bool {
		i++ // one of the first notifications may be dropped
		nstest.IP(t, fmt.Sprintf("addr add 192.0.%d.%d/32 dev lo", i>>8, i&255))
		select {
		case err := <-found:
			if err != nil {
				t.Fatal(err)
			}
			return true
		default:
			return false
		}
	}, func() string { return "no notification after the overrun" })
}

// TestOnlyDefaultRoutes: of the routes' notifications only those of default routes arrive, and all others do.
func TestOnlyDefaultRoutes(t *testing.T) {
	nstest.Fresh(t)
	nstest.Run(t, "ip", "link", "set", "lo", "up")
	l, err := nlconn.Listen(unix.NETLINK_ROUTE, "rtnetlink", []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.OnlyDefaultRoutes()
	for _, change := range []string{"route add 192.0.2.0/24 dev lo", "route add default dev lo", "-6 route add 2001:db8::/64 dev lo", "-6 route del 2001:db8::/64", "-6 route add default dev lo", "route del default", "link set lo mtu 65000"} {
		nstest.Run(t, "ip", strings.Fields(change)...)
	}
	ctx, stop := context.WithDeadline(t.Context(), await.Deadline())
	defer stop()
	var have []uint16
	for len(have) == 0 || have[len(have)-1] != unix.RTM_NEWLINK || len(have) < 4 {
		if _, err := l.Next(ctx, func(h unix.NlMsghdr, data []byte) bool {
			if h.Type != unix.RTM_NEWLINK && data[1] != 0 {
				t.Errorf("a route with the prefix length %d", data[1])
			}
			have = append(have, h.Type)
			return false
		}); err != nil {
			t.Fatal(have, err)
		}
	}
}
