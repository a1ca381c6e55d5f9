package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// deviceIndex returns the tunnel device's index. The index differs if the device
// was made again.
func deviceIndex(t *testing.T, n overlayNet) string {
	t.Helper()
	index, _, _ := strings.Cut(nstest.IP(t, "-o link show dev "+n.device), ":")
	return index
}

// TestOverlayInPlace changes the wanted device. Changes that the kernel makes in
// place must keep the device and its objects. flanneld ignores changes of MTU and
// learning until the device is deleted.
func TestOverlayInPlace(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			other := makeNodes(t, n)
			at := echo(t, other, n)
			o := openOverlay(t, n, Options{})
			spec := n.spec()
			apply(t, o, spec)
			kept, alt := deviceIndex(t, n), "192.168.50.10"
			if n.is6 {
				alt = "fd50::10"
			}
			nstest.IP(t, "addr add "+alt+n.linkBits()+" dev under0 "+nodad(n))
			parent := "p-" + n.device
			nstest.IP(t, "link add "+parent+" up type bridge")
			for _, c := range []struct {
				name   string
				change func(*VTEP)
				want   string
				anew   bool
			}{
				{"MTU", func(v *VTEP) { v.MTU = 1300 }, "mtu 1300", false},
				{"learning", func(v *VTEP) { v.Learning = true }, "dstport 8472 ttl", false}, // otherwise it shows nolearning
				{"local address", func(v *VTEP) { v.Local = netip.MustParseAddr(alt) }, "local " + alt, false},
				{"MAC", func(v *VTEP) { v.MAC = "02:00:00:00:01:02" }, "02:00:00:00:01:02", false},
				{"parent", func(v *VTEP) { v.Parent = parent }, "dev " + parent, false},
				{"VNI", func(v *VTEP) { v.VNI = 2 }, "id 2 ", true},
				{"port", func(v *VTEP) { v.Port = 4789 }, "dstport 4789", true},
				{"group policy", func(v *VTEP) { v.GBP = true }, " gbp", true},
			} {
				c.change(spec.Device)
				if r := apply(t, o, spec); r.Programmed != 1 {
					t.Errorf("%s: %+v", c.name, o.Peers(t.Context()))
				}
				if have := nstest.IP(t, "-d link show dev "+n.device); !strings.Contains(have, c.want) {
					t.Errorf("%s: no %q in %s", c.name, c.want, have)
				}
				if now := deviceIndex(t, n); (now != kept) != c.anew {
					t.Errorf("%s: device %s became %s", c.name, kept, now)
				} else {
					kept = now
				}
				for _, p := range o.Peers(t.Context()) {
					if !p.Route || !p.FDB || !p.Neighbour {
						t.Errorf("%s: %+v", c.name, p)
					}
				}
			}
			spec = n.spec()
			apply(t, o, spec)
			if !reach(t, n, at) {
				t.Error("no answer after all changes were taken back")
			}
		})
	}
}

// TestOverlayAdopts takes over flannel's objects. The device stays, routes to
// existing nodes are replaced, and routes to nodes that were removed meanwhile
// are deleted.
func TestOverlayAdopts(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			other := makeNodes(t, n)
			at := echo(t, other, n)
			nstest.IP(t, "link add "+n.device+" address "+ownMAC+" type vxlan id 1 dev under0 local "+n.own+" dstport 8472 nolearning")
			defer nstest.TryIP("link del " + n.device)
			nstest.IP(t, "addr add "+first(n.ownSubnet)+n.bits()+" dev "+n.device+" "+nodad(n))
			nstest.IP(t, "link set "+n.device+" up")
			stale, foreign := "10.244.9.0/24", "10.99.0.0/16"
			if n.is6 {
				stale, foreign = "fd44:9::/64", "fd99::/64"
			}
			for _, r := range []struct{ subnet, mac, dst string }{{n.otherSubnet, otherMAC, n.other}, {stale, "02:00:00:00:09:09", n.other}} {
				nstest.IP(t, "neigh replace "+first(r.subnet)+" lladdr "+r.mac+" dev "+n.device+" nud permanent")
				nstest.Run(t, "bridge", "fdb", "append", r.mac, "dev", n.device, "dst", r.dst, "self", "permanent")
				nstest.IP(t, "route replace "+r.subnet+" via "+first(r.subnet)+" dev "+n.device+" onlink")
			}
			nstest.IP(t, "route add "+foreign+" dev "+n.device)
			if !reach(t, n, at) {
				t.Fatal("no answer by flannel's own entries")
			}
			kept := deviceIndex(t, n)
			o := openOverlay(t, n, Options{})
			spec := n.spec()
			spec.Prune = false
			apply(t, o, spec)
			if have := routesOf(t, n); !strings.Contains(have, strings.TrimSuffix(stale, ":/64")) {
				t.Errorf("the stale route went before the list was complete: %s", have)
			}
			spec.Prune = true
			apply(t, o, spec)
			if deviceIndex(t, n) != kept {
				t.Error("the device was recreated")
			}
			have := routesOf(t, n)
			if strings.Contains(have, stale) || strings.Count(have, n.otherSubnet) != 1 || !strings.Contains(have, "proto 142") || !strings.Contains(have, foreign) {
				t.Errorf("routes: %s", have)
			}
			if fdb := nstest.Run(t, "bridge", "fdb", "show", "dev", n.device); strings.Contains(fdb, "09:09") {
				t.Errorf("stale forwarding entry: %s", fdb)
			}
			if !reach(t, n, at) {
				t.Error("no answer after the take-over")
			}
		})
	}
}

