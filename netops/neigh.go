package netops

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
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
	have, there, err := s.neighbour(ctx, n)
	if err != nil {
		return nil, err
	}
	if there && !n.Replace {
		if n.Shared && sameMAC(n.MAC, have.mac) {
			return nil, nil
		}
		return nil, fmt.Errorf("%s %w: lladdr %s", n, ErrExists, have.mac)
	}
	if !n.Shared {
		c.Undo = &Step{VerbDel, n}
	}
	return []Change{c}, nil
}

func (n *Neigh) verify(ctx context.Context, s *session) ([]Difference, error) {
	have, there, err := s.neighbour(ctx, n)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	if !there {
		return absentIf(nil, n)
	}
	d := differences{object: n}
	if !sameMAC(n.MAC, have.mac) {
		d.compare("lladdr", n.MAC, have.mac.String())
	}
	return d.list, nil
}

// messages are the requests that add or delete the entry. One that the kernel
// learnt is replaced.
func (n *Neigh) messages(ctx context.Context, s *session, v Verb) ([]nlconn.Message, error) {
	index, err := s.indexOf(ctx, n.In, n.Link)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n, ErrInvalid)
	}
	nd := &ndmsg{index: uint32(index), state: unix.NUD_PERMANENT}
	m := nlconn.Message{Kind: unix.RTM_NEWNEIGH, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Data: []nl.NetlinkRequestData{nd}}
	if v == VerbDel {
		m.Kind, m.Flags = unix.RTM_DELNEIGH, 0
	}
	if n.IP.IsValid() {
		m.Data = append(m.Data, nl.NewRtAttr(unix.NDA_DST, n.IP.AsSlice()))
	}
	if v != VerbDel || n.FDB {
		m.Data = append(m.Data, nl.NewRtAttr(unix.NDA_LLADDR, mac))
	}
	switch {
	case !n.FDB:
		nd.family = family(n.IP)
	case n.IP.IsValid(): // the entry of a VXLAN device itself
		nd.family, nd.flags = unix.AF_BRIDGE, unix.NTF_SELF
	default: // the bridge's entry for its port
		nd.family, nd.flags, nd.state = unix.AF_BRIDGE, unix.NTF_MASTER, unix.NUD_NOARP
	}
	return []nlconn.Message{m}, nil
}

// neighState is a permanent neighbour or static forwarding entry.
type neighState struct {
	ip  netip.Addr
	mac net.HardwareAddr
}

// neighbour reads the permanent neighbour, or static forwarding entry, that is in n's
// place.
func (s *session) neighbour(ctx context.Context, n *Neigh) (have neighState, there bool, err error) {
	index, err := s.indexOf(ctx, n.In, n.Link)
	if err != nil {
		return have, false, err
	}
	c, err := s.conn(n.In)
	if err != nil {
		return have, false, err
	}
	read := c.neighbour
	if n.FDB {
		read = c.forwarding
	}
	have, there, err = read(ctx, index, n)
	return have, there, nlconn.Explain(err, fmt.Sprintf("read %s", n))
}

// neighbour asks for the one entry: a link may have one for each container.
func (c *rtConn) neighbour(ctx context.Context, index int, n *Neigh) (have neighState, there bool, err error) {
	nd := &ndmsg{family: family(n.IP), index: uint32(index)}
	data, err := c.Query(ctx, nlconn.Message{
		Kind: unix.RTM_GETNEIGH, Data: []nl.NetlinkRequestData{nd, nl.NewRtAttr(unix.NDA_DST, n.IP.AsSlice())},
	})
	if errors.Is(err, unix.ENOENT) {
		return have, false, nil
	}
	if err != nil {
		return have, false, err
	}
	return parseNeigh(data, index)
}

// forwarding looks for an entry among all of the link: several may have its MAC. The
// bridge's dump is filtered by the header.
func (c *rtConn) forwarding(ctx context.Context, index int, n *Neigh) (have neighState, there bool, err error) {
	m := nlconn.Message{Kind: unix.RTM_GETNEIGH, Data: []nl.NetlinkRequestData{&ndmsg{family: unix.AF_BRIDGE, index: uint32(index)}}}
	err = c.Dump(ctx, m, func() { there = false }, func(_ uint16, data []byte) error {
		e, ok, err := parseNeigh(data, index)
		if ok && sameMAC(n.MAC, e.mac) && n.IP == e.ip {
			have, there = e, true
		}
		return err
	})
	return have, there, err
}

// parseNeigh reads the body of RTM_NEWNEIGH; not ok for entries of other
// links and learnt ones.
func parseNeigh(b []byte, index int) (n neighState, ok bool, err error) {
	if len(b) < sizeofNdmsg {
		return n, false, fmt.Errorf("neighbour message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	state := binary.NativeEndian.Uint16(b[8:])
	ok = int(int32(binary.NativeEndian.Uint32(b[4:]))) == index && state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
	err = nlconn.EachAttr(b[sizeofNdmsg:], func(kind uint16, v []byte) error {
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
