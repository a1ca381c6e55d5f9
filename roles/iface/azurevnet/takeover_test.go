package azurevnet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/iface/azurevnet"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// conversation is a connection of the node over eth0 that carries bytes in both
// directions.
type conversation struct {
	longest atomic.Int64 // nanoseconds between two replies
	rounds  atomic.Int64
	failed  atomic.Pointer[error]
}

// converse starts a conversation with the fabric. The test's cleanup ends it.
func converse(t *testing.T, f *fabric) *conversation {
	t.Helper()
	var l net.Listener
	f.Do(t, func() (err error) {
		l, err = net.Listen("tcp", gateway+":7000")
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 240, 0, 4)}}
	conn, err := d.Dial("tcp", gateway+":7000")
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	c := new(conversation)
	go func() {
		b := []byte{1}
		for last := time.Now(); ; {
			_, err := conn.Write(b)
			if err == nil {
				_, err = io.ReadFull(conn, b)
			}
			if err != nil {
				c.failed.Store(&err)
				return
			}
			now := time.Now()
			c.longest.Store(max(c.longest.Load(), int64(now.Sub(last))))
			c.rounds.Add(1)
			last = now
		}
	}()
	return c
}

// goesOn fails the test if the connection has ended, and logs its longest
// pause.
func (c *conversation) goesOn(t *testing.T, when string) {
	t.Helper()
	before := c.rounds.Load()
	await.Until(t, func() bool {
		if err := c.failed.Load(); err != nil {
			t.Fatalf("%s: the connection ended: %v", when, *err)
		}
		return c.rounds.Load() >= before+10
	}, func() string { return when + ": the connection stands still" })
	t.Logf("%s: %v at most between two replies", when, time.Duration(c.longest.Swap(0)))
}

// host is the node's roles.Host, for commands that are not calls of a runtime.
func host(t *testing.T, e *rolestest.Env) *roles.Host {
	t.Helper()
	h, done, err := node.Open(t.Context(), node.Options{RunDir: e.RunDir(), StateDir: e.StateDir(), Role: "azure-vnet", Program: "test", Log: slog.New(slog.DiscardHandler), Reference: migrate.ReferencePlugins{}})
	must(t, err)
	t.Cleanup(done)
	return h
}

// verb runs one of the role's commands.
func verb(ctx context.Context, h *roles.Host, name string, flags map[string]string) (any, error) {
	role := azurevnet.Role()
	for _, v := range role.Verbs() {
		if v.Name == "azure-vnet "+name {
			return v.Run(ctx, h, flags, nil)
		}
	}
	return nil, errors.New("no such verb")
}

// TestRestore: a connection over eth0 survives the first ADD, the last DEL and
// restore, and restore leaves the node as it was before. While a pod is
// attached restore is refused without --force. The order of changes in azure's
// plugin stops a connection for more than a second and drops all routes
// (aks-engine #875).
func TestRestore(t *testing.T) {
	f := newFabric(t)
	e := rolestest.NewEnv(t, all.Table())
	modulo := []string{"sysctl net/"}
	before := e.State(modulo)
	c := converse(t, f)
	c.goesOn(t, "before")
	p := attach(t, e, bridge, "a")
	c.goesOn(t, "ADD")
	h := host(t, e)
	if _, err := verb(t.Context(), h, "restore", nil); !errors.Is(err, netops.ErrConflict) {
		t.Errorf("restore with a pod: %v", err)
	}
	p.detach(e)
	c.goesOn(t, "DEL")
	if l := link(t, "eth0"); l.Attrs().MasterIndex == 0 {
		t.Error("the last DEL restored eth0")
	}
	if _, err := verb(t.Context(), h, "restore", map[string]string{"bridge": "other0"}); !errors.Is(err, roles.ErrUsage) {
		t.Errorf("restore of another bridge: %v", err)
	}
	_, err := verb(t.Context(), h, "restore", nil)
	must(t, err)
	c.goesOn(t, "restore")
	if have := e.State(modulo); have != before {
		t.Errorf("after restore:\n%s\nbefore:\n%s", have, before)
	}
}

// TestRestoreByForce restores eth0 while a pod is attached, and without a
// record.
func TestRestoreByForce(t *testing.T) {
	f := newFabric(t)
	e := rolestest.NewEnv(t, all.Table())
	before := e.State([]string{"sysctl net/"})
	p := attach(t, e, bridge, "a")
	_, err := verb(t.Context(), host(t, e), "restore", map[string]string{"force": "true"})
	must(t, err)
	netopstest.CheckDatagram(t, "node to VNet", nil, at(t, f, beyond), "10.240.0.4")
	if l := link(t, "eth0"); l.Attrs().MasterIndex != 0 {
		t.Error("eth0 is in a bridge")
	}
	p.detach(e)
	collect(t, e, bridge)
	if have := e.State([]string{"sysctl net/"}); have != before {
		t.Errorf("after DEL and GC:\n%s\nbefore:\n%s", have, before)
	}
	attach(t, e, bridge, "b").detach(e)
	e.Forget()
	_, err = verb(t.Context(), host(t, e), "restore", nil)
	must(t, err)
	if l := link(t, "eth0"); l.Attrs().MasterIndex != 0 {
		t.Error("without a record eth0 stays in the bridge")
	}
	collect(t, e, bridge)
}

