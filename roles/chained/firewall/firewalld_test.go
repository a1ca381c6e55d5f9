package firewall_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/bus"
)

const (
	firewalldBus  = "org.fedoraproject.FirewallD1"
	firewalldPath = "/org/fedoraproject/FirewallD1"
)

// startFirewalld starts Debian's firewalld and a D-Bus daemon for it in the
// test's own mount and network namespaces.
func startFirewalld(t testing.TB) *dbus.Conn {
	t.Helper()
	conn, _ := runFirewalld(t)
	return conn
}

func runFirewalld(t testing.TB) (*dbus.Conn, *os.Process) {
	t.Helper()
	conn, program := bus.System(t), exec.Command("/usr/bin/python3", "/usr/sbin/firewalld", "--nofork", "--nopid")
	bus.Serve(t, conn, firewalldBus, program)
	var zones []string // firewalld answers after it has made its rules
	if err := object(conn).Call(firewalldBus+".zone.getZones", 0).Store(&zones); err != nil {
		t.Fatal(err)
	}
	return conn, program.Process
}

func object(conn *dbus.Conn) dbus.BusObject { return conn.Object(firewalldBus, firewalldPath) }

func reload(t testing.TB, conn *dbus.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	if err := object(conn).CallWithContext(ctx, firewalldBus+".reload", 0).Err; err != nil {
		t.Fatal(err)
	}
}

// sources are the sources of a zone.
func sources(t testing.TB, conn *dbus.Conn, zone string) string {
	t.Helper()
	var all []string
	if err := object(conn).Call(firewalldBus+".zone.getSources", 0, zone).Store(&all); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestFirewalldRole runs the suite with the real firewalld: the reference's
// scenarios "firewalld works", "auto-detected" and "CHECK".
func TestFirewalldRole(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	conn := startFirewalld(t)
	removed := rolestest.Tamper{Name: "source removed", Do: func(t *testing.T, _ *rolestest.Env, _ *netopstest.NS, r *roles.Result) {
		t.Helper()
		source := r.IPs[0].Address.IP.String() + "/32"
		var zone string
		if err := object(conn).Call(firewalldBus+".zone.getZoneOfSource", 0, source).Store(&zone); err != nil {
			t.Fatal(err)
		}
		if err := object(conn).Call(firewalldBus+".zone.removeSource", 0, zone, source).Err; err != nil {
			t.Fatal(err)
		}
	}}
	// If the state is lost, GC cannot know firewalld's sources; a reload
	// removes them.
	host := func(testing.TB) {}
	reloaded := func(t testing.TB) { t.Helper(); reload(t, conn) }
	suite(
		rolestest.Conf{
			Name: "firewalld", Chain: behindBridge, JSON: `{"name":"pods","type":"firewall","backend":"firewalld","firewalldZone":"internal"}`,
			Repeatable: true, NoSweeps: true, Host: host, Tamper: []rolestest.Tamper{removed},
			Flush: reloaded,
		},
		rolestest.Conf{Name: "auto", Chain: behindPTP, JSON: `{"name":"pods","type":"firewall"}`, Repeatable: true, Host: host, Tamper: []rolestest.Tamper{removed}, Flush: reloaded},
	).Run(t)
}

// TestFirewalldTraffic: firewalld drops what containers send unless their
// addresses are sources. The next call restores sources that a reload removed.
func TestFirewalldTraffic(t *testing.T) {
	conn := startFirewalld(t)
	w := newWorld(t)
	a := w.attached("a", 1, `{}`)
	w.reach("a", "outside", false)
	w.OK(a.firewall)
	w.reach("a", "outside", true)
	w.reach("outside", "a", true) // the reply
	b := w.attach("b", 1, `{"backend":"firewalld"}`)
	reload(t, conn)
	w.Fail(check(a), 106)
	w.Fail(check(b), 106)
	if have := sources(t, conn, "trusted"); have != "" {
		t.Errorf("CHECK added sources: %s", have)
	}
	c := w.attach("c", 1, `{}`)
	for _, p := range []*peer{a, b, c} {
		w.OK(check(p))
	}
	w.reach("a", "outside", true)
	reload(t, conn)
	w.del(c)
	w.OK(check(a))
	w.del(b)
	w.del(a)
	if have := sources(t, conn, "trusted"); have != "" {
		t.Errorf("left: %s", have)
	}
}

// TestFirewalldOwners: two attachments on different networks may have one
// address. When one is deleted the source stays for the other.
func TestFirewalldOwners(t *testing.T) {
	conn := startFirewalld(t)
	w := newWorld(t)
	a := w.attach("a", 1, `{}`)
	b := w.attached("b", 2, `{}`)
	b.firewall.Conf = strings.ReplaceAll(a.firewall.Conf, `"net1"`, `"net2"`)
	w.OK(b.firewall)
	w.del(a)
	w.OK(check(b))
	if have := sources(t, conn, "trusted"); strings.Count(have, "10.1.0.2/32") != 1 {
		t.Errorf("sources %q", have)
	}
	w.del(b)
	if have := sources(t, conn, "trusted"); have != "" {
		t.Errorf("left: %s", have)
	}
}

// TestFirewalldReferenceSource: DEL removes a source that the reference plugin added for a
// container which is otherwise ours.
func TestFirewalldReferenceSource(t *testing.T) {
	w := newWorld(t)
	conn := startFirewalld(t)
	a := w.attached("a", 1, `{}`)
	for _, addr := range a.addrs {
		var zone string
		if err := object(conn).Call(firewalldBus+".zone.addSource", 0, "trusted", netip.PrefixFrom(addr, addr.BitLen()).String()).Store(&zone); err != nil {
			t.Fatal(err)
		}
	}
	w.OK(verb(a.firewall, "DEL"))
	if have := sources(t, conn, "trusted"); have != "" {
		t.Errorf("left: %s", have)
	}
}

// TestFirewalldSilent: a firewalld that was started after the container was
// attached, and does not answer, does not block its DEL.
func TestFirewalldSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	w := newWorld(t)
	a := w.attach("a", 1, `{}`)
	_, firewalld := runFirewalld(t)
	if err := firewalld.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer firewalld.Signal(unix.SIGCONT) //nolint:errcheck // the cleanup kills it next
	w.del(a)
}

// TestFirewalldGone: without firewalld DEL succeeds, and the verbs that need
// firewalld return an error.
func TestFirewalldGone(t *testing.T) {
	w := newWorld(t)
	var a *peer
	t.Run("attach", func(t *testing.T) {
		startFirewalld(t)
		a = w.attach("a", 1, `{"backend":"firewalld"}`)
		bad := a.firewall
		bad.Conf = rolestest.WithKeys(t, bad.Conf, map[string]any{"firewalldZone": "nozone"})
		if f := w.Fail(bad, 0); !strings.Contains(f.Stdout, "nozone") {
			t.Errorf("zone: %s", f.Stdout)
		}
		w.OK(a.firewall)
	})
	if f := w.Fail(check(a), 106); !strings.Contains(f.Stdout, "firewalld zone trusted source") {
		t.Errorf("CHECK: %s", f.Stdout)
	}
	w.del(a)
	if f := w.Fail(a.firewall, 0); !strings.Contains(f.Stdout, "no system bus answers") {
		t.Errorf("ADD: %s", f.Stdout)
	}
	status := a.firewall
	status.Verb, status.ID, status.Netns, status.IfName = "STATUS", "", "", ""
	w.Fail(status, 50)
}
