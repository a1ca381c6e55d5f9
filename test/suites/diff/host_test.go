// Package diff makes the same CNI calls to the reference plugins and to cnibox, each on its own host with the same initial state,
// and compares their answers and what they leave in the kernel.
//
// Every difference must be in the list of intended ones, and every entry of that list must be observed; docs/differences.md is
// generated from it. The tests need root, bin/cnibox and bin/peers, which `make test-diff` builds.
package diff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limit bounds the time of every program.
const limit = 3 * time.Minute

// side is one of the two sides that are compared.
type side struct {
	name    string
	plugins string // CNI_PATH
	cnibox  string // our command line; empty for the reference
}

// host is a machine for one side: a network and a mount namespace with empty /run and /var/lib, an uplink, and a machine behind it.
// The namespaces belong to the thread on which onHost runs, so only that goroutine may call its methods.
type host struct {
	side
	home  *os.File // the host's network namespace
	given string   // all that the case names itself: no word of it is random
	names []string // pairs for a strings.Replacer: what was chosen at random, and what we call it
	// shaped includes queueing disciplines in the state.
	shaped  bool
	servers []net.Listener
}

// uplink connects the host to the outside, in the same way for every case.
const uplink = `ip link set lo up
ip netns add outside
ip link add uplink address 02:00:00:00:00:01 type veth peer name wire address 02:00:00:00:00:02 netns outside
ip addr add 192.0.2.1/24 dev uplink
ip addr add 2001:db8:ffff::1/64 dev uplink nodad
ip -n outside addr add 192.0.2.254/24 dev wire
ip -n outside addr add 2001:db8:ffff::fe/64 dev wire nodad
ip link set uplink up
ip -n outside link set wire up
ip route add default via 192.0.2.254
ip route add default via 2001:db8:ffff::fe`

// bothSides returns the sides, which `make test-diff` builds.
func bothSides(t *testing.T) (reference, ours side) {
	t.Helper()
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	reference = side{name: "reference", plugins: filepath.Join(bin, "peers")}
	if _, err := os.Stat(reference.plugins); err != nil {
		t.Skipf("%v: make test-diff builds the reference plugins and runs this", err)
	}
	ours = side{name: "cnibox", plugins: t.TempDir(), cnibox: filepath.Join(bin, "cnibox")}
	if out, err := exec.Command(ours.cnibox, "install", "--dir", ours.plugins).CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	return reference, ours
}

// release returns the release of the reference plugins.
func release(t testing.TB) string {
	t.Helper()
	about, err := exec.Command("../../../bin/peers/bridge").CombinedOutput()
	if err != nil {
		t.Fatalf("bridge: %v: %s", err, about)
	}
	first, _, _ := strings.Cut(string(about), "\n")
	return first[strings.LastIndex(first, " ")+1:]
}

// since110 skips a case that v1.9.1 of the reference cannot play.
func since110(t testing.TB) {
	t.Helper()
	if release(t) == "v1.9.1" {
		t.Skip("v1.9.1 lacks it")
	}
}

// onHost runs f on a new host of the side.
func onHost(s side, f func(*host) error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread, and with it the host, ends with the goroutine.
		runtime.LockOSThread()
		h := &host{side: s}
		err := h.prepare()
		if err == nil {
			defer h.home.Close()
			err = f(h)
		}
		done <- err
	}()
	return <-done
}

func (h *host) prepare() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a host: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.MkdirAll("/var/lib", 0o755); err != nil { // the virtual machine's disk has little
		return err
	}
	for _, m := range [][2]string{{"tmpfs", "/run"}, {"tmpfs", "/var/lib"}, {"sysfs", "/sys"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	// A new namespace inherits forwarding: without this, both sides would have it before they set it.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o600); err != nil {
		return err
	}
	var err error
	if h.home, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	return h.script(uplink)
}

// script runs commands, one a line.
func (h *host) script(text string) error {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if _, err := h.run(words...); err != nil {
			return err
		}
	}
	return nil
}

// run runs a program on the host and returns what it printed.
func (h *host) run(args ...string) (string, error) { return h.feed("", args...) }

// feed is run with standard input.
func (h *host) feed(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errText bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errText
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("run %q: %w: %s", args, err, errText.Bytes())
	}
	return out.String(), nil
}

// netns returns the path of a container's namespace.
func netns(container string) string { return filepath.Join("/run/netns", container) }

// container makes a namespace, once.
func (h *host) container(name string) error {
	if _, err := os.Stat(netns(name)); err == nil {
		return nil
	}
	_, err := h.run("ip", "netns", "add", name)
	return err
}

// in runs f in a container's namespace, "" for the host's own.
func (h *host) in(container string, f func() error) (err error) {
	if container == "" {
		return f()
	}
	ns, err := os.Open(netns(container))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %q: %w", container, err)
	}
	defer func() { err = errors.Join(err, unix.Setns(int(h.home.Fd()), unix.CLONE_NEWNET)) }()
	return f()
}

// ping reports whether an address answers a container's ping.
func (h *host) ping(container, address string) string {
	if _, err := h.run("nsenter", "--net="+netns(container), "busybox", "ping", "-c", "1", "-W", "10", address); err != nil {
		return "no answer"
	}
	return "answer"
}

// serve starts a TCP server in a container that closes every connection, with a word for the client.
func (h *host) serve(container, port string) error { return h.serveAt(container, ":"+port) }

// serveAt is serve at an address.
func (h *host) serveAt(container, address string) error {
	return h.in(container, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		h.servers = append(h.servers, l)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(container)) // a client that has gone misses nothing
				conn.Close()
			}
		}()
		return nil
	})
}

// dial returns which server answers a TCP connection from a namespace.
func (h *host) dial(from, address string) string {
	answer := "no answer"
	if from == "host" {
		from = ""
	}
	err := h.in(from, func() error {
		conn, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err != nil {
			return nil
		}
		defer conn.Close()
		word, err := io.ReadAll(conn)
		if err == nil {
			answer = "answer of " + string(word)
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return answer
}

// close ends the servers.
func (h *host) close() {
	for _, l := range h.servers {
		l.Close()
	}
}
