package dbus

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// busConf lets everybody call everything.
const busConf = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow receive_sender="*"/><allow own="*"/></policy></busconfig>`

// startBus starts a real bus.
func startBus(t *testing.T) (socket string) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "bus")
	conf := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(busConf, "SOCKET", socket)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+conf, "--nofork", "--nopidfile", "--print-address")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // its address, once it listens
		t.Fatal(err)
	}
	return socket
}

// TestBus calls a real bus' own methods.
func TestBus(t *testing.T) {
	ctx := t.Context()
	c, err := Dial(ctx, startBus(t))
	if err != nil {
		t.Fatal(err)
	}
	bus := func(name string) Method {
		return Method{Destination: busName, Path: busPath, Interface: busName, Name: name}
	}
	var names []string
	if err := c.Call(ctx, bus("ListNames"), &names); err != nil || !slices.Contains(names, busName) {
		t.Errorf("names %q, %v", names, err)
	}
	var has bool
	if err := c.Call(ctx, bus("NameHasOwner"), &has, busName); err != nil || !has {
		t.Errorf("the bus has no owner: %v, %v", has, err)
	}
	if err := c.Call(ctx, bus("NameHasOwner"), &has, "org.example.None"); err != nil || has {
		t.Errorf("a name that nobody has, has an owner: %v, %v", has, err)
	}
	var failed *Error
	if err := c.Call(ctx, bus("GetNameOwner"), new(string), "org.example.None"); !errors.As(err, &failed) || failed.Name != busName+".Error.NameHasNoOwner" || failed.Text == "" {
		t.Errorf("owner of none: %v", err)
	}
	if err := c.Call(ctx, Method{Destination: "org.example.None", Path: "/", Interface: "org.example", Name: "X"}, new(string)); !errors.As(err, &failed) || failed.Name != "org.freedesktop.DBus.Error.ServiceUnknown" && failed.Name != "org.freedesktop.DBus.Error.NameHasNoOwner" {
		t.Errorf("call to none: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Call(ctx, bus("ListNames"), &names); err == nil {
		t.Error("a closed connection answers")
	}
}

// TestSilent: a bus that accepts and says nothing is left when the context ends.
func TestSilent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = bufio.NewReader(conn).ReadString('\n') // it has asked
			cancel()
		}
	}()
	if _, err := Dial(ctx, socket); err == nil {
		t.Error("a silent bus lets us in")
	}
}
