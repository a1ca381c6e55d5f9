package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// hop is the target of a route.
type hop = rtnl.Hop

// opKind is a kind of kernel object of a peer. The objects are made in the order
// of the kinds.
type opKind uint8

const (
	opNeigh opKind = iota
	opFDB
	opPeer
	opHop
	opRoute
)

// kernelOp makes or deletes one kernel object of a peer.
type kernelOp struct {
	kind opKind
	del  bool
	// peer is nil for an object that does not belong to a peer any more.
	peer *peerEntry
	// link, ip and mac belong to a neighbour or a forwarding entry.
	link int
	ip   netip.Addr
	mac  MAC
	// key and wg belong to a peer of WireGuard.
	key Key
	wg  *wgPeer
	// id is the number of a nexthop object, or of the nexthop object that a route
	// uses. It is 0 for a route with its own hop.
	id  uint32
	hop hop
	// dst, protocol and priority belong to a route. guard is set if it refuses packets.
	guard    bool
	dst      netip.Prefix
	protocol uint8
	priority int32
}

// request returns the message's type and flags.
func (op *kernelOp) request() (kind, flags uint16) {
	kinds := [...][2]uint16{
		opNeigh: {unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH},
		opFDB:   {unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH},
		opHop:   {unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP},
		opRoute: {unix.RTM_NEWROUTE, unix.RTM_DELROUTE},
	}[op.kind]
	switch {
	case op.del:
		return kinds[1], 0
	case op.guard:
		return kinds[0], unix.NLM_F_CREATE | unix.NLM_F_EXCL
	case op.kind == opPeer:
		return 0, 0 // the kernel chooses the type when it registers the family
	}
	return kinds[0], unix.NLM_F_CREATE | unix.NLM_F_REPLACE
}

// body appends the message without its netlink header. The deletion of a route names the
// protocol and the metric, so that it does not delete another program's route.
func (op *kernelOp) body(to []byte) []byte {
	switch op.kind {
	case opNeigh, opFDB:
		n := rtnl.Neigh{Family: rtnl.Family(op.ip), Link: op.link, State: unix.NUD_PERMANENT, IP: op.ip}
		if op.kind == opFDB {
			n.Family, n.Flags = unix.AF_BRIDGE, unix.NTF_SELF
		}
		if op.kind == opFDB || !op.del {
			n.MAC = op.mac[:]
		}
		return n.Append(to)
	case opPeer:
		return op.peerBody(to)
	case opHop:
		n := rtnl.Nexthop{ID: op.id}
		if !op.del {
			n.Protocol, n.Hop = Protocol, op.hop
		}
		return n.Append(to)
	}
	r := rtnl.Route{Dst: op.dst, Protocol: op.protocol, Priority: int(op.priority), Table: unix.RT_TABLE_MAIN, Kind: unix.RTN_UNICAST}
	switch {
	case op.del:
		r.Scope, r.Kind = unix.RT_SCOPE_NOWHERE, unix.RTN_UNSPEC // any
	case op.guard:
		r.Kind = unix.RTN_UNREACHABLE
	case op.id != 0:
		r.NexthopID = op.id
	default:
		r.Via, r.Link, r.OnLink = op.hop.Via, int(op.hop.Link), op.hop.OnLink
		if !r.Via.IsValid() {
			r.Scope = unix.RT_SCOPE_LINK
		}
	}
	return r.Append(to)
}

// writeTries limits how often requests are sent again because the kernel had no
// room for them.
const writeTries = 3

// errLinkGone means that a device was deleted or set down during a write.
var errLinkGone = errors.New("the device was deleted or set down meanwhile")

// opWriter sends ops, up to nlconn.MaxWrite in one write, and records the result
// of each.
type opWriter struct {
	*Kernel
	// conn is the socket for rtnetlink, or for WireGuard's peers.
	conn *nlconn.Conn
	ops  []kernelOp
	buf  []byte
	// err is an error of the socket or of the device. Nothing is sent after it.
	err error
}

// writer returns a writer of all ops except opPeer.
func (o *Kernel) writer() *opWriter { return &opWriter{Kernel: o, conn: o.conn.Conn} }

