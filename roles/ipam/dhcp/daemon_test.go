package dhcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// short gives leases of 8 s, renewed after 1 s and rebound after 3 s. The 8 s are for a busy machine.
const short = `default-lease-time 8; max-lease-time 8; min-lease-time 8; option dhcp-renewal-time 1; option dhcp-rebinding-time 3;
option dhcp-parameter-request-list = concat(option dhcp-parameter-request-list, 3a, 3b);
`

// awaitGone waits until the container does not have the address.
func awaitGone(t *testing.T, ns *netopstest.NS, addr string) {
	t.Helper()
	await.Until(t, func() bool { return !strings.Contains(ns.Snapshot(t), addr) }, func() string { return "container:\n" + ns.Snapshot(t) })
}

// TestRenew: a lease is renewed at the server's renewal time, with the same server.
func TestRenew(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", short+isc4With(``))
	server6 := isc(t, wire.server, "-6", fmt.Sprintf(isc6, "default-lease-time 60; preferred-lifetime 50; option dhcp-renewal-time 1; option dhcp-rebinding-time 40;"))
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, `,"families":["ipv4","ipv6"]`)
	r := result(t, e.OK(call("ADD", ns, c)))
	server.await(t, "DHCPACK on 10.9.0.10", 1) // and all output before it
	discovered := strings.Count(server.said(), "DHCPDISCOVER")
	server.await(t, "DHCPACK on 10.9.0.10", 3)
	server6.await(t, "Renew message", 2)
	e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
	if s := server.said(); strings.Count(s, "DHCPDISCOVER") != discovered {
		t.Errorf("server:\n%s", s)
	}
	e.OK(call("DEL", ns, c))
}

// TestExpiry: without a server the address is removed when the lease ends, and added again when the
// server answers. (The reference takes the interface down.)
func TestExpiry(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", short+isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e, "-timeout", "1s", "-resendmax", "1s")
	ns := netopstest.New(t)
	c := conf(e, "")
	r := result(t, e.OK(call("ADD", ns, c)))
	check := call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r}))
	attached := ns.Snapshot(t)
	server.kill()
	d.await(t, "removing the address", 1)
	awaitGone(t, ns, "10.9.0.10")
	e.Fail(check, 106)
	isc(t, wire.server, "-4", isc4With(``))
	d.await(t, "leased again", 1)
	if s := ns.Snapshot(t); s != attached {
		t.Errorf("container:\n%swas:\n%s", s, attached)
	}
	e.OK(check)
	e.OK(call("DEL", ns, c))
}

// TestRefused: a server that does not know the address (DHCPNAK) ends the lease at once.
func TestRefused(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", short+isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e, "-timeout", "1s", "-resendmax", "1s")
	ns := netopstest.New(t)
	c := conf(e, "")
	e.OK(call("ADD", ns, c))
	server.kill()
	other := dnsmasq(t, wire.server, "200")
	d.await(t, "the server ended the lease", 1)
	other.await(t, "DHCPNAK(eth0) 10.9.0.10", 1)
	d.await(t, "instead of 10.9.0.10", 1)
	if s := ns.Snapshot(t); strings.Contains(s, "address 10.9.0.") {
		t.Errorf("container:\n%s", s)
	}
	if s := other.said(); strings.Contains(s, "DHCPACK") {
		t.Errorf("an address was leased that the daemon does not know:\n%s", s)
	}
	e.OK(call("DEL", ns, c))
}

// TestRestart: issues #235 and #767: the next daemon resumes the leases.
func TestRestart(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *program){
		"killed":     func(_ *testing.T, p *program) { p.kill() },
		"terminated": func(t *testing.T, p *program) { p.stop(t) },
	} {
		t.Run(name, func(t *testing.T) {
			wire := newWire(t)
			server := isc(t, wire.server, "-4", isc4With(``))
			e := rolestest.NewEnv(t, all.Table())
			first := daemon(t, e)
			ns := netopstest.New(t)
			c := conf(e, "")
			r := result(t, e.OK(call("ADD", ns, c)))
			server.await(t, "DHCPACK on 10.9.0.10", 1) // and all output before it
			discovered := strings.Count(server.said(), "DHCPDISCOVER")
			end(t, first)
			if _, err := os.Stat(socketOf(e)); name == "terminated" && !os.IsNotExist(err) {
				t.Errorf("the socket is still there: %v", err)
			}
			daemon(t, e)
			server.await(t, "DHCPACK on 10.9.0.10", 2) // INIT-REBOOT
			e.OK(call("CHECK", ns, rolestest.WithKeys(t, c, map[string]any{"prevResult": r})))
			if same := result(t, e.OK(direct("ADD", ns, c))); same.IPs[0].Address.String() != r.IPs[0].Address.String() {
				t.Errorf("address %v, was %v", same.IPs[0].Address, r.IPs[0].Address)
			}
			e.OK(call("DEL", ns, c))
			server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
			if s := server.said(); strings.Count(s, "DHCPDISCOVER") != discovered {
				t.Errorf("server:\n%s", s)
			}
		})
	}
}

