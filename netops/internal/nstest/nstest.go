// Package nstest makes network namespaces for tests: the test's own namespace,
// and neighbour namespaces.
package nstest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// Fresh moves the test's thread to a new network namespace. The thread is never
// unlocked, so the thread and the namespace end with the test.
func Fresh(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// Run executes a program in the test's namespace and returns its output.
func Run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// IP runs iproute2 in the test's namespace.
func IP(t *testing.T, args string) string {
	t.Helper()
	return Run(t, "ip", strings.Fields(args)...)
}

// TryIP runs iproute2 and ignores errors, for objects that may be absent.
func TryIP(args string) { _ = exec.Command("ip", strings.Fields(args)...).Run() }

// IPTables runs a program of iptables-legacy in the test's namespace.
func IPTables(ctx context.Context, program string, args []string, input string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, complaint.String())
	}
	return out.String(), nil
}

// Neighbour is a network namespace beside the test's namespace. A process keeps
// it alive.
type Neighbour struct{ PID int }

// NewNeighbour makes a namespace that ends with the test.
func NewNeighbour(t *testing.T) *Neighbour {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	// The process ends with the thread that starts it (Pdeathsig). Start it on a
	// thread that lives until the test ends; threads that enter a neighbour end
	// earlier.
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		started <- cmd.Start()
		<-done
		runtime.UnlockOSThread()
	}()
	t.Cleanup(func() { close(done) })
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &Neighbour{cmd.Process.Pid}
}

// IP runs iproute2 in the neighbour.
func (n *Neighbour) IP(t *testing.T, args string) {
	t.Helper()
	Run(t, "nsenter", append([]string{"-t", strconv.Itoa(n.PID), "-n", "ip"}, strings.Fields(args)...)...)
}

// In calls f on a thread in the neighbour. Sockets that f opens stay in the
// neighbour.
func (n *Neighbour) In(t *testing.T, f func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.PID))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// UDP opens a UDP socket in the neighbour. If n is nil, it opens it in the test's
// namespace. It waits until the kernel accepts packets for an IPv6 address, whose local
// route is added in a worker.
func UDP(t *testing.T, n *Neighbour, local string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	open := func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local)))
		return err
	}
	if n == nil {
		if err := open(); err != nil {
			t.Fatal(err)
		}
	} else {
		n.In(t, open)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if ip := netip.MustParseAddrPort(local).Addr(); ip.Is6() && !ip.IsUnspecified() {
		get := []string{"ip", "-6", "route", "get", ip.String()}
		if n != nil {
			get = append([]string{"nsenter", "-t", strconv.Itoa(n.PID), "-n"}, get...)
		}
		var out []byte
		await.Until(t, func() bool {
			out, _ = exec.Command(get[0], get[1:]...).CombinedOutput()
			return strings.HasPrefix(string(out), "local ")
		}, func() string { return fmt.Sprintf("%s has no local route: %s", ip, out) })
	}
	if err := conn.SetDeadline(await.Deadline()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// SeenSource sends a datagram from a new socket and returns the source address
// that the receiver sees.
func SeenSource(t *testing.T, from *Neighbour, source string, to *net.UDPConn) string {
	t.Helper()
	conn := UDP(t, from, netip.AddrPortFrom(netip.MustParseAddr(source), 0).String())
	if _, err := conn.WriteTo([]byte(source), to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, seen, err := to.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != source {
		t.Fatalf("receive from %s: %q, %v", source, b[:n], err)
	}
	return seen.Addr().String()
}
