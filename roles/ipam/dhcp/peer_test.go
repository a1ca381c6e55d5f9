package dhcp_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// peer returns the path of the reference's dhcp, which is plugin and daemon.
func peer(t *testing.T) string { t.Helper(); return peerOf(t, "dhcp") }

// peerOf returns the path of a plugin of the reference.
func peerOf(t *testing.T, typ string) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/peers/" + typ)
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	return path
}

// TestReferencePlugin calls the reference's plugin with cnibox's daemon.
func TestReferencePlugin(t *testing.T) {
	path := peer(t)
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(`option domain-name-servers 10.9.0.1;`))
	e := rolestest.NewEnv(t, all.Table())
	link := filepath.Join(e.PluginDir(), "dhcp")
	d := daemon(t, e)
	must(t, os.Remove(link))
	must(t, os.Symlink(path, link))
	ns := netopstest.New(t)
	c := conf(e, `,"priority":50`)
	a := e.OK(call("ADD", ns, c))
	r := result(t, a)
	if r.IPs[0].Address.String() != "10.9.0.10/24" || r.Routes[0].Priority != 50 || r.DNS.Nameservers[0] != "10.9.0.1" {
		t.Errorf("result %s", a.Stdout)
	}
	check := call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r}))
	e.OK(check) // the reference's CHECK is one more Allocate
	e.OK(call("DEL", ns, c))
	d.await(t, "msg=released", 1) // and all output before it
	if n := strings.Count(d.said(), "msg=leased"); n != 1 {
		t.Errorf("leased %d times", n)
	}
	server.awaitFree(t, "10.9.0.10")
}

// TestReferenceDaemon calls cnibox's plugin with the reference's daemon. Functions that the daemon
// does not have are skipped.
func TestReferenceDaemon(t *testing.T) {
	path := peer(t)
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	start(t, nil, exec.Command(path, "daemon", "-socketpath", socketOf(e)))
	ns := netopstest.New(t)
	c := conf(e, "")
	status := call("STATUS", ns, c)
	// The daemon does not notify anyone when it listens.
	await.Until(t, func() bool { return e.Run(status).Code == 0 }, func() string { return "the daemon does not answer" })
	r := result(t, e.OK(call("ADD", ns, c)))
	if r.IPs[0].Address.String() != "10.9.0.10/24" || r.Routes[0].GW.String() != "10.9.0.1" {
		t.Errorf("result %+v", r)
	}
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("GC", ns, rolestest.WithKeys(t, c, map[string]any{"cni.dev/valid-attachments": []roles.AttachmentID{{ContainerID: "c1", IfName: "eth0"}}})))
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
}

// TestReferenceBridge: the reference's bridge executes cnibox's plugin, and its DEL deletes the
// interface first. The address is released nevertheless if the host reaches the server.
func TestReferenceBridge(t *testing.T) {
	path := peerOf(t, "bridge")
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	must(t, netlink.AddrAdd(bridge(t), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 254), Mask: net.CIDRMask(24, 32)}}))
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	link := filepath.Join(e.PluginDir(), "bridge")
	must(t, os.Remove(link))
	must(t, os.Symlink(path, link))
	ns := netopstest.New(t)
	c := strings.Replace(conf(e, ""), "1.1.0", "1.0.0", 1)
	r := result(t, e.OK(call("ADD", ns, c)))
	if r.IPs[0].Address.String() != "10.9.0.10/24" {
		t.Errorf("result %+v", r)
	}
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	e.OK(call("DEL", ns, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
	if n := recorded(t, e); n != 0 {
		t.Errorf("%d leases are on record", n)
	}
}