// add queues an op. It sends the queue if the queue is full. The next flush returns an error.
func (w *opWriter) add(ctx context.Context, op kernelOp) {
	w.ops = append(w.ops, op)
	if len(w.ops) >= nlconn.MaxWrite {
		_ = w.flush(ctx)
	}
}

// flush sends the queued ops. It returns the first error of the socket or of the device since the writer was made.
// The refusal of an op is recorded in its peer.
func (w *opWriter) flush(ctx context.Context) error {
	ops := w.ops
	defer func() { w.ops = w.ops[:0] }()
	for range writeTries {
		if w.err != nil || len(ops) == 0 {
			return w.err
		}
		var again []kernelOp
		w.err = w.net.Probed(func() string { return fmt.Sprintf("%s, %d requests", &ops[0], len(ops)) }, func() (err error) {
			again, err = w.send(ctx, ops)
			return err
		})
		ops = again
	}
	for i := range ops {
		w.recordRefusal(&ops[i], fmt.Errorf("%s: %w", &ops[i], nlconn.ErrBusy))
	}
	return w.err
}

// send sends ops in one write. It returns the ops for which the kernel had no
// room.
func (w *opWriter) send(ctx context.Context, ops []kernelOp) (again []kernelOp, err error) {
	w.buf = w.buf[:0]
	for i := range ops {
		kind, flags := ops[i].request()
		if ops[i].kind == opPeer {
			kind = w.wg.family
		}
		if i == len(ops)-1 {
			flags |= unix.NLM_F_ACK
		}
		b, start := w.conn.Begin(w.buf, kind, flags)
		w.buf = nlconn.Finish(ops[i].body(b), start)
	}
	refused, err := w.conn.Execute(ctx, w.buf, len(ops))
	if err != nil {
		return nil, nlconn.Explain(err, "write to the kernel")
	}
	for i := range ops {
		switch err := refused[i]; {
		case err == nil, ops[i].del && nlconn.IsAbsent(err):
			w.have.update(&ops[i])
			if w.before != nil && w.before.has(&ops[i]) != ops[i].del {
				w.countRepair(ops[i].kind.String(), ops[i].String)
			}
			w.writes++
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			again = append(again, ops[i])
		case ops[i].onDevice(w.device.Index) && (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN)):
			return nil, fmt.Errorf("%s: %w: %w", &ops[i], errLinkGone, err)
		default:
			w.recordRefusal(&ops[i], nlconn.Explain(err, ops[i].String()))
		}
	}
	return again, nil
}

// onDevice reports whether the op needs the tunnel device.
func (op *kernelOp) onDevice(index int) bool {
	return index != 0 && (op.kind <= opPeer || op.peer != nil && int(op.hop.Link) == index)
}

// recordRefusal records a refusal in the op's peer. If the op has no peer, it requests a
// sweep, which finds the object again.
func (o *Kernel) recordRefusal(op *kernelOp, err error) {
	if op.kind == opHop && !op.del {
		delete(o.have.ids, op.hop)
		delete(o.have.hops, op.id)
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		o.refused[errno]++
	}
	switch {
	case op.peer == nil:
		o.sweep = true
	case op.peer.refused == nil:
		op.peer.refused = err
	}
}

// String returns the op in a form like iproute2's.
func (op *kernelOp) String() string {
	verb := "add"
	if op.del {
		verb = "delete"
	}
	verb += " " + op.kind.String()
	switch op.kind {
	case opNeigh:
		return fmt.Sprintf("%s %s", verb, op.ip)
	case opFDB:
		return fmt.Sprintf("%s %s dst %s", verb, net.HardwareAddr(op.mac[:]), op.ip)
	case opPeer:
		return fmt.Sprintf("%s %s", verb, op.key)
	case opHop:
		return fmt.Sprintf("%s id %d", verb, op.id)
	}
	return fmt.Sprintf("%s %s", verb, op.dst)
}

// String returns the kind's name.
func (k opKind) String() string {
	return [...]string{"neighbour", "forwarding entry", "WireGuard peer", "nexthop", "route"}[k]
}
