package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// filterVF makes the answer contain the VFs of a link (RTEXT_FILTER_VF).
	filterVF = 1
	// sizeofVFAddress is the size of the field mac of struct ifla_vf_mac (MAX_ADDR_LEN).
	sizeofVFAddress = 32
	// sizeofVFVLAN is the size of struct ifla_vf_vlan_info, whose last field has two bytes and two of padding.
	sizeofVFVLAN = 16
	// notReported is the value of a setting that the driver does not report (rtnl_fill_vfinfo presets -1).
	notReported = 1<<32 - 1
)

// VF is a virtual function of a network card (SR-IOV) as its physical function reports it.
type VF struct {
	Number int
	// MAC is the administrative address. It is zero if none was set.
	MAC  net.HardwareAddr
	VLAN VFVLAN
	// MinRate and MaxRate are in Mbit/s. 0 is no limit.
	MinRate, MaxRate uint32
	// SpoofCheck and Trust are nil if the driver does not report them.
	SpoofCheck, Trust *bool
	// LinkState is a number of VFLinkStates.
	LinkState uint32
}

// VFVLAN is the VLAN that a card adds to the frames of a VF. ID 0 is none.
type VFVLAN struct {
	ID, QoS  uint32
	Protocol uint16 // ETH_P_8021Q or ETH_P_8021AD
}

// VFLinkStates are the names of IFLA_VF_LINK_STATE_* in their order, as ip-link(8) has them.
func VFLinkStates() []string { return []string{"auto", "enable", "disable"} }

// VFs reads the virtual functions of the link with an index.
func (c *Conn) VFs(ctx context.Context, link int) ([]VF, error) {
	m := LinkMessage(unix.RTM_GETLINK, link)
	m.Uint32(unix.IFLA_EXT_MASK, filterVF|skipStats)
	data, err := c.Query(ctx, m)
	if err != nil {
		return nil, nlconn.Explain(err, fmt.Sprintf("virtual functions of link %d", link))
	}
	return ParseVFs(data)
}