// TestBridgeKeepsMAC: azure0 has eth0's MAC whatever its ports' MACs are. If it
// followed the lowest port's, the ARP translation would fail (azure #751).
func TestBridgeKeepsMAC(t *testing.T) {
	f := newFabric(t)
	e := rolestest.NewEnv(t, all.Table())
	t.Cleanup(func() { collect(t, e, bridge) })
	for i := range 5 {
		attach(t, e, bridge, fmt.Sprint("c", i))
	}
	if mac := link(t, "azure0").Attrs().HardwareAddr.String(); mac != f.mac.String() {
		t.Errorf("azure0 has %s, eth0 had %s", mac, f.mac)
	}
}

// TestOwnAddresses: azure-vnet.json has the addresses that azure0 took over
// from eth0, for pods attached before and after the takeover.
func TestOwnAddresses(t *testing.T) {
	newFabric(t)
	e := rolestest.NewEnv(t, all.Table())
	t.Cleanup(func() { collect(t, e, bridge) })
	for _, id := range []string{"b", "a"} {
		attach(t, e, bridge, id)
		raw, err := os.ReadFile(filepath.Join(e.RunDir(), "azure-vnet.json"))
		must(t, err)
		var f struct {
			Network struct {
				ExternalInterfaces map[string]struct{ IPAddresses []*net.IPNet }
			}
		}
		must(t, json.Unmarshal(raw, &f))
		have := fmt.Sprint(f.Network.ExternalInterfaces["eth0"].IPAddresses)
		if want := "[10.240.0.4/16 10.240.0.5/16 fd00:240::4/64]"; have != want {
			t.Errorf("after %s: %s, want %s", id, have, want)
		}
	}
}

// TestViaHost: the node receives packets from a pod to an address of
// ipsToRouteViaHost, although the pod sends them to its gateway.
func TestViaHost(t *testing.T) {
	for _, mode := range []string{"bridge", "tunnel"} {
		t.Run(mode, func(t *testing.T) {
			newFabric(t)
			conf := rolestest.WithKeys(t, bridge, map[string]any{"mode": mode, "ipsToRouteViaHost": []string{"169.254.20.10"}})
			e := rolestest.NewEnv(t, all.Table())
			t.Cleanup(func() { collect(t, e, conf) })
			cache := &netlink.Addr{IPNet: netlink.NewIPNet([]byte{169, 254, 20, 10})}
			must(t, netlink.AddrAdd(link(t, "lo"), cache))
			t.Cleanup(func() { must(t, netlink.AddrDel(link(t, "lo"), cache)) })
			p := attach(t, e, conf, "a")
			netopstest.CheckDatagram(t, "pod to the node's DNS cache", p, netopstest.Listen(t, nil, "169.254.20.10:53"), p.addr)
		})
	}
}

// TestCloudNIC: the cloud reports the interface of an address, and the bridge's
// name has that interface's index. Both interfaces are in one subnet.
func TestCloudNIC(t *testing.T) {
	newFabric(t)
	second := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "f1"}
	must(t, netlink.LinkAdd(second))
	t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "eth1"))) })
	must(t, netopstest.LinkUp("f1"))
	must(t, netopstest.LinkUp("eth1", "10.240.0.6/32"))
	eth1 := link(t, "eth1").Attrs()
	e := rolestest.NewEnv(t, all.Table())
	file := filepath.Join(e.Dir(), "interfaces.json")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `{"Interfaces":[
		{"MacAddress":%q,"IsPrimary":true,"IPSubnets":[{"Prefix":"10.240.0.0/16","IPAddresses":[{"Address":"10.240.0.4","IsPrimary":true}]}]},
		{"MacAddress":%q,"IsPrimary":false,"IPSubnets":[{"Prefix":"10.240.0.0/16","IPAddresses":[{"Address":"10.240.0.6","IsPrimary":true},{"Address":"10.240.0.36","IsPrimary":false}]}]}]}`,
		bare(link(t, "eth0").Attrs().HardwareAddr), bare(eth1.HardwareAddr)), 0o600))
	conf := fmt.Sprintf(`{"name":"azure","type":"azure-vnet","mode":"bridge","ipam":{"type":"azure-vnet-ipam","environment":"fileIpam","file":%q}}`, file)
	t.Cleanup(func() { collect(t, e, conf) })
	p := attach(t, e, conf, "a")
	if p.addr != "10.240.0.36" {
		t.Errorf("the address is %s", p.addr)
	}
	name := fmt.Sprintf("azure%d", eth1.Index)
	if l := link(t, "eth1"); l.Attrs().MasterIndex != link(t, name).Attrs().Index {
		t.Errorf("eth1 is not a port of %s", name)
	}
	if l := link(t, "eth0"); l.Attrs().MasterIndex != 0 {
		t.Error("eth0 is a port")
	}
}

// bare is a MAC address in Azure's notation.
func bare(mac net.HardwareAddr) string {
	return strings.ToUpper(strings.ReplaceAll(mac.String(), ":", ""))
}
