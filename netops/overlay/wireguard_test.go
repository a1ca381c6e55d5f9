package overlay

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// wgOps returns the requests for a peer of each family.
func wgOps() []kernelOp {
	var ops []kernelOp
	for i, n := range []overlayNet{net4(), net6()} {
		ops = append(ops, kernelOp{kind: opPeer, link: 7, key: Key{1, byte(i)}, wg: &wgPeer{
			endpoint: netip.AddrPortFrom(netip.MustParseAddr(n.other), 51820), psk: Secret{3}, keepalive: 25, allowed: (&Peer{Subnet: netip.MustParsePrefix(n.otherSubnet)}).networks(),
		}})
	}
	return ops
}

// TestWireGuardMessagesComeBack reads the requests for peers as an answer of the kernel, which has the
// same attributes.
func TestWireGuardMessagesComeBack(t *testing.T) {
	for i, op := range wgOps() {
		d := wgDevice{peers: map[Key]wgPeer{}, networks: map[Key][2]int{}}
		if err := d.parse(op.body(nil)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[Key]wgPeer{op.key: *op.wg}, d.peers, cmp.AllowUnexported(wgPeer{}), cmp.Comparer(func(a, b Secret) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
		// More networks of the peer in another message: of IPv4 or IPv6 the peer has no single network then.
		more, both := op, [2]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
		wg := *op.wg
		wg.allowed, more.wg = both, &wg
		both[i] = netip.Prefix{}
		if err := d.parse(more.body(nil)); err != nil || d.peers[op.key].allowed != both {
			t.Errorf("%+v, %v", d.peers[op.key], err)
		}
	}
}

// TestWireGuardDevice reads a device's keys, handshake and counters.
func TestWireGuardDevice(t *testing.T) {
	b := nlconn.NewGeneric(0, unix.WG_CMD_GET_DEVICE, wgVersion).Body
	private := Secret{8: 1}
	b.Bytes(unix.WGDEVICE_A_PRIVATE_KEY, private[:])
	b.Uint16(unix.WGDEVICE_A_LISTEN_PORT, 51820)
	b.Nest(unix.WGDEVICE_A_PEERS, func() {
		b.Nest(0, func() {
			key := Key{5}
			b.Bytes(unix.WGPEER_A_PUBLIC_KEY, key[:])
			b.Bytes(unix.WGPEER_A_LAST_HANDSHAKE_TIME, []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
			b.Bytes(unix.WGPEER_A_RX_BYTES, []byte{3, 0, 0, 0, 0, 0, 0, 0})
			b.Bytes(unix.WGPEER_A_TX_BYTES, []byte{4, 0, 0, 0, 0, 0, 0, 0})
		})
	})
	d := wgDevice{peers: map[Key]wgPeer{}, networks: map[Key][2]int{}}
	if err := d.parse(b); err != nil {
		t.Fatal(err)
	}
	p := d.peers[Key{5}]
	if d.privateKey != private || d.port != 51820 || !p.handshake.Equal(time.Unix(1, 2)) || p.received != 3 || p.sent != 4 {
		t.Errorf("%+v", d)
	}
}

// TestSecretIsNotPrinted formats a device's settings in all ways.
func TestSecretIsNotPrinted(t *testing.T) {
	v := &VTEP{WireGuard: WireGuard{PrivateKey: Secret{0: 201, 31: 203}, PresharedKey: Secret{5: 202}}}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d"} {
		for _, value := range []any{v, *v, v.WireGuard.PrivateKey, &v.WireGuard} {
			out := fmt.Sprintf(verb, value) + string(raw)
			for _, bad := range []string{"201", "202", "203", "c9", "0xc9", "C9", "cb", "yQ"} {
				if strings.Contains(out, bad) {
					t.Errorf("%s: %s", verb, out)
				}
			}
		}
	}
}

// TestSetPeer: a network that a peer gets is taken from the peer that had it, as the kernel does.
func TestSetPeer(t *testing.T) {
	h := newKernelState()
	subnet, subnet6 := netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00::/64")
	h.setPeer(Key{1}, &wgPeer{allowed: [2]netip.Prefix{subnet, subnet6}})
	h.setPeer(Key{2}, &wgPeer{allowed: [2]netip.Prefix{subnet}})
	if h.wg[Key{1}].allowed != [2]netip.Prefix{1: subnet6} || h.allowed[subnet] != (Key{2}) || h.allowed[subnet6] != (Key{1}) {
		t.Errorf("%+v", h)
	}
	h.setPeer(Key{1}, nil)
	if len(h.wg) != 1 || h.allowed[subnet] != (Key{2}) {
		t.Errorf("%+v", h)
	}
	h.setPeer(Key{2}, nil)
	if len(h.wg)+len(h.allowed) != 0 {
		t.Errorf("%+v", h)
	}
}

// TestWireGuardRecords: peers with an unusable key are refused, and of two with one key the first
// stays.
func TestWireGuardRecords(t *testing.T) {
	own := Key{9}
	o := openOverlay(t, net4(), Options{})
	o.ownKey, o.wanted = own, &VTEP{WireGuard: WireGuard{PrivateKey: Secret{1}}}
	peer := func(i int, key string, port uint16) Peer {
		return Peer{Name: fmt.Sprint(i), Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)), Gateway: netip.MustParseAddr("192.0.2.9"), Key: key, Port: port}
	}
	sixth, seventh := peer(6, Key{6}.String(), 0), peer(7, Key{7}.String(), 1)
	seventh.OtherSubnet = netip.MustParsePrefix("10.244.8.0/24")
	list := []Peer{peer(1, Key{1}.String(), 1), peer(2, Key{1}.String(), 1), peer(3, own.String(), 1), peer(4, Key{}.String(), 1), peer(5, "x", 1), sixth, seventh}
	want := []string{"", `it is "1"'s too`, "it is this node's", "not 32 bytes", "not 32 bytes", "not a UDP port", "not a network of the other address family"}
	for range 2 {
		if err := o.setPeers(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		for i, p := range o.order {
			if (p.invalid == nil) != (want[i] == "") || p.invalid != nil && !strings.Contains(p.invalid.Error(), want[i]) {
				t.Errorf("peer %s: %v", p.Name, p.invalid)
			}
		}
	}
}

// TestWireGuardMoved: the links to the peers are looked up again after a change of a route to a peer, or of an address of its link,
// but not after that of another link.
func TestWireGuardMoved(t *testing.T) {
	peer := netip.MustParseAddr("192.0.2.9")
	o := &Kernel{family: unix.AF_INET, have: newKernelState(), peers: newPeerIndex(0), wanted: &VTEP{WireGuard: WireGuard{PrivateKey: Secret{1}}}}
	o.direct = map[netip.Addr]hop{peer: {Link: 3}}
	for want, body := range map[bool][]any{
		true:  {rtnl.Addr{Link: 3}, routeState{dst: netip.MustParsePrefix("192.0.2.0/24")}, routeState{dst: netip.MustParsePrefix("0.0.0.0/0")}},
		false: {rtnl.Addr{Link: 4}, routeState{dst: netip.MustParsePrefix("10.1.0.0/24")}},
	} {
		for _, b := range body {
			if _, moved := o.evaluateEvent(&event{body: b}); moved != want {
				t.Errorf("%+v: moved %v", b, moved)
			}
		}
	}
}

// TestWireGuardDeviceOfKernel makes a device, or gets an error that names the kernel's option. Routes of
// other backends to parts of the pod network are deleted even if not all nodes are known.
// Another program's route stays. Remove leaves nothing.
func TestWireGuardDeviceOfKernel(t *testing.T) {
	for _, n := range []overlayNet{net4(), net6()} {
		t.Run(n.device, func(t *testing.T) {
			makeNodes(t, n)
			o := openOverlay(t, n, Options{IPv6: n.is6})
			subnet := netip.MustParsePrefix(n.ownSubnet)
			// Routes of the agent's vxlan, flannel's vxlan and host-gw, and another program.
			via := " via " + n.other + " dev under0"
			parts := []string{n.otherSubnet, part(n, 3), part(n, 4), part(n, 5)}
			nstest.IP(t, "route add "+parts[0]+via+" proto 142")
			nstest.IP(t, "route add "+parts[1]+" via "+first(parts[1])+" dev under0 onlink")
			nstest.IP(t, "route add "+parts[2]+via)
			nstest.IP(t, "route add "+parts[3]+via)
			defer nstest.IP(t, "route del "+parts[3])
			nodes := map[netip.Prefix]netip.Addr{netip.MustParsePrefix(parts[2]): netip.MustParseAddr(n.other)}
			spec := Spec{Network: netip.MustParsePrefix(n.network), Nodes: nodes, Device: &VTEP{
				Name: "wg0", Port: 51820, MTU: 1400, WireGuard: WireGuard{PrivateKey: Secret{1}},
				Address: netip.PrefixFrom(subnet.Addr(), subnet.Addr().BitLen()), Network: netip.MustParsePrefix(n.network),
			}}
			_, err := o.Apply(t.Context(), spec)
			if err != nil && !strings.Contains(err.Error(), "CONFIG_WIREGUARD (Linux 5.6)") {
				t.Errorf("%v", err)
			}
			family := "-4"
			if n.is6 {
				family = "-6"
			}
			routes := nstest.IP(t, family+" route show "+n.network)
			if want := fmt.Sprintf("unreachable %s", n.network); !strings.Contains(routes, want) || err == nil && !strings.Contains(routes, "dev wg0 proto 142") {
				t.Errorf("routes %s", routes)
			}
			for i, p := range parts {
				if there := nstest.IP(t, family+" route show "+p) != ""; err == nil && there != (i == 3) {
					t.Errorf("route %d to %s: %v", i, p, there)
				}
			}
			kept, err := o.RemoveToGuard(t.Context())
			left := nstest.IP(t, family+" route show "+n.network) + nstest.IP(t, "-o link")
			if err != nil || !slices.Equal(kept, []netip.Prefix{spec.Network}) || !strings.Contains(left, "unreachable") || strings.Contains(left, "wg0") {
				t.Errorf("%v, %v: %s", kept, err, left)
			}
			if err := o.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if left := nstest.IP(t, family+" route show "+n.network) + nstest.IP(t, "-o link"); strings.Contains(left, "unreachable") || strings.Contains(left, "wg0") {
				t.Errorf("left: %s", left)
			}
		})
	}
}

// part returns the i-th node's pod network.
func part(n overlayNet, i int) string {
	if n.is6 {
		return fmt.Sprintf("fd44:%d::/64", i)
	}
	return fmt.Sprintf("10.244.%d.0/24", i)
}

// FuzzWireGuardDevice reads random bytes as an answer of the kernel without a panic.
func FuzzWireGuardDevice(f *testing.F) {
	for _, op := range wgOps() {
		f.Add([]byte(op.body(nil)))
		op.del = true
		f.Add([]byte(op.body(nil)))
	}
	f.Add(func() []byte {
		b := nlconn.NewGeneric(0, 0, wgVersion).Body
		b.Nest(unix.WGDEVICE_A_PEERS, func() { b.Nest(0, func() { b.Bytes(unix.WGPEER_A_PUBLIC_KEY, []byte{1}) }) })
		return b
	}())
	f.Fuzz(func(t *testing.T, data []byte) {
		d := wgDevice{peers: map[Key]wgPeer{}, networks: map[Key][2]int{}}
		if err := d.parse(data); err != nil {
			return
		}
		for key, p := range d.peers {
			for i, n := range d.networks[key] {
				if n > 1 && p.allowed[i].IsValid() {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}
