package rtnl

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// number returns the bytes of numbers in the byte order of the host.
func number(v ...uint32) []byte {
	f := VF{}
	if len(v) > 0 {
		f.Number = int(v[0])
		return f.numbers(v[1:]...)
	}
	return nil
}

// vfMessage returns the body of RTM_NEWLINK of a physical function: its address, its number of VFs, and what add appends for each VF.
func vfMessage(vfs ...func(b *nlconn.Body)) []byte {
	b := make(nlconn.Body, unix.SizeofIfInfomsg)
	b.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 0xf})
	b.Uint32(unix.IFLA_NUM_VF, uint32(len(vfs)))
	b.Nest(unix.IFLA_VFINFO_LIST, func() {
		for _, add := range vfs {
			b.Nest(nl.IFLA_VF_INFO, func() { add(&b) })
		}
	})
	return b
}

// kernelVF appends the attributes of a VF in the order of the kernel (rtnl_fill_vfinfo), with more than the decoder needs.
func kernelVF(n uint32, spoofCheck, trust, state uint32, vlan []byte) func(b *nlconn.Body) {
	return func(b *nlconn.Body) {
		b.Bytes(nl.IFLA_VF_MAC, append(number(n), append([]byte{2, 0, 0, 0, 1, byte(n)}, make([]byte, 26)...)...))
		b.Bytes(13, bytes.Repeat([]byte{0xff}, 32)) // IFLA_VF_BROADCAST has no number of the VF
		b.Bytes(nl.IFLA_VF_VLAN, number(n, 7, 3))
		b.Bytes(nl.IFLA_VF_RATE, number(n, 10, 100))
		b.Bytes(nl.IFLA_VF_TX_RATE, number(n, 100))
		b.Bytes(nl.IFLA_VF_SPOOFCHK, number(n, spoofCheck))
		b.Bytes(nl.IFLA_VF_LINK_STATE, number(n, state))
		b.Bytes(nl.IFLA_VF_RSS_QUERY_EN, number(n, notReported))
		b.Bytes(nl.IFLA_VF_TRUST, number(n, trust))
		if vlan != nil {
			b.Nest(nl.IFLA_VF_VLAN_LIST, func() { b.Bytes(nl.IFLA_VF_VLAN_INFO, append(number(n, 7, 3), vlan...)) })
		}
	}
}

// TestParseVFs reads the answers of drivers that report everything, that do not report the spoof check and trust, and of a kernel
// without IFLA_VF_VLAN_LIST.
func TestParseVFs(t *testing.T) {
	on, off := true, false
	have, err := ParseVFs(vfMessage(
		kernelVF(0, 1, 0, nl.IFLA_VF_LINK_STATE_ENABLE, []byte{0x88, 0xa8, 0, 0}),
		kernelVF(1, notReported, notReported, nl.IFLA_VF_LINK_STATE_AUTO, []byte{0x81, 0, 0, 0}),
		func(*nlconn.Body) {},
		kernelVF(255, 0, 1, nl.IFLA_VF_LINK_STATE_DISABLE, nil),
	))
	vlan := VFVLAN{ID: 7, QoS: 3, Protocol: unix.ETH_P_8021Q}
	outer := vlan
	outer.Protocol = unix.ETH_P_8021AD
	mac := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, n} }
	want := []VF{
		{Number: 0, MAC: mac(0), VLAN: outer, MinRate: 10, MaxRate: 100, SpoofCheck: &on, Trust: &off, LinkState: 1},
		{Number: 1, MAC: mac(1), VLAN: vlan, MinRate: 10, MaxRate: 100},
		{Number: 255, MAC: mac(255), VLAN: vlan, MinRate: 10, MaxRate: 100, SpoofCheck: &off, Trust: &on, LinkState: 2},
	}
	if diff := cmp.Diff(want, have); diff != "" || err != nil {
		t.Errorf("error %v, -want +have:\n%s", err, diff)
	}
	none, err := ParseVFs(append(make([]byte, unix.SizeofIfInfomsg), 8, 0, unix.IFLA_MTU, 0, 0, 6, 0, 0))
	if none != nil || err != nil {
		t.Errorf("a link without VFs has %v, %v", none, err)
	}
}

