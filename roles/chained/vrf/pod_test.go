package vrf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// pod is one container on a node.
type pod struct {
	t   *testing.T
	env *rolestest.Env
	ns  *netopstest.NS
}

func newPod(t *testing.T) *pod {
	t.Helper()
	needVRF(t)
	p := &pod{t, rolestest.NewEnv(t, all.Table()), netopstest.New(t)}
	return p
}

// bridge is the interface plugin of a network with its own bridge. All networks
// have the same subnet.
func (p *pod) bridge(verb, ifName string) rolestest.Call {
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net-%[1]s","type":"bridge","bridge":"br-%[1]s","isDefaultGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24","rangeStart":"10.7.0.5"}],[{"subnet":"fd00:7::/64","rangeStart":"fd00:7::5"}]]}}`, ifName)
	return rolestest.Call{Type: "bridge", Verb: verb, ID: "c1", Netns: p.ns.Path(), IfName: ifName, Conf: conf}
}

// vrf is the call of the vrf role after it, with additional keys.
func (p *pod) vrf(verb, ifName string, prev rolestest.Answer, keys map[string]any) rolestest.Call {
	p.t.Helper()
	c := p.bridge(verb, ifName)
	conf := rolestest.WithKeys(p.t, fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net-%s","type":"vrf"}`, ifName), keys)
	if prev.Stdout != "" {
		conf = rolestest.WithKeys(p.t, conf, map[string]any{"prevResult": json.RawMessage(prev.Stdout)})
	}
	c.Type, c.Conf = "vrf", conf
	return c
}

// attach adds an interface to a VRF. The cleanup deletes the bridge.
func (p *pod) attach(ifName string, keys map[string]any) rolestest.Answer {
	p.t.Helper()
	prev := p.interfaceOnly(ifName)
	return p.env.OK(p.vrf("ADD", ifName, prev, keys))
}

func (p *pod) interfaceOnly(ifName string) rolestest.Answer {
	p.t.Helper()
	p.t.Cleanup(func() {
		p.env.OK(p.bridge("DEL", ifName))
		if err := change("br-"+ifName, netlink.LinkDel); err != nil {
			p.t.Error(err)
		}
	})
	return p.env.OK(p.bridge("ADD", ifName))
}

// inside lists the VRFs with tables and members, and the members' routes and
// addresses, one per line. It leaves out the kernel's routes to the container's
// own addresses, which are in a VRF's table too.
func (p *pod) inside() []string {
	p.t.Helper()
	var lines []string
	for line := range strings.Lines(p.ns.Snapshot(p.t)) {
		f := strings.Fields(line)
		switch f[0] {
		case "route", "address":
			local := strings.Contains(line, "/32 via <nil>") || strings.Contains(line, "/128 via <nil>")
			if !local && !strings.Contains(line, " dev lo") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	p.ns.Do(p.t, func() error {
		links, err := netlink.LinkList()
		names := map[int]string{}
		for _, l := range links {
			names[l.Attrs().Index] = l.Attrs().Name
		}
		for _, l := range links {
			switch l := l.(type) {
			case *netlink.Vrf:
				lines = append(lines, fmt.Sprintf("vrf %s table %d", l.Name, l.Table))
			case *netlink.Veth:
				lines = append(lines, fmt.Sprintf("%s in %q", l.Name, names[l.MasterIndex]))
			}
		}
		return err
	})
	return lines
}

func (p *pod) want(when string, want ...string) {
	p.t.Helper()
	if d := cmp.Diff(want, p.inside()); d != "" {
		p.t.Errorf("%s (-want +have):\n%s", when, d)
	}
}

// reaches sends a datagram from a VRF to an address of the host.
func (p *pod) reaches(address, vrf string) {
	p.t.Helper()
	to, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		p.t.Fatal(err)
	}
	defer to.Close()
	if err := to.SetReadDeadline(await.Deadline()); err != nil {
		p.t.Fatal(err)
	}
	p.ns.Do(p.t, func() error {
		bound := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), vrf) }), err)
		}}
		from, err := bound.Dial("udp", to.LocalAddr().String())
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = from.Write([]byte("x"))
		return err
	})
	if _, _, err := to.ReadFromUDP(make([]byte, 1)); err != nil {
		p.t.Errorf("%s from within VRF %q: %v", address, vrf, err)
	}
}

// of are the addresses of an interface and its routes in a table.
func of(ifName string, table int) (addresses, routes []string) {
	addresses = []string{
		fmt.Sprintf("address 10.7.0.5/24 dev %s", ifName), fmt.Sprintf("address fd00:7::5/64 dev %s", ifName),
	}
	for _, r := range []string{"0.0.0.0/0 via 10.7.0.1", "10.7.0.0/24 via <nil>", "::/0 via fd00:7::1", "fd00:7::/64 via <nil>"} {
		metric := 0
		switch {
		case strings.HasPrefix(r, "::/0"):
			metric = 1024
		case strings.HasPrefix(r, "fd00"):
			metric = 256
		}
		routes = append(routes, fmt.Sprintf("route %s dev %s table %d metric %d", r, ifName, table, metric))
	}
	return addresses, routes
}
