package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// sizeofNdmsg is the size of struct ndmsg.
const sizeofNdmsg = 12

// ndmsg is struct ndmsg of linux/neighbour.h.
type ndmsg struct {
	family uint8
	index  uint32
	state  uint16
	flags  uint8
}

func (m *ndmsg) Len() int { return sizeofNdmsg }

// Serialize is the message header's bytes.
func (m *ndmsg) Serialize() []byte {
	b := make([]byte, 4, sizeofNdmsg)
	b[0] = m.family
	b = binary.NativeEndian.AppendUint32(b, m.index)
	b = binary.NativeEndian.AppendUint16(b, m.state)
	return append(b, m.flags, 0)
}

// Where is the namespace of the entry's link.
func (n *Neigh) Where() Place { return n.In }

// IsShared tells whether attachments share the entry.
func (n *Neigh) IsShared() bool { return n.Shared }

func (n *Neigh) object() {}

// String is the entry in the form of ip neighbour or bridge fdb.
func (n *Neigh) String() string {
	var w words
	if n.FDB {
		w = words{"fdb", n.MAC}
		if n.IP.IsValid() {
			w = append(w, "dst", n.IP.String())
		}
	} else {
		w = words{"neighbour", n.IP.String(), "lladdr", n.MAC}
	}
	w.value("dev", n.Link)
	w.place(n.In)
	return w.String()
}

func (n *Neigh) validate() error {
	errs := []error{checkPlace(n.In), checkName(n.Link), checkMAC(n.MAC), checkAddr("neighbour", n.IP)}
	if n.MAC == "" {
		errs = append(errs, fmt.Errorf("neighbour without a MAC: %w", ErrInvalid))
	}
	if !n.IP.IsValid() && !n.FDB {
		errs = append(errs, fmt.Errorf("neighbour without an address: %w", ErrInvalid))
	}
	return errors.Join(errs...)
}

func (n *Neigh) plan(ctx context.Context, s *session) ([]Change, error) {
	c := Change{Do: Step{VerbAdd, n}}
	if s.isNew(n.In, n.Link) {
		if !n.Shared && s.lasting[linkRef{n.In, n.Link}] {
			c.Undo = &Step{VerbDel, n}
		}
		return []Change{c}, nil
	}
	have, err := s.neighbours(ctx, n.In, n.Link, n.FDB)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(have, n.sameKey); i >= 0 && !n.Replace {
		if n.Shared && sameMAC(n.MAC, have[i].mac) {
			return nil, nil
		}
		return nil, fmt.Errorf("%s %w: lladdr %s", n, ErrExists, have[i].mac)
	}
	if !n.Shared {
		c.Undo = &Step{VerbDel, n}
	}
	return []Change{c}, nil
}

// sameKey tells whether there can be only one of the two.
func (n *Neigh) sameKey(have neighState) bool {
	if n.FDB {
		return sameMAC(n.MAC, have.mac) && n.IP == have.ip
	}
	return n.IP == have.ip
}

func (n *Neigh) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, err := s.neighbours(ctx, n.In, n.Link, n.FDB)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	i := slices.IndexFunc(have, n.sameKey)
	if i < 0 {
		return absentIf(nil, n)
	}
	d := differences{object: n}
	if !sameMAC(n.MAC, have[i].mac) {
		d.compare("lladdr", n.MAC, have[i].mac.String())
	}
	return d.list, nil
}

// messages are the requests that add or delete the entry. One that the kernel
// learnt is replaced.
func (n *Neigh) messages(ctx context.Context, s *session, v Verb) ([]rtMessage, error) {
	index, err := s.indexOf(ctx, n.In, n.Link)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n, ErrInvalid)
	}
	nd := &ndmsg{index: uint32(index), state: unix.NUD_PERMANENT}
	m := rtMessage{kind: unix.RTM_NEWNEIGH, flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, data: []nl.NetlinkRequestData{nd}}
	if v == VerbDel {
		m.kind, m.flags = unix.RTM_DELNEIGH, 0
	}
	if n.IP.IsValid() {
		m.data = append(m.data, nl.NewRtAttr(unix.NDA_DST, n.IP.AsSlice()))
	}
	if v != VerbDel || n.FDB {
		m.data = append(m.data, nl.NewRtAttr(unix.NDA_LLADDR, mac))
	}
	switch {
	case !n.FDB:
		nd.family = family(n.IP)
	case n.IP.IsValid(): // the entry of a VXLAN device itself
		nd.family, nd.flags = unix.AF_BRIDGE, unix.NTF_SELF
	default: // the bridge's entry for its port
		nd.family, nd.flags, nd.state = unix.AF_BRIDGE, unix.NTF_MASTER, unix.NUD_NOARP
	}
	return []rtMessage{m}, nil
}

// neighState is a permanent neighbour or static forwarding entry.
type neighState struct {
	ip  netip.Addr
	mac net.HardwareAddr
}

// neighbours reads a link's permanent neighbours, or its static forwarding entries.
func (s *session) neighbours(ctx context.Context, p Place, link string, fdb bool) ([]neighState, error) {
	index, err := s.indexOf(ctx, p, link)
	if err != nil {
		return nil, err
	}
	c, err := s.conn(p)
	if err != nil {
		return nil, err
	}
	nd := &ndmsg{}
	if fdb {
		nd.family = unix.AF_BRIDGE
	}
	m := rtMessage{kind: unix.RTM_GETNEIGH, data: []nl.NetlinkRequestData{nd, nl.NewRtAttr(unix.NDA_IFINDEX, nl.Uint32Attr(uint32(index)))}}
	if fdb { // the bridge's dump is filtered by the header, not by the attribute
		nd.index, m.data = uint32(index), m.data[:1]
	}
	var all []neighState
	err = c.dump(ctx, m, func() { all = nil }, func(_ uint16, data []byte) error {
		n, ok, err := parseNeigh(data, index)
		if ok {
			all = append(all, n)
		}
		return err
	})
	return all, kernelError(err, fmt.Sprintf("list neighbours of %q", link))
}

// parseNeigh reads the body of RTM_NEWNEIGH; not ok for entries of other
// links and learnt ones.
func parseNeigh(b []byte, index int) (n neighState, ok bool, err error) {
	if len(b) < sizeofNdmsg {
		return n, false, fmt.Errorf("neighbour message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	state := binary.NativeEndian.Uint16(b[8:])
	ok = int(int32(binary.NativeEndian.Uint32(b[4:]))) == index && state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
	err = eachRTAttr(b[sizeofNdmsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.NDA_DST:
			n.ip, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			n.mac = append(net.HardwareAddr(nil), v...)
		}
		return nil
	})
	return n, ok && err == nil, err
}
