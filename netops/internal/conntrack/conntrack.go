// Package conntrack lists and deletes the kernel's tracked connections of one namespace by ctnetlink.
package conntrack

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Conn is a ctnetlink socket in one namespace.
type Conn struct{ *nlconn.Conn }

// Open opens a socket in the calling thread's network namespace.
func Open() (*Conn, error) {
	c, err := nlconn.Open(unix.NETLINK_NETFILTER, "netfilter netlink")
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}

// Delete deletes the connections that match one of the selections. It does nothing if the kernel cannot
// list connections because nf_conntrack_netlink is absent. They expire then when they are idle.
func (c *Conn) Delete(ctx context.Context, all []Selection) error {
	err := c.DeleteInKernel(ctx, all)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = c.deleteListed(ctx, all)
	}
	if errors.Is(err, unix.EINVAL) { // nf_conntrack_netlink is absent
		return nil
	}
	return err
}

// listCost is how many deletions by a filter take as long as one listing. With 10,000
// connections in a table of 262,144 buckets, a listing takes 8 ms and a deletion 2 ms
// (kernel 6.18).
const listCost = 4

// DeleteInKernel lets the kernel select and delete the connections. Kernels newer than 6.1
// support that. It deletes nothing and returns EINVAL or EOPNOTSUPP if the kernel cannot
// do that, if the kernel cannot match a selection completely, or if a listing is faster.
func (c *Conn) DeleteInKernel(ctx context.Context, all []Selection) error {
	var msgs []nlconn.Message
	for i := range all {
		f, whole := all[i].filter()
		if !whole {
			return unix.EOPNOTSUPP
		}
		for _, l3 := range f.families() {
			msgs = append(msgs, f.request(ctDelete, l3))
		}
	}
	if len(msgs) > 2*listCost {
		return unix.EOPNOTSUPP
	}
	results, broken := c.Exchange(ctx, msgs)
	return nlconn.Explain(errors.Join(append(results, broken)...), "delete tracked connections")
}

// deleteListed lists the connections and deletes the selected ones.
func (c *Conn) deleteListed(ctx context.Context, all []Selection) error {
	f, _ := all[0].filter()
	for i := range all[1:] {
		other, _ := all[1+i].filter()
		f = f.common(other)
	}
	found, err := c.list(ctx, f, func(o *connection) bool {
		return slices.ContainsFunc(all, func(s Selection) bool { return s.Matches(o.tracked()) })
	})
	if err != nil {
		return err
	}
	return c.deleteConnections(ctx, found)
}

// Tracked is a connection: its client's address before, and its server's address and port after translation.
type Tracked struct {
	Protocol       uint8
	Client, Server netip.Addr
	// Port is 0 for a protocol without ports.
	Port uint16
	// ClientPort and To are those of the first packet.
	ClientPort uint16
	To         netip.AddrPort
	// InZone means that packets without a zone are not of this connection.
	InZone bool
	// Source is the client's address that the server sees: the one after NAT.
	Source netip.Addr
}

// All lists the connections of a protocol, or of all for 0.
func (c *Conn) All(ctx context.Context, protocol uint8) (all []Tracked, err error) {
	_, err = c.list(ctx, filter{proto: protocol}, func(o *connection) bool {
		if t := o.tracked(); protocol == 0 || protocol == t.Protocol { // kernels before 5.8 filter nothing
			all = append(all, t)
		}
		return false
	})
	return all, err
}

// list lists the connections that match the filter and for which keep returns true.
// The kernel keeps the connections of all namespaces in one table and walks all of it.
// The filter in the kernel (CTA_FILTER, since 5.8) reduces the number of messages.
func (c *Conn) list(ctx context.Context, f filter, keep func(*connection) bool) ([]*connection, error) {
	var all []*connection
	for _, l3 := range f.families() { // the kernel filters only one family in a request
		some, err := nlconn.List(ctx, c.Conn, f.request(ctGet, l3), func(data []byte) (*connection, bool, error) {
			o, err := parse(data)
			if err != nil || !keep(o) {
				return nil, false, err
			}
			o.tuple, o.id, o.zone = bytes.Clone(o.tuple), bytes.Clone(o.id), bytes.Clone(o.zone)
			return o, true, nil
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
func (c *Conn) deleteConnections(ctx context.Context, all []*connection) error {
	for some := range slices.Chunk(all, nlconn.MaxWrite) {
		msgs := make([]nlconn.Message, len(some))
		for i, o := range some {
			m := &msgs[i]
			m.Kind, m.Header = ctDelete, &nl.Nfgenmsg{NfgenFamily: o.family}
			m.Bytes(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, o.tuple)
			m.Attrs([]nlconn.Attr{{Kind: nl.CTA_ID, At: &o.id}, {Kind: nl.CTA_ZONE, At: &o.zone}})
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

// Sources returns the addresses that the receiver of connections between two addresses sees as their sender: those after NAT.
func (c *Conn) Sources(ctx context.Context, from, to netip.Addr) (all []netip.Addr, err error) {
	f := filter{family: rtnl.Family(to)}
	if to.Is4() {
		f.dst = to
	}
	_, err = c.list(ctx, f, func(o *connection) bool {
		if o.client == from && o.dst == to {
			all = append(all, o.replyDst)
		}
		return false
	})
	return all, err
}
