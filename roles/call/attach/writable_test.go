package attach_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestUnwritableStatus: STATUS fails if ADD cannot write the state file, because its file system is
// read-only or full.
func TestUnwritableStatus(t *testing.T) {
	p := rolestest.NewPod(t, table(), "ptp")
	if err := errors.Join(os.MkdirAll(p.RunDir(), 0o700), unix.Mount("tmpfs", p.RunDir(), "tmpfs", 0, "size=1m,mode=700")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.RunDir(), unix.MNT_DETACH) })
	status := p.Call("STATUS", "")
	status.ID, status.Netns, status.IfName = "", "", ""
	p.OK(status)
	much := filepath.Join(p.RunDir(), "much")
	if err := os.WriteFile(much, bytes.Repeat([]byte("x"), 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("not full: %v", err)
	}
	p.Refused(status, 50, "is full")
	if err := errors.Join(os.Remove(much), unix.Mount("", p.RunDir(), "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	p.Refused(status, 50, "read-only")
	if err := unix.Mount("", p.RunDir(), "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	p.OK(status)
}

// TestReadOnlySysctls: where /proc/sys is read-only and forwarding is on, IPv4 networks work as with
// the reference plugins.
func TestReadOnlySysctls(t *testing.T) {
	netopstest.Master(t, "lan0")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netopstest.StopForwarding() })
	for _, c := range []struct{ typ, keys string }{
		{"bridge", `,"bridge":"br7","isGateway":true,"ipMasq":true,"hairpinMode":true`},
		{"ptp", `,"ipMasq":true`},
		{"routed", ``},
		{"macvlan", `,"master":"lan0"`},
		{"tap", ``},
	} {
		t.Run(c.typ, func(t *testing.T) {
			p := rolestest.NewPod(t, table(), c.typ)
			netopstest.ReadOnlySysctls(t)
			call := p.Call("ADD", c.keys+`,"ipam":{"type":"host-local","subnet":"10.77.0.0/24"}`)
			result := p.OK(call).Stdout
			call.Verb, call.Conf = "CHECK", rolestest.WithKeys(t, call.Conf, map[string]any{"prevResult": json.RawMessage(result)})
			p.OK(call)
			call.Verb = "DEL"
			p.OK(call)
		})
	}
}

// TestFailedFirstAdd: rules that the first ADD of a network failed to make were not deleted by
// another program.
func TestFailedFirstAdd(t *testing.T) {
	if err := netopstest.FlushRuleset(); err != nil {
		t.Fatal(err)
	}
	p := rolestest.NewPod(t, table(), "bridge")
	netopstest.ReadOnlySysctls(t) // forwarding is off
	add := p.Call("ADD", `,"bridge":"br8","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.78.0.0/24"}`)
	status := add
	status.Verb, status.ID, status.Netns, status.IfName = "STATUS", "", "", ""
	for _, a := range []rolestest.Answer{p.Fail(add, 100), p.OK(status)} {
		if strings.Contains(a.Stderr, "another program") {
			t.Error(a.Stderr)
		}
	}
}
