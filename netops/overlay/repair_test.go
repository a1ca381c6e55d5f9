package overlay

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/await"
)

// awaitChange waits until the overlay requests an Apply.
func awaitChange(t *testing.T, o *Kernel, what string) {
	t.Helper()
	await.Next(t, o.Changes(), what+": a change notification")
}

// repair calls Apply whenever the overlay requests it, until the pods reach each
// other again.
func repair(t *testing.T, o *Kernel, spec Spec, works func() bool) {
	t.Helper()
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-o.Changes():
			}
			_, _ = o.Apply(context.Background(), spec)
		}
	}()
	ok := works()
	close(done)
	<-ended
	if !ok {
		t.Fatalf("no answer from the other pod: %+v\n%s", o.Peers(t.Context()), nstest.IP(t, "-d link")+nstest.IP(t, "addr")+nstest.IP(t, "route")+nstest.IP(t, "nexthop")+nstest.IP(t, "neigh"))
	}
}

// disturbance is a change of the kernel by another program.
type disturbance struct {
	name string
	do   []string // commands; DEV, GW, SUBNET, OTHER, ADDR, BOGUS and LOCAL are replaced
	only string   // "4" or "6" for a cut of one family only
}

// disturbances are the rows of flannel's repair matrix that concern the kernel. Of these,
// flanneld restores only a deleted IPv4 device, without its peers.
var disturbances = []disturbance{
	{name: "device deleted", do: []string{"ip link del DEV"}},
	{name: "device down", do: []string{"ip link set DEV down"}},
	{name: "device down and up", do: []string{"ip link set DEV down", "ip link set DEV up"}},
	{name: "route deleted", do: []string{"ip route del SUBNET"}},
	{name: "route replaced", do: []string{"ip route replace SUBNET dev lo"}},
	{name: "route made unreachable", do: []string{"ip route replace unreachable SUBNET"}, only: "4"},
	{name: "neighbour deleted", do: []string{"ip neigh del GW dev DEV"}},
	{name: "neighbour altered", do: []string{"ip neigh replace GW lladdr 02:00:00:00:00:99 dev DEV nud permanent"}},
	{name: "forwarding entry deleted", do: []string{"bridge fdb del " + otherMAC + " dev DEV dst OTHER self"}},
	{name: "forwarding entry altered", do: []string{"bridge fdb replace " + otherMAC + " dev DEV dst BOGUS self permanent"}},
	{name: "nexthop deleted", do: []string{"ip nexthop flush proto 142"}},
	{name: "address deleted", do: []string{"ip addr del ADDR dev DEV"}},
	{name: "addresses flushed", do: []string{"ip addr flush dev DEV"}},
	{name: "MAC rewritten", do: []string{"ip link set DEV address 02:00:00:00:00:77"}},
	{name: "device enslaved", do: []string{"ip link add renamed0 type bridge", "ip link set DEV master renamed0"}},
	{name: "ARP switched off", do: []string{"ip link set DEV arp off"}},
	{name: "forwarding switched off", do: []string{"sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0"}},
	{name: "device renamed", do: []string{"ip link set DEV down", "ip link set DEV name renamed0", "ip link set renamed0 up"}},
	{name: "another device in its place", do: []string{"ip link del DEV", "ip link add DEV type vxlan id 1 dev under0 local LOCAL dstport 4789"}},
}

// TestOverlayRepair breaks the route to the other pod and waits until it is
// restored.
func TestOverlayRepair(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		family := map[bool]string{false: "4", true: "6"}[n.is6]
		t.Run("IPv"+family, func(t *testing.T) {
			other := makeNodes(t, n)
			at := echo(t, other, n)
			o := openOverlay(t, n, Options{})
			spec := n.spec()
			apply(t, o, spec)
			works := func() bool { return reach(t, n, at) }
			if !works() {
				t.Fatal("no answer before any cut")
			}
			for _, c := range disturbances {
				if c.only != "" && c.only != family {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					start := time.Now()
					for _, command := range c.do {
						f := strings.Fields(n.fill(command))
						if n.is6 && f[0] == "ip" {
							f = append([]string{"ip", "-6"}, f[1:]...)
						}
						nstest.Run(t, f[0], f[1:]...)
					}
					repair(t, o, spec, works)
					t.Logf("works again after %v", time.Since(start).Round(time.Millisecond))
					settled(t, o, spec)
				})
				nstest.TryIP("link del renamed0")
			}
		})
	}
}