// direct returns a call of the plugin, as an interface plugin makes it.
func direct(verb string, ns *netopstest.NS, conf string) rolestest.Call {
	c := call(verb, ns, conf)
	c.Type = "dhcp"
	return c
}

// TestReboot: after a reboot a container with another ID but of the same pod requests the address
// that the pod had.
func TestReboot(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	c := conf(e, "")
	pod := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
	before := call("ADD", netopstest.New(t), c)
	before.Args = pod
	r := result(t, e.OK(before))
	d.kill()
	reboot(t, e)
	server.kill()
	// This server has no leases, so it gives the address only because the client requests it.
	isc(t, wire.server, "-4", "authoritative; ping-check false; subnet 10.9.0.0 netmask 255.255.255.0 { range 10.9.0.5 10.9.0.250; }")
	daemon(t, e)
	if l := listed(t, e); len(l) != 1 || l[0]["former"] != true || l[0]["pod"] != "default/web-0" || l[0]["address"] != "10.9.0.10/24" {
		t.Errorf("listed %v", l)
	}
	after := call("ADD", netopstest.New(t), c)
	after.Args, after.ID = pod, "c2"
	if got := result(t, e.OK(after)); got.IPs[0].Address.String() != r.IPs[0].Address.String() {
		t.Errorf("address %v, was %v", got.IPs[0].Address, r.IPs[0].Address)
	}
	if l := listed(t, e); len(l) != 1 || l[0]["containerID"] != "c2" {
		t.Errorf("the former lease is still on record: %v", l)
	}
}

// reboot makes all recorded leases those of an earlier boot.
func reboot(t *testing.T, e *rolestest.Env) {
	t.Helper()
	keep(t, e, func(tx *store.KeepTx) error {
		all, err := tx.DHCPLeases("")
		if len(all) != 1 {
			t.Errorf("%d leases on record", len(all))
		}
		for _, l := range all {
			l.BootID = "former"
			if err := tx.PutDHCPLease(&l); err != nil {
				return err
			}
		}
		return err
	})
}

// keep changes the node's keep.db.
func keep(t *testing.T, e *rolestest.Env, f func(*store.KeepTx) error) {
	t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test"})
	must(t, err)
	defer done()
	must(t, h.Store.KeepUpdate(context.Background(), f))
}

// recorded counts the leases on record.
func recorded(t *testing.T, e *rolestest.Env) (n int) {
	t.Helper()
	keep(t, e, func(tx *store.KeepTx) error {
		all, err := tx.DHCPLeases("")
		n = len(all)
		return err
	})
	return n
}

// TestNoDaemon: without a daemon ADD's error has advice, and DEL and GC release the recorded leases.
func TestNoDaemon(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	ns := netopstest.New(t)
	c := conf(e, "")
	if a := e.Fail(call("ADD", ns, c), 11); !strings.Contains(a.Stdout, socketOf(e)) || !strings.Contains(a.Stdout, "cnibox dhcp daemon") {
		t.Errorf("error %s", a.Stdout)
	}
	e.Fail(call("STATUS", ns, c), 50)
	e.OK(call("DEL", ns, c))
	d := daemon(t, e)
	e.OK(call("STATUS", ns, c))
	for i, end := range []rolestest.Call{call("DEL", ns, c), gc(ns, c)} {
		e.OK(call("ADD", ns, c))
		d.kill()
		e.OK(end)
		server.await(t, "DHCPRELEASE of 10.9.0.10", i+1)
		if n := recorded(t, e); n != 0 {
			t.Errorf("after %s %d leases are on record", end.Verb, n)
		}
		d = daemon(t, e)
	}
}

