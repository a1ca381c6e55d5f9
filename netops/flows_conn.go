package netops

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// Message types of ctnetlink requests.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_GET
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE
)

// Constants of linux/netfilter/nfnetlink_conntrack.h that the library lacks. The bits
// select parts of a tuple and are defined in the kernel's nf_internals.h.
const (
	ctaFilter      = 25
	ctaFilterOrig  = 1
	ctaFilterReply = 2

	ctaFilterIPSrc   = 1 << 0
	ctaFilterIPDst   = 1 << 1
	ctaFilterProto   = 1 << 3
	ctaFilterPortDst = 1 << 5
)

// flowFilter is a filter that the kernel applies to connections. A zero field matches
// all values. Addresses are IPv4 addresses.
type flowFilter struct {
	family, proto uint8
	port          uint16
	dst, replySrc netip.Addr
}

// trackedFlow is one tracked connection.
type trackedFlow struct {
	proto         uint8
	port          uint16
	dst, replySrc netip.Addr
	// family, tuple, id and zone identify the connection in a request.
	family          uint8
	tuple, id, zone []byte
}

// ctConn is a ctnetlink socket in one namespace.
type ctConn struct{ *nlconn.Conn }

// conntrack returns the namespace's ctnetlink socket and opens it on first use.
func (ns *Namespace) conntrack() (*ctConn, error) {
	if ns.ct != nil {
		return ns.ct, nil
	}
	err := ns.visit(func() error {
		c, err := nlconn.Open(unix.NETLINK_NETFILTER, "netfilter netlink")
		if err == nil {
			ns.ct = &ctConn{c}
		}
		return err
	})
	return ns.ct, err
}

// listCost is how many deletions by a filter take as long as one listing. With 10,000
// connections in a table of 262,144 buckets, a listing takes 8 ms and a deletion 2 ms
// (kernel 6.18).
const listCost = 4

// deleteInKernel lets the kernel select and delete the connections. Kernels newer than 6.1
// support that. It deletes nothing and returns EINVAL or EOPNOTSUPP if the kernel cannot
// do that, if the kernel cannot match a selection completely, or if a listing is faster.
func (c *ctConn) deleteInKernel(ctx context.Context, flows []*Flows) error {
	var msgs []nlconn.Message
	for _, f := range flows {
		filter, whole := f.filter()
		if !whole {
			return unix.EOPNOTSUPP
		}
		for _, l3 := range filter.families() {
			msgs = append(msgs, filter.request(ctDelete, l3))
		}
	}
	if len(msgs) > 2*listCost {
		return unix.EOPNOTSUPP
	}
	results, broken := c.Exchange(ctx, msgs)
	return nlconn.Explain(errors.Join(append(results, broken)...), "delete tracked connections")
}

// deleteListed lists the connections and deletes the selected ones.
func (c *ctConn) deleteListed(ctx context.Context, flows []*Flows) error {
	filter, _ := flows[0].filter()
	for _, f := range flows[1:] {
		other, _ := f.filter()
		filter = filter.common(other)
	}
	found, err := c.listConnections(ctx, filter, func(t *trackedFlow) bool {
		return slices.ContainsFunc(flows, func(f *Flows) bool { return f.matches(t) })
	})
	if err != nil {
		return err
	}
	return c.deleteConnections(ctx, found)
}

// listConnections lists the connections that match the filter and for which keep returns true.
// The kernel keeps the connections of all namespaces in one table and walks all of it.
// The filter in the kernel (CTA_FILTER, since 5.8) reduces the number of messages.
func (c *ctConn) listConnections(ctx context.Context, f flowFilter, keep func(*trackedFlow) bool) ([]*trackedFlow, error) {
	var all []*trackedFlow
	for _, l3 := range f.families() { // the kernel filters only one family in a request
		some, err := nlconn.List(ctx, c.Conn, f.request(ctGet, l3), func(data []byte) (*trackedFlow, bool, error) {
			t, err := parseFlow(data)
			if err != nil || !keep(t) {
				return nil, false, err
			}
			t.tuple, t.id, t.zone = bytes.Clone(t.tuple), bytes.Clone(t.id), bytes.Clone(t.zone)
			return t, true, nil
		})
		if err != nil {
			return nil, nlconn.Explain(err, "list tracked connections")
		}
		all = append(all, some...)
	}
	return all, nil
}