func routesOf(t *testing.T, n overlayNet) string {
	t.Helper()
	if n.is6 {
		return nstest.IP(t, "-6 route show dev "+n.device)
	}
	return nstest.IP(t, "route show dev "+n.device)
}

// TestOverlayRefuses checks that the error names the cause.
func TestOverlayRefuses(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	for _, c := range []struct {
		name, before, after string
		change              func(*Spec)
		is                  error
		want                string
	}{
		{"VNI of another program", "link add cilium_vxlan type vxlan id 1 dstport 8472", "link del cilium_vxlan", nil, nlconn.ErrExists, `VNI 1 on UDP port 8472 is held by link "cilium_vxlan"`},
		{"name of another program", "link add flannel.1 type bridge", "link del flannel.1", nil, nlconn.ErrConflict, `link "flannel.1": conflicts with what is there: it is not of kind "vxlan"`},
		{"no parent", "", "", func(s *Spec) { s.Device.Parent = "nosuch0" }, nlconn.ErrNotExist, `parent of "flannel.1": link "nosuch0"`},
		{"a large MTU", "", "", func(s *Spec) { s.Device.MTU = 1490 }, nlconn.ErrInvalid, "mtu 1490"},
		{"no VNI", "", "", func(s *Spec) { s.Device.VNI = 0 }, nlconn.ErrInvalid, "VNI 0"},
		{"a network as the device's address", "", "", func(s *Spec) { s.Device.Address = netip.MustParsePrefix("10.244.1.0/24") }, nlconn.ErrInvalid, "device address"},
		{"pod networks of the other family", "", "", func(s *Spec) { s.Device.Network = netip.MustParsePrefix("fd00::/48") }, nlconn.ErrInvalid, "pod network"},
		{"the other family", "", "", func(s *Spec) { s.Device.Local = netip.MustParseAddr("fd50::1") }, nlconn.ErrInvalid, "local address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.before != "" {
				nstest.IP(t, c.before)
				defer nstest.IP(t, c.after)
			}
			spec := n.spec()
			if c.change != nil {
				c.change(&spec)
			}
			_, err := o.Apply(context.Background(), spec)
			if !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	apply(t, o, n.spec())
}

// TestOverlayPeerFaults has peers that cannot be programmed. The other peers must
// work. If two peers claim the same subnet or MAC, the second gets it when the
// first is removed.
func TestOverlayPeerFaults(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	now := time.Now()
	o := openOverlay(t, n, Options{Now: func() time.Time { return now }})
	spec := n.spec()
	add := func(name, subnet, gateway, mac string) {
		p := Peer{Name: name, MAC: parseMAC(t, mac)}
		p.Subnet, _ = netip.ParsePrefix(subnet)
		p.Gateway, _ = netip.ParseAddr(gateway)
		spec.Peers = append(spec.Peers, p)
	}
	add("same subnet", n.otherSubnet, "192.168.50.3", "02:00:00:00:03:03")
	add("same first address", "10.244.2.0/25", "192.168.50.3", "02:00:00:00:03:03")
	add("same MAC", "10.244.4.0/24", "192.168.50.4", otherMAC)
	add("no MAC", "10.244.5.0/24", "192.168.50.5", "")
	add("group MAC", "10.244.6.0/24", "192.168.50.5", "01:00:5e:00:00:01")
	add("no subnet", "", "192.168.50.5", "02:00:00:00:05:05")
	add("host bits", "10.244.5.1/24", "192.168.50.5", "02:00:00:00:05:05")
	add("everything", "0.0.0.0/0", "192.168.50.5", "02:00:00:00:05:05")
	add("no address", "10.244.5.0/24", "", "02:00:00:00:05:05")
	add("other family", "10.244.5.0/24", "fd50::5", "02:00:00:00:05:05")
	add("good", "10.244.7.0/24", "192.168.50.7", "02:00:00:00:07:07")
	r := apply(t, o, spec)
	if r.Programmed != 2 || !r.RetryAt.IsZero() {
		t.Errorf("report %+v", r)
	}
	for _, p := range o.Peers(t.Context()) {
		if good := p.Name == "other" || p.Name == "good"; good != (p.Err == nil) || good != (p.State == Programmed) {
			t.Errorf("%s: %s, %v", p.Name, p.State, p.Err)
		}
	}
	spec.Peers = spec.Peers[1:]
	if r := apply(t, o, spec); r.Programmed != 3 {
		t.Errorf("after the first went: %+v", o.Peers(t.Context()))
	}
	if have := nstest.IP(t, "route show "+n.otherSubnet); !strings.Contains(have, "flannel.1") {
		t.Errorf("the subnet's new owner has no route: %s", have)
	}
}

// TestOverlayPeersWithOneName has two peers with one name. Both work, and the objects of the second go with it.
func TestOverlayPeersWithOneName(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	o := openOverlay(t, n, Options{})
	spec := n.spec()
	second := Peer{Name: spec.Peers[0].Name, Subnet: netip.MustParsePrefix("10.244.3.0/24"), Gateway: netip.MustParseAddr("192.168.50.3"), MAC: MAC{2, 0, 0, 0, 3, 3}}
	for _, peers := range [][]Peer{{spec.Peers[0], second}, {spec.Peers[0], second}, spec.Peers} {
		spec.Peers = peers
		if r := apply(t, o, spec); r.Programmed != len(peers) {
			t.Errorf("%d peers: %+v", len(peers), o.Peers(t.Context()))
		}
		if have := nstest.IP(t, "route show "+second.Subnet.String()); (have != "") != (len(peers) == 2) {
			t.Errorf("%d peers: the second's route: %q", len(peers), have)
		}
	}
}

// TestOverlayBackOff makes the kernel refuse one peer. It must be tried again
// after increasing delays, and the other peers must work.
func TestOverlayBackOff(t *testing.T) {
	n := net4()
	makeNodes(t, n)
	now := time.Unix(1000, 0)
	o := openOverlay(t, n, Options{Now: func() time.Time { return now }})
	spec := n.spec()
	// The kernel refuses a neighbour with a class E address, and a route with it
	// as the gateway.
	bad := Peer{Name: "bad", Subnet: netip.MustParsePrefix("255.255.255.255/32"), Gateway: netip.MustParseAddr("192.168.50.9"), MAC: MAC{2, 0, 0, 0, 9, 9}}
	spec.Peers = append(spec.Peers, bad)
	r := apply(t, o, spec)
	if r.Programmed != 1 || r.RetryAt.Before(now) || r.RetryAt.After(now.Add(2*time.Second)) {
		t.Fatalf("report %+v, peers %+v", r, o.Peers(t.Context()))
	}
	was := r.RetryAt
	if r = apply(t, o, spec); r.Writes != 0 || !r.RetryAt.Equal(was) {
		t.Errorf("tried before its time: %+v", r)
	}
	for range 10 {
		now = r.RetryAt
		r = apply(t, o, spec)
	}
	if wait := r.RetryAt.Sub(now); wait < time.Minute || wait > 2*time.Minute {
		t.Errorf("after ten tries the next one is in %v", wait)
	}
	spec.Peers = spec.Peers[:1]
	if r := apply(t, o, spec); !r.RetryAt.IsZero() || r.Programmed != 1 {
		t.Errorf("without it: %+v", r)
	}
}

// parseMAC returns the address of a colon form, and none for "".
func parseMAC(t *testing.T, text string) (m MAC) {
	if text == "" {
		return m
	}
	parsed, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return MAC(parsed)
}
