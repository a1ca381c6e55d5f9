package netops_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/test/bus"
)

// resolvedDir is the directory in which test/apt.sh unpacks systemd-resolved. An
// installed one would replace the machine's /etc/resolv.conf.
const resolvedDir = "../bin/resolved"

const (
	resolvedBus  = "org.freedesktop.resolve1"
	resolvedPath = "/org/freedesktop/resolve1"
)

// startResolved starts Debian's systemd-resolved and a D-Bus daemon for it, in
// the test's own mount and network namespaces.
func startResolved(t *testing.T) *dbus.Conn {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(resolvedDir, "lib/systemd/systemd-resolved"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: test/apt.sh unpacks it", err)
	}
	// systemd-resolved changes to its own user, which installing the package
	// would create.
	for file, line := range map[string]string{
		"/etc/passwd": "systemd-resolve:x:998:998::/:/usr/sbin/nologin\n", "/etc/group": "systemd-resolve:x:998:\n",
	} {
		with(t, file, line)
	}
	bus.Cover(t, "/run/systemd")
	conn := bus.System(t)
	resolved := exec.Command(program)
	resolved.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(filepath.Dir(program), "../../usr/lib/x86_64-linux-gnu/systemd"))
	bus.Serve(t, conn, resolvedBus, resolved)
	return conn
}

// with mounts a copy of a file over it, with one more line.
func with(t *testing.T, file, line string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(changed, append(b, line...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(changed, file, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(file, unix.MNT_DETACH) })
}

type resolvedServer struct {
	Family  int32
	Address []byte
	Port    uint16
	Name    string
}

type resolvedDomain struct {
	Name    string
	Routing bool
}

// resolvedLink returns systemd-resolved's D-Bus object for a link.
func resolvedLink(t *testing.T, n *netops.Net, conn *dbus.Conn, name string) (index int32, link dbus.BusObject) {
	t.Helper()
	l, err := n.Link(t.Context(), nil, name)
	if err != nil {
		t.Fatal(err)
	}
	var path dbus.ObjectPath
	if err := conn.Object(resolvedBus, resolvedPath).Call(resolvedBus+".Manager.GetLink", 0, int32(l.Index)).Store(&path); err != nil {
		t.Fatal(err)
	}
	return int32(l.Index), conn.Object(resolvedBus, path)
}

// settings returns systemd-resolved's settings for a link as text.
func settings(t *testing.T, n *netops.Net, conn *dbus.Conn, name string) string {
	t.Helper()
	_, link := resolvedLink(t, n, conn, name)
	var texts []string
	for _, p := range []string{"DNSEx", "Domains", "DefaultRoute"} {
		v, err := link.GetProperty(resolvedBus + ".Link." + p)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, v.String())
	}
	return strings.Join(texts, " ")
}

// TestLinkDNS copies systemd-resolved's servers from an uplink to its bridge.
func TestLinkDNS(t *testing.T) {
	ctx := context.Background()
	newUplink(t)
	spec := taken()
	spec.Add(&netops.LinkDNS{Link: "azure0", From: "eth0"})
	n := newNet(t, nil)
	if plan, err := n.Plan(ctx, spec, nil); err != nil || len(plan.Changes) != 1 {
		t.Errorf("Plan without systemd-resolved: %s, %v", lines(plan.Changes), err)
	}
	conn := startResolved(t)
	if plan, err := n.Plan(ctx, spec, nil); err != nil || len(plan.Changes) != 1 {
		t.Errorf("Plan without servers: %s, %v", lines(plan.Changes), err)
	}
	index, _ := resolvedLink(t, n, conn, "eth0")
	manager := conn.Object(resolvedBus, resolvedPath)
	for method, arg := range map[string]any{
		"SetLinkDNSEx": []resolvedServer{
			{unix.AF_INET, []byte{168, 63, 129, 16}, 0, ""},
			{unix.AF_INET6, []byte{0xfd, 15: 1}, 5353, "dns.example"},
		},
		"SetLinkDomains":      []resolvedDomain{{"internal.cloudapp.net", false}, {"corp.example", true}},
		"SetLinkDefaultRoute": true,
	} {
		if err := manager.Call(resolvedBus+".Manager."+method, 0, index, arg).Err; err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	want := settings(t, n, conn, "eth0")
	plan, err := n.Plan(ctx, spec, nil)
	if err != nil || len(plan.Changes) != 2 {
		t.Fatalf("Plan: %s, %v", lines(plan.Changes), err)
	}
	if err := n.Apply(ctx, plan, nil); err != nil {
		t.Fatal(err)
	}
	if have := settings(t, n, conn, "azure0"); have != want {
		t.Errorf("azure0 has %s, want %s", have, want)
	}
	if d, err := n.Verify(ctx, spec, nil); err != nil || len(d) != 0 {
		t.Errorf("Verify: %v, %v", d, err)
	}
	if plan, err := n.Plan(ctx, spec, nil); err != nil || len(plan.Changes) != 0 {
		t.Errorf("Plan again: %s, %v", lines(plan.Changes), err)
	}
	bridge, _ := resolvedLink(t, n, conn, "azure0")
	if err := manager.Call(resolvedBus+".Manager.SetLinkDomains", 0, bridge, []resolvedDomain{}).Err; err != nil {
		t.Fatal(err)
	}
	if d, err := n.Verify(ctx, spec, nil); err != nil || len(d) != 1 {
		t.Errorf("Verify after tampering: %v, %v", d, err)
	}
	dns := netops.Spec{Objects: spec.Objects[1:]}
	if err := n.Undo(ctx, netops.SharedInverses(dns), nil); err != nil {
		t.Fatal(err)
	}
	if have := settings(t, n, conn, "azure0"); strings.Contains(have, "168") || have == want {
		t.Errorf("after Undo azure0 has %s", have)
	}
	if have := settings(t, n, conn, "eth0"); have != want {
		t.Errorf("eth0 has %s, want %s", have, want)
	}
	if err := n.RestoreUplink(ctx, *azure0(), false); err != nil {
		t.Fatal(err)
	}
}