// deleteConnections deletes connections. A connection that has ended is not an error. The request
// contains the ID, so a newer connection with the same tuple stays.
func (c *ctConn) deleteConnections(ctx context.Context, flows []*trackedFlow) error {
	for len(flows) > 0 {
		some := flows[:min(len(flows), nlconn.MaxWrite)]
		flows = flows[len(some):]
		msgs := make([]nlconn.Message, len(some))
		for i, t := range some {
			m := &msgs[i]
			m.Kind, m.Header = ctDelete, &nl.Nfgenmsg{NfgenFamily: t.family}
			m.Bytes(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, t.tuple)
			m.Bytes(nl.CTA_ID, t.id)
			if len(t.zone) > 0 {
				m.Bytes(nl.CTA_ZONE, t.zone)
			}
		}
		results, broken := c.Exchange(ctx, msgs)
		if broken != nil {
			return nlconn.Explain(broken, "delete tracked connections")
		}
		for _, err := range results {
			if err != nil && !nlconn.IsAbsent(err) {
				return nlconn.Explain(err, "delete tracked connection")
			}
		}
	}
	return nil
}

// request returns a request for the connections of one family that the filter
// matches.
func (f flowFilter) request(kind uint16, l3 uint8) nlconn.Message {
	m := nlconn.Message{Kind: kind, Header: &nl.Nfgenmsg{NfgenFamily: l3}}
	var orig, reply uint32
	if f.dst.Is4() {
		orig |= ctaFilterIPDst
	}
	if f.proto != 0 {
		orig |= ctaFilterProto
	}
	if f.proto != 0 && f.port != 0 {
		orig |= ctaFilterPortDst
	}
	if f.replySrc.Is4() {
		reply |= ctaFilterIPSrc
	}
	if orig|reply == 0 {
		return m
	}
	m.Nest(ctaFilter, func() {
		if orig != 0 {
			m.Uint32(ctaFilterOrig, orig)
		}
		if reply != 0 {
			m.Uint32(ctaFilterReply, reply)
		}
	})
	if orig != 0 {
		m.Nest(nl.CTA_TUPLE_ORIG, func() { f.addOriginal(&m.Body) })
	}
	if reply != 0 {
		m.Nest(nl.CTA_TUPLE_REPLY, func() {
			m.Nest(nl.CTA_TUPLE_IP, func() { m.Bytes(nl.CTA_IP_V4_SRC, f.replySrc.AsSlice()) })
		})
	}
	return m
}

// addOriginal appends the attributes of the tuple of the original direction.
func (f flowFilter) addOriginal(b *nlconn.Body) {
	if f.dst.Is4() {
		b.Nest(nl.CTA_TUPLE_IP, func() { b.Bytes(nl.CTA_IP_V4_DST, f.dst.AsSlice()) })
	}
	if f.proto != 0 {
		b.Nest(nl.CTA_TUPLE_PROTO, func() {
			b.Uint8(nl.CTA_PROTO_NUM, f.proto)
			if f.port != 0 {
				b.Net16(nl.CTA_PROTO_DST_PORT, f.port)
			}
		})
	}
}

// families returns the address families that the filter matches.
func (f flowFilter) families() []uint8 {
	if f.family != 0 {
		return []uint8{f.family}
	}
	return []uint8{unix.AF_INET, unix.AF_INET6}
}

// parseFlow decodes a message of the dump. The tuple, ID and zone of the result are
// slices of b.
func parseFlow(b []byte) (*trackedFlow, error) {
	if len(b) < nl.SizeofNfgenmsg {
		return nil, fmt.Errorf("connection message of %d bytes: %w", len(b), unix.EBADMSG)
	}
	t := &trackedFlow{family: b[0]}
	err := nlconn.EachAttr(b[nl.SizeofNfgenmsg:], func(kind uint16, v []byte) error {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			t.tuple = v
			return eachTuple(v, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, &t.dst, func(kind uint16, v []byte) {
				switch {
				case kind == nl.CTA_PROTO_NUM:
					t.proto = nlconn.Byte(v)
				case kind == nl.CTA_PROTO_DST_PORT && len(v) == 2:
					t.port = binary.BigEndian.Uint16(v)
				}
			})
		case nl.CTA_TUPLE_REPLY:
			return eachTuple(v, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, &t.replySrc, func(uint16, []byte) {})
		case nl.CTA_ID:
			t.id = v
		case nl.CTA_ZONE:
			t.zone = v
		}
		return nil
	})
	return t, err
}

// eachTuple stores one address of a tuple in addr. It calls proto for each attribute of
// the tuple's protocol.
func eachTuple(b []byte, kind4, kind6 uint16, addr *netip.Addr, proto func(kind uint16, v []byte)) error {
	return nlconn.EachAttr(b, func(kind uint16, v []byte) error {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return nlconn.EachAttr(v, func(kind uint16, v []byte) error {
				if kind == kind4 || kind == kind6 {
					*addr, _ = netip.AddrFromSlice(v)
				}
				return nil
			})
		case nl.CTA_TUPLE_PROTO:
			return nlconn.EachAttr(v, func(kind uint16, v []byte) error {
				proto(kind, v)
				return nil
			})
		}
		return nil
	})
}
