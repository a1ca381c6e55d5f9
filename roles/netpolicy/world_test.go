package netpolicy_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

func TestMain(m *testing.M) { netopstest.Main(m) }

// pod is a pod with a network namespace behind the host.
type pod struct {
	netpolicy.Pod
	ns *netopstest.NS
}

// isPod is false for an address outside of the cluster's pods. It has no namespace and no policies.
func (p *pod) isPod() bool { return p.Namespace != "" }

// address returns the pod's address of a family.
func (p *pod) address(v6 bool) netip.Addr {
	for _, a := range p.Addresses {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

func ip(t testing.TB, line string) {
	t.Helper()
	run(t, append([]string{"ip"}, strings.Fields(line)...)...)
}

// routed makes a pod's namespace with a veth pair and host routes.
func routed(t testing.TB, n int, p netpolicy.Pod) *pod {
	t.Helper()
	ns := netopstest.New(t)
	in := func(line string) {
		t.Helper()
		run(t, append([]string{"nsenter", "--net=" + ns.Path(), "ip"}, strings.Fields(line)...)...)
	}
	host := fmt.Sprintf("pod%d", n)
	ip(t, "link add "+host+" type veth peer name eth9 netns "+ns.Path())
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", host).Run() })
	ip(t, "addr add 169.254.1.1/32 dev "+host)
	ip(t, "addr add fe80::1/64 dev "+host+" nodad")
	ip(t, "link set "+host+" up")
	in("link set eth9 up")
	in("link set lo up")
	for _, a := range p.Addresses {
		in(fmt.Sprintf("addr add %s/%d dev eth9 nodad", a, a.BitLen()))
		ip(t, fmt.Sprintf("route add %s dev %s", a, host))
	}
	in("route add 169.254.1.1 dev eth9 scope link")
	in("route add default via 169.254.1.1 dev eth9")
	in("-6 route add default via fe80::1 dev eth9")
	return &pod{p, ns}
}

func forwarding(t testing.TB) {
	t.Helper()
	for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+f, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// listen opens a UDP socket on a port for both families.
func (p *pod) listen(t testing.TB, port int) (c *net.UDPConn) {
	t.Helper()
	p.ns.Do(t, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func openFilter(t testing.TB) *podfilter.Filter {
	t.Helper()
	n := netops.New(netops.Options{})
	f, err := podfilter.Open(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		_ = f.Close()
	})
	return f
}

func ensure(t testing.TB, f *podfilter.Filter, table *netpolicy.Table) {
	t.Helper()
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Ensure(t.Context(), linked(table)); err != nil {
		t.Fatal(err)
	}
}

// linked returns a table's Ruleset with the interfaces of its pods.
func linked(table *netpolicy.Table) *podfilter.Ruleset {
	rules, links := table.Ruleset(), map[string]podfilter.Link{}
	for _, l := range table.State().Local {
		link := podfilter.Link{Label: l.Label, Name: "test0", Addresses: l.Addresses}
		if l.Port != "" {
			link.Name, link.Bridge, link.MAC, link.BridgeMAC = l.Port, l.Bridge, "02:00:00:00:00:05", "02:00:00:00:00:01"
		}
		links[l.Label] = link
	}
	rules.SetLinks(links)
	return rules
}

func put(t testing.TB, table *netpolicy.Table, doc string) {
	t.Helper()
	o, err := netpolicy.Decode([]byte(doc))
	if err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	o.PutInto(table)
}

// locals makes all pods of the table pods of this node.
func locals(table *netpolicy.Table) {
	var all []netpolicy.Local
	for _, p := range table.Pods() {
		if !p.HostNetwork && !p.Finished {
			all = append(all, netpolicy.Local{Label: "cnibox:" + p.Key(), Namespace: p.Namespace, Name: p.Name, UID: p.UID, Addresses: p.Addresses})
		}
	}
	table.SetLocal(all)
}
