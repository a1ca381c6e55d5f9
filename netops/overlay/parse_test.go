package overlay

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// overlayOps returns ops of each kind and family.
func overlayOps() []kernelOp {
	mac := MAC{2, 0, 0, 0, 2, 2}
	var ops []kernelOp
	for _, n := range []overlayNet{net4(), net6()} {
		gateway, dst := netip.MustParseAddr(n.other), netip.MustParsePrefix(n.otherSubnet)
		h := hop{Via: dst.Addr(), Link: 7, OnLink: true}
		ops = append(ops,
			kernelOp{kind: opNeigh, link: 7, ip: dst.Addr(), mac: mac},
			kernelOp{kind: opFDB, link: 7, ip: gateway, mac: mac},
			kernelOp{kind: opHop, id: Nexthops4 + 5, hop: h},
			kernelOp{kind: opRoute, dst: dst, protocol: Protocol, id: Nexthops4 + 5, hop: h},
			kernelOp{kind: opRoute, dst: dst, protocol: Protocol, priority: 1024, hop: h},
			kernelOp{kind: opRoute, dst: dst, protocol: Protocol, hop: hop{Via: gateway, Link: 3}},
		)
	}
	return ops
}

// TestOverlayMessagesComeBack decodes requests as notifications. The kernel's
// notifications have the same form.
func TestOverlayMessagesComeBack(t *testing.T) {
	for _, op := range overlayOps() {
		b := op.body(nil)
		switch op.kind {
		case opNeigh, opFDB:
			n, ok, err := parseNeigh(b)
			want := neighState{fdb: op.kind == opFDB, permanent: true, link: op.link, ip: op.ip, mac: op.mac}
			if err != nil || !ok || n != want {
				t.Errorf("%s: %+v %v %v", &op, n, ok, err)
			}
		case opHop:
			n, err := rtnl.ParseNexthop(b)
			if want := (rtnl.Nexthop{ID: op.id, Protocol: Protocol, Hop: op.hop}); err != nil || n != want {
				t.Errorf("%s: %+v %v", &op, n, err)
			}
		case opRoute:
			r, ok, err := parseRoute(b)
			if err != nil || !ok || r.dst != op.dst || r.routeTo != op.route() {
				t.Errorf("%s: %+v %v %v", &op, r, ok, err)
			}
		}
	}
}

// vxlanLink returns the body of an RTM_NEWLINK of a VXLAN device with one attribute.
func vxlanLink(kind uint16, v []byte) []byte {
	b := make(nlconn.Body, unix.SizeofIfInfomsg)
	b.Nest(unix.IFLA_LINKINFO, func() {
		b.Text(1, "vxlan")
		b.Nest(2, func() { b.Bytes(kind, v) })
	})
	return b
}

// FuzzOverlayEvent decodes and evaluates random notifications without a panic.
// They must not disturb an overlay before the first Apply.
func FuzzOverlayEvent(f *testing.F) {
	for _, op := range overlayOps() {
		kind, _ := op.request()
		f.Add(kind, op.body(nil))
		op.del = true
		kind, _ = op.request()
		f.Add(kind, op.body(nil))
	}
	f.Add(uint16(unix.RTM_NEWLINK), vxlanLink(1, []byte{1, 0, 0, 0}))
	f.Add(uint16(unix.RTM_NEWNETCONF), []byte{2, 0, 0, 0, 8, 0, 1, 0, 255, 255, 255, 255, 8, 0, 2, 0, 0, 0, 0, 0})
	f.Add(uint16(unix.RTM_NEWADDR), []byte{2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 1})
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		o := &Kernel{family: unix.AF_INET, firstHop: Nexthops4, have: newKernelState(), peers: newPeerIndex(0), linkFlags: map[int]uint32{}}
		m := &linkMonitor{o: o}
		e, ok := m.decode(kind, data)
		if !ok {
			return
		}
		if o.disturbedBy([]event{e}, false) {
			t.Errorf("%+v disturbs an overlay that was not applied yet", e)
		}
		n := net4()
		o.wanted, o.device, o.parent = n.vtep(), rtnl.Link{Index: 7, Name: n.device}, &rtnl.Link{Index: 3}
		o.direct = map[netip.Addr]hop{netip.MustParseAddr(n.other): {Link: 3}}
		o.disturbedBy([]event{e}, false)
	})
}

// FuzzVTEP reads random bytes as a tunnel device.
func FuzzVTEP(f *testing.F) {
	f.Add([]byte{})
	f.Add(vxlanLink(15, []byte{0x21, 0x18}))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if l, err := rtnl.ParseLink(data); err == nil {
			n := net4()
			n.vtep().matches(l)
		}
	})
}