// ParseVFs reads the virtual functions from the body of RTM_NEWLINK.
func ParseVFs(b []byte) (all []VF, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("link message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	var mac net.HardwareAddr
	var list []byte
	err = nlconn.ReadAttrs(b[unix.SizeofIfInfomsg:], []nlconn.Attr{
		{Kind: unix.IFLA_ADDRESS, At: &mac},
		{Kind: unix.IFLA_VFINFO_LIST, At: &list},
	})
	if err != nil {
		return nil, err
	}
	err = nlconn.EachAttr(list, func(kind uint16, v []byte) error {
		if kind != nl.IFLA_VF_INFO {
			return nil
		}
		f, ok, err := parseVF(v, len(mac))
		if ok && err == nil {
			all = append(all, f)
		}
		return err
	})
	return all, err
}

// parseVF reads IFLA_VF_INFO. Each attribute is a structure of linux/if_link.h that begins with the number of the VF. ok is
// false if there is no attribute.
func parseVF(b []byte, macLen int) (f VF, ok bool, err error) {
	f.VLAN.Protocol = unix.ETH_P_8021Q
	words := func(set func(at func(i int) uint32)) func([]byte) error {
		return func(v []byte) error {
			if len(v) < 4 {
				return fmt.Errorf("attribute of a virtual function with %d bytes: %w", len(v), nlconn.ErrDamaged)
			}
			f.Number, ok = nlconn.Int(v), true
			set(func(i int) uint32 { return uint32(nlconn.Int(v[min(4*i, len(v)):])) })
			return nil
		}
	}
	setting := func(to **bool) func([]byte) error {
		return words(func(at func(int) uint32) {
			if n := at(1); n != notReported {
				on := n != 0
				*to = &on
			}
		})
	}
	err = nlconn.ReadAttrs(b, []nlconn.Attr{
		{Kind: nl.IFLA_VF_MAC, At: func(v []byte) error {
			if len(v) < 4+sizeofVFAddress || macLen > sizeofVFAddress {
				return fmt.Errorf("address of a virtual function with %d bytes: %w", len(v), nlconn.ErrDamaged)
			}
			f.Number, ok = nlconn.Int(v), true
			f.MAC = append(net.HardwareAddr(nil), v[4:4+macLen]...)
			return nil
		}},
		{Kind: nl.IFLA_VF_VLAN, At: words(func(at func(int) uint32) { f.VLAN.ID, f.VLAN.QoS = at(1), at(2) })},
		{Kind: nl.IFLA_VF_VLAN_LIST, At: func(v []byte) error { return f.parseVLANs(v) }},
		{Kind: nl.IFLA_VF_RATE, At: words(func(at func(int) uint32) { f.MinRate, f.MaxRate = at(1), at(2) })},
		{Kind: nl.IFLA_VF_SPOOFCHK, At: setting(&f.SpoofCheck)},
		{Kind: nl.IFLA_VF_TRUST, At: setting(&f.Trust)},
		{Kind: nl.IFLA_VF_LINK_STATE, At: words(func(at func(int) uint32) { f.LinkState = at(1) })},
	})
	return f, ok, err
}

// parseVLANs reads IFLA_VF_VLAN_LIST, which has the protocol of the VLAN. A card supports one VLAN.
func (f *VF) parseVLANs(b []byte) error {
	v, err := nlconn.Find(b, nl.IFLA_VF_VLAN_INFO)
	if err != nil || len(v) < sizeofVFVLAN-2 {
		return err
	}
	f.VLAN = VFVLAN{ID: uint32(nlconn.Int(v[4:])), QoS: uint32(nlconn.Int(v[8:])), Protocol: binary.BigEndian.Uint16(v[12:])}
	return nil
}

// VFRequest returns a request that changes one setting of a virtual function of the link with an index. add appends an
// attribute of IFLA_VF_INFO.
func VFRequest(link int, add func(b *nlconn.Body)) nlconn.Message {
	m := LinkMessage(unix.RTM_SETLINK, link)
	m.Nest(unix.IFLA_VFINFO_LIST, func() {
		m.Nest(nl.IFLA_VF_INFO, func() { add(&m.Body) })
	})
	return m
}

// AddVFMAC appends the administrative address. The zero address removes it.
func (f *VF) AddVFMAC(b *nlconn.Body) {
	v := make([]byte, 4+sizeofVFAddress)
	binary.NativeEndian.PutUint32(v, uint32(f.Number))
	copy(v[4:], f.MAC)
	b.Bytes(nl.IFLA_VF_MAC, v)
}

// AddVFVLAN appends the VLAN with its protocol.
func (f *VF) AddVFVLAN(b *nlconn.Body) {
	v := f.numbers(f.VLAN.ID, f.VLAN.QoS)
	v = append(binary.BigEndian.AppendUint16(v, f.VLAN.Protocol), 0, 0)
	b.Nest(nl.IFLA_VF_VLAN_LIST, func() { b.Bytes(nl.IFLA_VF_VLAN_INFO, v) })
}

// AddVFRate appends both limits.
func (f *VF) AddVFRate(b *nlconn.Body) { b.Bytes(nl.IFLA_VF_RATE, f.numbers(f.MinRate, f.MaxRate)) }

// AddVFSetting appends IFLA_VF_SPOOFCHK, IFLA_VF_TRUST or IFLA_VF_LINK_STATE.
func (f *VF) AddVFSetting(b *nlconn.Body, kind uint16, value uint32) { b.Bytes(kind, f.numbers(value)) }

// numbers returns a structure that has the number of the VF and then other numbers.
func (f *VF) numbers(more ...uint32) []byte {
	v := binary.NativeEndian.AppendUint32(nil, uint32(f.Number))
	for _, n := range more {
		v = binary.NativeEndian.AppendUint32(v, n)
	}
	return v
}
