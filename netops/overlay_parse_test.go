package netops

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// overlayOps are one of each kind and family.
func overlayOps() []overlayOp {
	mac := hwAddr{2, 0, 0, 0, 2, 2}
	var ops []overlayOp
	for _, n := range []overlayNet{net4(), net6()} {
		gateway, dst := netip.MustParseAddr(n.other), netip.MustParsePrefix(n.otherSubnet)
		h := hop{via: dst.Addr(), link: 7, onLink: true}
		ops = append(ops,
			overlayOp{kind: overlayNeigh, link: 7, ip: dst.Addr(), mac: mac},
			overlayOp{kind: overlayFDB, link: 7, ip: gateway, mac: mac},
			overlayOp{kind: overlayHop, id: OverlayNexthops4 + 5, hop: h},
			overlayOp{kind: overlayRoute, dst: dst, protocol: OverlayProtocol, id: OverlayNexthops4 + 5, hop: h},
			overlayOp{kind: overlayRoute, dst: dst, protocol: OverlayProtocol, priority: 1024, hop: h},
			overlayOp{kind: overlayRoute, dst: dst, protocol: OverlayProtocol, hop: hop{via: gateway, link: 3}},
		)
	}
	return ops
}

// TestOverlayMessagesComeBack reads requests as notifications: what the kernel
// tells of them has the same form.
func TestOverlayMessagesComeBack(t *testing.T) {
	for _, op := range overlayOps() {
		b := op.body(nil)
		switch op.kind {
		case overlayNeigh, overlayFDB:
			n, ok, err := parseOverlayNeigh(b)
			want := overlayNeighState{fdb: op.kind == overlayFDB, permanent: true, link: op.link, ip: op.ip, mac: op.mac}
			if err != nil || !ok || n != want {
				t.Errorf("%s: %+v %v %v", &op, n, ok, err)
			}
		case overlayHop:
			n, err := parseNexthop(b)
			if want := (overlayHopState{op.id, OverlayProtocol, op.hop}); err != nil || n != want {
				t.Errorf("%s: %+v %v", &op, n, err)
			}
		case overlayRoute:
			r, ok, err := parseOverlayRoute(b)
			if err != nil || !ok || r.dst != op.dst || r.overlayRouteTo != op.route() {
				t.Errorf("%s: %+v %v %v", &op, r, ok, err)
			}
		}
	}
}

// FuzzOverlayEvent decodes any notification and judges it: no panic, and
// nothing that was asked for by nobody disturbs.
func FuzzOverlayEvent(f *testing.F) {
	for _, op := range overlayOps() {
		kind, _ := op.request()
		f.Add(kind, op.body(nil))
		op.del = true
		kind, _ = op.request()
		f.Add(kind, op.body(nil))
	}
	f.Add(uint16(unix.RTM_NEWLINK), append(make([]byte, unix.SizeofIfInfomsg), nlconn.AppendAttr(nil, unix.IFLA_LINKINFO, nlconn.AppendAttr(nlconn.AppendAttr(nil, 1, []byte("vxlan\x00")), 2, nlconn.AppendAttr(nil, 1, []byte{1, 0, 0, 0})))...))
	f.Add(uint16(unix.RTM_NEWNETCONF), []byte{2, 0, 0, 0, 8, 0, 1, 0, 255, 255, 255, 255, 8, 0, 2, 0, 0, 0, 0, 0})
	f.Add(uint16(unix.RTM_NEWADDR), []byte{2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 1})
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		o := &Overlay{family: unix.AF_INET, firstHop: OverlayNexthops4, have: newOverlayHave(), peers: newOverlayIndex(0), linkFlags: map[int]uint32{}}
		m := &overlayMonitor{o: o}
		e, ok := m.decode(kind, data)
		if !ok {
			return
		}
		if o.disturbedBy([]overlayEvent{e}, false) {
			t.Errorf("%+v disturbs an overlay that nobody has applied", e)
		}
		n := net4()
		o.wanted, o.device, o.parent = n.vtep(), vtepState{Link: rtnl.Link{Index: 7, Name: n.device}}, &rtnl.Link{Index: 3}
		o.direct = map[netip.Addr]hop{netip.MustParseAddr(n.other): {link: 3}}
		o.disturbedBy([]overlayEvent{e}, false)
	})
}

// FuzzVTEP reads any link as a tunnel device.
func FuzzVTEP(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, unix.SizeofIfInfomsg), nlconn.AppendAttr(nil, unix.IFLA_LINKINFO, nlconn.AppendAttr(nlconn.AppendAttr(nil, 1, []byte("vxlan\x00")), 2, nlconn.AppendAttr(nil, 15, []byte{0x21, 0x18})))...))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, ok, err := parseVTEP(data)
		if ok && (err != nil || v.Kind != rtnl.KindVXLAN) {
			t.Errorf("%+v, %v", v, err)
		}
		n := net4()
		n.vtep().suits(&v)
	})
}