// TestHostileVFs: an answer that is no message of a kernel is an error, and no byte behind an attribute is read.
func TestHostileVFs(t *testing.T) {
	attr := func(kind uint16, v []byte) []byte { return vfMessage(func(b *nlconn.Body) { b.Bytes(kind, v) }) }
	whole := vfMessage(kernelVF(0, 1, 1, 1, []byte{0x81, 0, 0, 0}))
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"no header", whole[:unix.SizeofIfInfomsg-1], unix.EBADMSG},
		{"cut in the list", whole[:len(whole)-5], nlconn.ErrDamaged},
		{"cut in the first attribute", whole[:unix.SizeofIfInfomsg+6], nlconn.ErrDamaged},
		{"address without bytes", attr(nl.IFLA_VF_MAC, number(0)), nlconn.ErrDamaged},
		{"address cut", attr(nl.IFLA_VF_MAC, number(0, 1, 2, 3)), nlconn.ErrDamaged},
		{"setting without a number", attr(nl.IFLA_VF_TRUST, []byte{1}), nlconn.ErrDamaged},
		{"rate without a number", attr(nl.IFLA_VF_RATE, nil), nlconn.ErrDamaged},
		{"attribute in the list too long", attr(nl.IFLA_VF_VLAN_LIST, []byte{0xff, 0xff, 1, 0}), nlconn.ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			if have, err := ParseVFs(c.b); !errors.Is(err, c.want) {
				t.Errorf("%v, %v, want the error %v", have, err, c.want)
			}
		})
	}
	for _, c := range []struct {
		name string
		b    []byte
		want VF
	}{
		{"rate cut", attr(nl.IFLA_VF_RATE, number(4, 9)), VF{Number: 4, MinRate: 9, VLAN: VFVLAN{Protocol: unix.ETH_P_8021Q}}},
		{"state unknown", attr(nl.IFLA_VF_LINK_STATE, number(4, 77)), VF{Number: 4, LinkState: 77, VLAN: VFVLAN{Protocol: unix.ETH_P_8021Q}}},
		{"number of all bits", attr(nl.IFLA_VF_VLAN, number(1<<32-1, 1<<32-1)), VF{Number: 1<<32 - 1, VLAN: VFVLAN{ID: 1<<32 - 1, Protocol: unix.ETH_P_8021Q}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			have, err := ParseVFs(c.b)
			if diff := cmp.Diff([]VF{c.want}, have); diff != "" || err != nil {
				t.Errorf("error %v, -want +have:\n%s", err, diff)
			}
		})
	}
}

// TestVFRequests: each request has the settings in the structures that the decoder reads. The kernel uses the same in both
// directions.
func TestVFRequests(t *testing.T) {
	on, off := true, false
	want := VF{
		Number: 3, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, VLAN: VFVLAN{ID: 100, QoS: 5, Protocol: unix.ETH_P_8021AD},
		MinRate: 1, MaxRate: 1 << 31, SpoofCheck: &on, Trust: &off, LinkState: 2,
	}
	all := VFRequest(7, func(b *nlconn.Body) {
		want.AddVFMAC(b)
		want.AddVFVLAN(b)
		want.AddVFRate(b)
		want.AddVFSetting(b, nl.IFLA_VF_SPOOFCHK, 1)
		want.AddVFSetting(b, nl.IFLA_VF_TRUST, 0)
		want.AddVFSetting(b, nl.IFLA_VF_LINK_STATE, 2)
	})
	b := make(nlconn.Body, unix.SizeofIfInfomsg)
	b.Bytes(unix.IFLA_ADDRESS, make([]byte, 6))
	have, err := ParseVFs(append(b, all.Body...))
	if diff := cmp.Diff([]VF{want}, have); diff != "" || err != nil {
		t.Errorf("error %v, -want +have:\n%s", err, diff)
	}
	info, err := nlconn.Find(all.Body, unix.IFLA_VFINFO_LIST, nl.IFLA_VF_INFO, nl.IFLA_VF_VLAN_LIST, nl.IFLA_VF_VLAN_INFO)
	if err != nil || len(info) != sizeofVFVLAN || info[12] != 0x88 || info[13] != 0xa8 {
		t.Errorf("VLAN is %x, %v: the protocol is in network byte order", info, err)
	}
}