// settled waits until the overlay requests no Apply and an Apply writes nothing.
func settled(t *testing.T, o *Kernel, spec Spec) {
	t.Helper()
	for range 20 {
		r, err := o.Apply(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-o.Changes():
			continue
		case <-time.After(100 * time.Millisecond):
		}
		if r.Writes != 0 || r.Programmed != len(spec.Peers) {
			continue
		}
		return
	}
	t.Fatalf("changes do not end: %+v", o.Peers(t.Context()))
}

func (n *overlayNet) fill(command string) string {
	bogus := "192.168.50.77"
	if n.is6 {
		bogus = "fd50::77"
	}
	return strings.NewReplacer("DEV", n.device, "GW", first(n.otherSubnet), "SUBNET", n.otherSubnet, "OTHER", n.other,
		"BOGUS", bogus, "ADDR", first(n.ownSubnet)+n.bits(), "LOCAL", n.own).Replace(command)
}

// TestOverlayParent deletes the lower link and makes a new one with the same
// name.
func TestOverlayParent(t *testing.T) {
	n := net4()
	other := makeNodes(t, n)
	at := echo(t, other, n)
	o := openOverlay(t, n, Options{})
	spec := n.spec()
	apply(t, o, spec)
	nstest.IP(t, "link del under0")
	awaitChange(t, o, "parent deleted")
	if _, err := o.Apply(context.Background(), spec); err == nil {
		t.Fatal("made without a parent")
	}
	nstest.Run(t, "ip", "link", "add", "under0", "type", "veth", "peer", "name", "under0", "netns", fmt.Sprint(other.PID))
	nstest.IP(t, "addr add "+n.own+n.linkBits()+" dev under0")
	other.IP(t, "addr add "+n.other+n.linkBits()+" dev under0")
	other.IP(t, "link set under0 up")
	nstest.IP(t, "link set under0 up")
	makeFlannel(t, other, n)
	repair(t, o, spec, func() bool { return reach(t, n, at) })
	settled(t, o, spec)
}