// TestDaemonAway: ADD has one code, however the daemon is away.
func TestDaemonAway(t *testing.T) {
	listen := func(t *testing.T, path string) *net.UnixListener {
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	for _, way := range []struct {
		name, says string
		arrange    func(t *testing.T, path string)
	}{
		{"absent", "does not run", func(*testing.T, string) {}},
		{"refused", "does not run", func(t *testing.T, path string) {
			l := listen(t, path)
			l.SetUnlinkOnClose(false)
			must(t, l.Close())
		}},
		{"ends", "ended during the call", func(t *testing.T, path string) {
			l := listen(t, path)
			go func() {
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					_ = c.Close()
				}
			}()
		}},
		{"stopped", "does not answer in time", func(t *testing.T, path string) { listen(t, path) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			e := rolestest.NewEnv(t, all.Table())
			way.arrange(t, socketOf(e))
			add := rolestest.Call{
				Type: "dhcp", Verb: "ADD", ID: "c1", Netns: netopstest.New(t).Path(), IfName: "eth0",
				Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"lan","type":"dhcp","ipam":{"type":"dhcp","daemonSocketPath":%q}}`, socketOf(e)),
			}
			if a := e.Fail(add, 11); !strings.Contains(a.Stdout, way.says) {
				t.Errorf("error %s", a.Stdout)
			}
			add.Verb = "STATUS"
			e.Fail(add, 50)
		})
	}
}

// gc lists no attachment as valid.
func gc(ns *netopstest.NS, conf string) rolestest.Call {
	c := call("GC", ns, conf)
	c.Conf = strings.TrimSuffix(conf, "}") + `,"cni.dev/valid-attachments":[]}`
	return c
}

// TestNoServer covers the reference's scenario "second lease unavailable": ADD
// fails in time and leaves nothing.
func TestNoServer(t *testing.T) {
	newWire(t)
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e, "-timeout", "300ms", "-resendtimeout", "1s")
	ns := netopstest.New(t)
	start := e.State(nil, ns)
	for _, family := range []string{"ipv4", "ipv6"} {
		if a := e.Fail(call("ADD", ns, conf(e, `,"families":["`+family+`"]`)), 11); !strings.Contains(a.Stdout, "no DHCP server answered") {
			t.Errorf("error %s", a.Stdout)
		}
	}
	e.OK(gc(ns, conf(e, "")))
	if s := e.State(nil, ns); strings.Contains(s, "eth0") || recorded(t, e) != 0 {
		t.Errorf("state:\n%s\nwas:\n%s", s, start)
	}
}

// TestTwoServers: the first offer is accepted, and the other server is notified.
func TestTwoServers(t *testing.T) {
	wire := newWire(t)
	br := bridge(t)
	second := join(t, br, "sv1", "10.9.0.2/24", "fd09::2/64")
	one := isc(t, wire.server, "-4", isc4With(``))
	dnsmasq(t, second, "100")
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	c := conf(e, "")
	for i := range 8 {
		add := call("ADD", netopstest.New(t), c)
		add.ID = fmt.Sprint("c", i)
		e.OK(add)
	}
	d.await(t, "msg=leased", 8)
	one.await(t, "DHCPREQUEST", 8) // for its own address or "unknown lease"
	e.OK(gc(netopstest.New(t), c))
	if n := recorded(t, e); n != 0 {
		t.Errorf("%d leases are on record", n)
	}
}

// TestDeletedNamespace: the lease of a container whose namespace was deleted is released.
func TestDeletedNamespace(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", short+isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e)
	ns := netopstest.New(t)
	c := conf(e, "")
	e.OK(call("ADD", ns, c))
	ns.Remove(t)
	must(t, netlink.AddrAdd(bridge(t), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 254), Mask: net.CIDRMask(24, 32)}}))
	d.await(t, "the container is gone", 1)
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1) // from the host, which reaches the server
	await.Until(t, func() bool { return recorded(t, e) == 0 }, func() string { return "the lease is still on record" })
	e.OK(call("DEL", ns, c))
}

// TestKilledCall: a lease that is made after its caller was killed is released.
func TestKilledCall(t *testing.T) {
	wire := newWire(t)
	e := rolestest.NewEnv(t, all.Table())
	d := daemon(t, e, "-timeout", "2s")
	ns := netopstest.New(t)
	cmd := e.Cmd(call("ADD", ns, conf(e, "")))
	add := start(t, nil, cmd)
	d.await(t, "no address yet", 1)
	add.kill()
	d.await(t, "gave up", 1)
	server := isc(t, wire.server, "-4", isc4With(``))
	e.OK(call("DEL", ns, conf(e, "")))
	if n := recorded(t, e); n != 0 || strings.Contains(server.said(), "DHCPACK") {
		t.Errorf("%d leases on record", n)
	}
	e.OK(call("ADD", ns, conf(e, "")))
	e.OK(call("DEL", ns, conf(e, "")))
}

// TestReusedContainerID: a container ID that is used again with another namespace is a new client.
func TestReusedContainerID(t *testing.T) {
	wire := newWire(t)
	server := isc(t, wire.server, "-4", isc4With(``))
	e := rolestest.NewEnv(t, all.Table())
	daemon(t, e)
	c := conf(e, "")
	before, now := netopstest.New(t), netopstest.New(t)
	e.OK(call("ADD", before, c))
	other := call("ADD", now, c)
	other.ID = "c2"
	e.OK(other)
	e.OK(direct("ADD", now, c))
	server.await(t, "DHCPRELEASE of 10.9.0.10", 1)
	keep(t, e, func(tx *store.KeepTx) error {
		l, err := tx.DHCPLease(store.Key{Network: "lan", ContainerID: "c1", IfName: "eth0"})
		if err == nil && l.Netns.Path != now.Path() {
			t.Errorf("the lease is of %+v", l.Netns)
		}
		return err
	})
}

// listed returns the output of `cnibox state dhcp`.
func listed(t *testing.T, e *rolestest.Env) (out []map[string]any) {
	t.Helper()
	h, done, err := node.Open(context.Background(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "test"})
	must(t, err)
	defer done()
	role, _ := all.Table().Lookup("dhcp")
	answer, err := role.Verbs()[0].Run(context.Background(), h, nil, nil)
	must(t, err)
	raw, err := json.Marshal(answer)
	must(t, err)
	must(t, json.Unmarshal(raw, &out))
	return out
}
