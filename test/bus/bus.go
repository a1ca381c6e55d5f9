// Package bus runs a D-Bus daemon and programs on it for tests, in the namespaces of the test.
package bus

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// conf allows every client every method and name.
const conf = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/><allow receive_sender="*"/><allow eavesdrop="true"/></policy></busconfig>`

// Listen starts a bus on a socket. The socket accepts connections when Listen returns.
func Listen(t testing.TB, socket string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bus.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, conf, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+file, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
}

// System starts the machine's bus in a /run/dbus that only the test sees.
func System(t testing.TB) *dbus.Conn {
	t.Helper()
	Cover(t, "/run/dbus")
	const socket = "/run/dbus/system_bus_socket"
	Listen(t, socket)
	conn, err := dbus.Connect("unix:path=" + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Cover mounts an empty directory over another one until the test ends.
func Cover(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatalf("cover %s: %v", dir, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// Serve starts a program and waits until it owns its name on the bus.
func Serve(t testing.TB, conn *dbus.Conn, name string, cmd *exec.Cmd) {
	t.Helper()
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, name)); err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	for up := false; !up; { // what comes before may be our own NameAcquired
		up = await.Next(t, signals, "the name "+name+" on the bus").Name == "org.freedesktop.DBus.NameOwnerChanged"
	}
}

// start starts a program that ends with the test.
func start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
}
