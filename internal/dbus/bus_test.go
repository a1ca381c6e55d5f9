package dbus

import (
	"bufio"
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/test/bus"
)

// startBus starts a real bus.
func startBus(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "bus")
	bus.Listen(t, socket)
	return socket
}

// TestBus calls a real bus' own methods.
func TestBus(t *testing.T) {
	ctx := t.Context()
	c, err := Dial(ctx, startBus(t))
	if err != nil {
		t.Fatal(err)
	}
	own := func(name string) Method {
		return Method{Destination: busName, Path: busPath, Interface: busName, Name: name}
	}
	var names []string
	if err := c.Call(ctx, own("ListNames"), &names); err != nil || !slices.Contains(names, busName) {
		t.Errorf("names %q, %v", names, err)
	}
	var has bool
	if err := c.Call(ctx, own("NameHasOwner"), &has, busName); err != nil || !has {
		t.Errorf("the bus has no owner: %v, %v", has, err)
	}
	if err := c.Call(ctx, own("NameHasOwner"), &has, "org.example.None"); err != nil || has {
		t.Errorf("a name that nobody has, has an owner: %v, %v", has, err)
	}
	var failed *Error
	if err := c.Call(ctx, own("GetNameOwner"), new(string), "org.example.None"); !errors.As(err, &failed) || failed.Name != busName+".Error.NameHasNoOwner" || failed.Text == "" {
		t.Errorf("owner of none: %v", err)
	}
	if err := c.Call(ctx, Method{Destination: "org.example.None", Path: "/", Interface: "org.example", Name: "X"}, new(string)); !errors.As(err, &failed) || failed.Name != "org.freedesktop.DBus.Error.ServiceUnknown" && failed.Name != "org.freedesktop.DBus.Error.NameHasNoOwner" {
		t.Errorf("call to none: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Call(ctx, own("ListNames"), &names); err == nil {
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