// TestOverlayDirect checks packets without a tunnel while the other node is on
// the link (DirectRouting, host-gw). The link goes down and up again; the route
// must be lost and restored.
func TestOverlayDirect(t *testing.T) {
	for _, c := range []struct {
		name   string
		net    overlayNet
		device bool
	}{{"IPv4 DirectRouting", net4(), true}, {"IPv4 host-gw", net4(), false}, {"IPv6 host-gw", net6(), false}} {
		t.Run(c.name, func(t *testing.T) {
			n := c.net
			other := makeNodes(t, n)
			other.IP(t, "route replace "+n.ownSubnet+" via "+n.own)
			at := echo(t, other, n)
			o := openOverlay(t, n, Options{})
			spec := n.spec()
			spec.Peers[0].Direct = true
			if !c.device {
				spec.Device, spec.Peers[0].MAC = nil, MAC{}
			}
			apply(t, o, spec)
			works := func() bool { return reach(t, n, at) }
			if !works() {
				t.Fatalf("no answer: %+v", o.Peers(t.Context()))
			}
			if p := o.Peers(t.Context())[0]; p.Tunnelled || !p.Route {
				t.Errorf("peer %+v", p)
			}
			nstest.IP(t, "link set under0 down")
			awaitChange(t, o, "link down")
			r, err := o.Apply(context.Background(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if !c.device && r.Programmed != 0 {
				t.Errorf("without a link: %+v", o.Peers(t.Context()))
			}
			if c.device && !o.Peers(t.Context())[0].Tunnelled {
				t.Errorf("with the link down the tunnel is what remains: %+v", o.Peers(t.Context()))
			}
			nstest.IP(t, "link set under0 up")
			if n.is6 {
				nstest.IP(t, "addr add "+n.own+n.linkBits()+" dev under0 nodad")
			}
			repair(t, o, spec, works)
			settled(t, o, spec)
			if p := o.Peers(t.Context())[0]; p.Tunnelled || p.State != Programmed {
				t.Errorf("after the flap: %+v", p)
			}
		})
	}
}

// TestOverlayDirectAndBack checks that a peer with a route on the link changes to
// a tunnel, as after DirectRouting was removed from the configuration, and back.
func TestOverlayDirectAndBack(t *testing.T) {
	for name, c := range map[string]struct {
		net     overlayNet
		classic bool
	}{"IPv4": {net4(), false}, "IPv6": {net6(), false}, "IPv6 without nexthops": {net6(), true}} {
		t.Run(name, func(t *testing.T) {
			n := c.net
			other := makeNodes(t, n)
			at := echo(t, other, n)
			o := openOverlay(t, n, Options{NoNexthops: c.classic})
			spec := n.spec()
			for _, direct := range []bool{true, false, true, false} {
				spec.Peers[0].Direct = direct
				if r := apply(t, o, spec); r.Programmed != 1 || o.Peers(t.Context())[0].Tunnelled == direct {
					t.Fatalf("direct %v: %+v", direct, o.Peers(t.Context()))
				}
				settled(t, o, spec)
			}
			if !reach(t, n, at) {
				t.Errorf("no answer: %+v", o.Peers(t.Context()))
			}
		})
	}
}

// TestOverlayFlood makes more notifications than the socket can hold. The
// notification of the deleted route is dropped. The overlay must read the kernel
// because notifications were lost.
func TestOverlayFlood(t *testing.T) {
	n := net4()
	other := makeNodes(t, n)
	at := echo(t, other, n)
	o := openOverlay(t, n, Options{})
	spec := n.spec()
	apply(t, o, spec)
	works := func() bool { return reach(t, n, at) }
	if !works() {
		t.Fatal("no answer before the flood")
	}
	o.monitor.events.SetReceiveBuffer(1)
	var flood strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&flood, "neigh add 203.0.%d.%d lladdr 02:00:00:00:00:01 dev under0 nud permanent\n", i>>8, i&255)
	}
	fmt.Fprintf(&flood, "route del %s\nneigh flush dev under0 nud permanent\n", n.otherSubnet)
	batch := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(batch, []byte(flood.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	o.monitor.mu.Lock() // the monitor receives one more datagram and then blocks
	nstest.Run(t, "ip", "-batch", batch)
	o.monitor.mu.Unlock()
	repair(t, o, spec, works)
	settled(t, o, spec)
}

// TestOverlayLinkLocal: IPv6 ends on a device whose MTU becomes too small for it, and begins anew when the MTU is restored. The device
// has no link-local address then, as before.
func TestOverlayLinkLocal(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			makeNodes(t, n)
			o := openOverlay(t, n, Options{})
			apply(t, o, n.spec())
			addresses := func() string { return nstest.IP(t, "-o addr show dev "+n.device) }
			before := addresses()
			nstest.IP(t, "link set "+n.device+" mtu 1000")
			awaitChange(t, o, "the MTU")
			apply(t, o, n.spec())
			settled(t, o, n.spec())
			if after := addresses(); strings.Contains(before+after, "fe80::") {
				t.Errorf("before\n%safter\n%s", before, after)
			}
		})
	}
}

// TestRecheck: Recheck finds a difference that no notification reported. Without a difference the
// next Apply changes nothing.
func TestRecheck(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	apply(t, o, n.spec())
	o.Recheck()
	if r := apply(t, o, n.spec()); !r.Dumped || r.Writes != 0 {
		t.Errorf("without a difference: %+v", r)
	}
	o.monitor.stop()
	o.monitor.ended.Wait()
	nstest.IP(t, "route del "+n.otherSubnet)
	o.Recheck()
	if r := apply(t, o, n.spec()); r.Writes != 1 || r.Programmed != 1 {
		t.Errorf("after a route was deleted: %+v", r)
	}
}

