package view

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// TestOnce: a fact, or the failure to read it, is the same until Forget. Another question is another fact.
func TestOnce(t *testing.T) {
	n := netops.New(netops.Options{})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	v := NewHost(t.Context(), n)
	const path, key = "/proc/sys/net/ipv4/ip_forward", "net/ipv4/ip_forward"
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want string) {
		t.Helper()
		if have, err := v.Sysctl(key); have != want || err != nil {
			t.Errorf("%s is %q, %v, want %q", key, have, err, want)
		}
	}
	set("0")
	is("0")
	set("1")
	is("0")
	v.Forget()
	is("1")
	if have, err := v.Sysctl("net/ipv4/conf/nowhere/forwarding"); have != "" || err != nil {
		t.Errorf("a missing setting is %q, %v", have, err)
	}
	to := func(a string) netops.Packet { return netops.Packet{To: netip.MustParseAddr(a)} }
	if _, err := v.Way(to("192.0.2.1")); !errors.Is(err, netops.ErrNotExist) {
		t.Errorf("a route in an empty namespace: %v", err)
	}
	if way, err := v.Way(to("127.0.0.1")); err != nil || !way.Local {
		t.Errorf("%+v, %v", way, err)
	}
	if out, err := exec.Command("sh", "-c", "ip link add view0 type bridge && ip addr add 192.0.2.2/24 dev view0 && ip link set view0 up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, err := v.Way(to("192.0.2.1"))
	if _, linkErr := v.Link("view0"); !errors.Is(err, netops.ErrNotExist) || linkErr != nil {
		t.Errorf("asked again: %v, and a first question: %v", err, linkErr)
	}
	v.Forget()
	if way, err := v.Way(to("192.0.2.1")); err != nil || way.Link != "view0" {
		t.Errorf("%+v, %v", way, err)
	}
}