// TestNoSocket: Apply and Remove work after a call that could not open a new socket.
func TestNoSocket(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	if err := o.disconnect(); err != nil {
		t.Fatal(err)
	}
	if r := apply(t, o, n.spec()); r.Programmed != 1 {
		t.Errorf("report %+v", r)
	}
	if err := o.disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := o.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestCounts: a report counts failed peers, the kernel's refusals by their number, and restored objects
// by their kind.
func TestCounts(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	spec := n.spec()
	spec.Peers = append(spec.Peers, Peer{Name: "multicast", Subnet: netip.MustParsePrefix("224.0.0.0/24"), Gateway: netip.MustParseAddr("192.168.50.9"), MAC: MAC{2, 0, 0, 0, 2, 3}})
	if r := apply(t, o, spec); r.Failed != 1 || r.Programmed != 1 || r.Refused[unix.EINVAL] == 0 || len(r.Repaired) != 0 {
		t.Errorf("report %+v", r)
	}
	spec = n.spec()
	apply(t, o, spec)
	nstest.IP(t, "route del "+spec.Peers[0].Subnet.String())
	nstest.IP(t, "neigh del "+spec.Peers[0].Subnet.Addr().String()+" dev "+n.device)
	o.Recheck()
	r := apply(t, o, spec)
	if diff := cmp.Diff(map[string]int{"route": 1, "neighbour": 1}, r.Repaired); diff != "" || r.Failed != 0 || len(r.Refused) != 0 {
		t.Errorf("report %+v\n%s", r, diff)
	}
}

// TestNotRepaired: what a new spec adds, changes or removes is not counted as restored, although the kernel is read again at the same time,
// as after a notification or once a minute.
func TestNotRepaired(t *testing.T) {
	for name, classic := range map[string]bool{"nexthops": false, "without nexthops": true} {
		t.Run(name, func(t *testing.T) {
			n := net4()
			makeNodes(t, n)
			o := openOverlay(t, n, Options{NoNexthops: classic})
			spec := n.spec()
			apply(t, o, spec)
			second := Peer{Name: "second", Subnet: netip.MustParsePrefix("10.244.3.0/24"), Gateway: netip.MustParseAddr("192.168.50.3"), MAC: MAC{2, 0, 0, 0, 2, 3}}
			for _, c := range []struct {
				what    string
				peers   []Peer
				mtu     int
				disturb string
				want    map[string]int
			}{
				{"a new peer", []Peer{n.peer(), second}, 0, "", map[string]int{}},
				{"another MTU", []Peer{n.peer(), second}, 1400, "", map[string]int{}},
				{"a new address of a node", []Peer{n.peer(), {Name: "second", Subnet: second.Subnet, Gateway: netip.MustParseAddr("192.168.50.4"), MAC: second.MAC}}, 1400, "", map[string]int{}},
				{"a peer gone", []Peer{n.peer()}, 1400, "", map[string]int{}},
				{"a deleted route and a new peer", []Peer{n.peer(), second}, 1400, "route del " + n.otherSubnet, map[string]int{"route": 1}},
				{"another program's route and a peer gone", []Peer{n.peer()}, 1400, "route add 10.244.9.0/24 dev " + n.device + " proto 142", map[string]int{"route": 1}},
			} {
				if c.disturb != "" {
					nstest.IP(t, c.disturb)
				}
				if spec.Peers = c.peers; c.mtu != 0 {
					device := *spec.Device
					device.MTU, spec.Device = c.mtu, &device
				}
				o.Recheck()
				r := apply(t, o, spec)
				if diff := cmp.Diff(c.want, r.Repaired); diff != "" || r.Writes == 0 && c.mtu == 0 || !r.Dumped {
					t.Errorf("%s: %+v\n%s", c.what, r, diff)
				}
			}
		})
	}
}

// TestNewcomerWithSameMAC: a new peer with the MAC of a peer in the kernel does not displace it,
// whatever their order is, and also not after a restart.
func TestNewcomerWithSameMAC(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	spec := n.spec()
	newcomer := Peer{Name: "newcomer", Subnet: netip.MustParsePrefix("10.244.1.128/25"), Gateway: netip.MustParseAddr("192.168.50.9"), MAC: MAC{2, 0, 0, 0, 2, 2}}
	for _, when := range []string{"running", "restarted"} {
		o := openOverlay(t, n, Options{})
		if when == "running" {
			apply(t, o, n.spec())
		}
		spec.Peers = []Peer{newcomer, n.peer()}
		apply(t, o, spec)
		all := o.Peers(t.Context())
		if all[1].State != Programmed || all[0].State != Failed || !strings.Contains(fmt.Sprint(all[0].Err), `it is "other"'s too`) {
			t.Errorf("%s: %+v", when, all)
		}
	}
}

// is deleted.
func TestDetour(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	spec := n.spec()
	spec.Network = netip.MustParsePrefix(n.network)
	part := netip.PrefixFrom(spec.Peers[0].Subnet.Addr(), spec.Peers[0].Subnet.Bits()+1)
	if _, err := o.Apply(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		verb string
		want []Detour
	}{{"add", []Detour{{part, spec.Peers[0].Name}}}, {"del", nil}} {
		nstest.IP(t, "route "+c.verb+" blackhole "+part.String())
		awaitChange(t, o, c.verb)
		r, err := o.Apply(context.Background(), spec)
		if err != nil || !slices.Equal(r.Detours, c.want) {
			t.Errorf("%s: %+v, %v", c.verb, r.Detours, err)
		}
	}
}
