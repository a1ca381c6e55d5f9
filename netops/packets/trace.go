package packets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/reach"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
	"github.com/cnibox/cnibox/netops/internal/ruleset"
)

// Flow identifies the packets to trace.
type Flow = nft.Flow

// Trace records what nftables does with the packets of a flow in one namespace.
// It makes tables of its own, whose rules give no verdict, and removes them on
// Close. If the process is killed, the kernel removes them; before Linux 5.12 the
// next trace in the namespace does.
//
// The rules of iptables' nftables backend are seen, those of its legacy backend
// are not.
type Trace struct {
	flow   Flow
	nft    *nft.Client
	links  *rtnl.Conn
	events *nlconn.Listener
	// families has the families of the tables.
	families []byte
	marks    uint32
}

const (
	// maxTraced limits the messages of one trace.
	maxTraced = 10_000
	// traceBuffer is the size of the receive buffer. The messages of a probe wait there.
	traceBuffer = 4 << 20
)

// OpenTrace starts a trace in ns. The error wraps netops.ErrBusy if another trace is
// running there, and netops.ErrNotSupported if the kernel has no nftables.
func OpenTrace(ctx context.Context, ns *netops.Namespace, f Flow) (*Trace, error) {
	t := &Trace{flow: f, nft: nft.New(nil, nil)}
	err := ns.Run(func() error {
		_, err := t.nft.Conn()
		if err == nil {
			t.links, err = rtnl.Open()
		}
		if err == nil {
			t.events, err = nlconn.Listen(unix.NETLINK_NETFILTER, "nftables", []int{unix.NFNLGRP_NFTRACE})
		}
		return err
	})
	if err == nil {
		t.events.SetReceiveBuffer(traceBuffer)
	}
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_BRIDGE} {
		if err != nil {
			break
		}
		err = t.nft.MakeTraceTable(ctx, family, f)
		switch {
		case err == nil:
			t.families = append(t.families, family)
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			if family == unix.NFPROTO_BRIDGE {
				err = nil // the kernel has no nftables for bridges
			} else {
				err = fmt.Errorf("trace: %w: %w", netops.ErrNotSupported, err)
			}
		}
	}
	if err != nil {
		_ = t.Close(ctx) // it made nothing, or the error is reported already
		return nil, err
	}
	return t, nil
}

// HasStrayTrace reports whether a killed trace left its table in the host's namespace.
// The next trace removes it.
func HasStrayTrace(ctx context.Context) (bool, error) {
	c := nft.New(nil, nil)
	stray, err := c.HasStrayTrace(ctx, unix.NFPROTO_INET)
	return stray, errors.Join(err, c.Close())
}

// Close removes the tables, also if ctx has ended, and closes the sockets.
func (t *Trace) Close(ctx context.Context) error {
	var errs []error
	for _, family := range t.families {
		errs = append(errs, t.nft.DropTraceTable(context.WithoutCancel(ctx), family))
	}
	errs = append(errs, t.nft.Close())
	if t.events != nil {
		errs = append(errs, t.events.Close())
	}
	if t.links != nil {
		errs = append(errs, t.links.Close())
	}
	return errors.Join(errs...)
}

// Event is what happened to a packet of the flow in a chain.
type Event struct {
	// Proto is "tcp", "udp" or "icmp". Reply reports whether the packet goes to the flow's
	// first sender.
	Proto string
	Reply bool
	// From and To are the packet's addresses there.
	From, To netip.Addr
	// Hook is "prerouting", "bridge forward" and so on if the packet reached it, and
	// "" for a decision about the packet.
	Hook string
	// In and Out are the names of the devices, or "".
	In, Out string
	// Chain is "ip filter FORWARD". Handle identifies the rule that decided; it is 0
	// for the chain's policy. Comment is the rule's. Verdict is "drop", "accept", …
	Chain   string
	Handle  uint64
	Comment string
	Verdict string
}

// String names the rule or the policy that decided.
func (e *Event) String() string {
	if e.Handle == 0 {
		return e.Chain + ": policy " + e.Verdict
	}
	text := fmt.Sprintf("%s handle %d: %s", e.Chain, e.Handle, e.Verdict)
	if e.Comment != "" {
		text += fmt.Sprintf(" (%s)", e.Comment)
	}
	return text
}

// Exception returns a command that inserts a rule before the one that decided, which accepts packets of these addresses. The rules of
// cnibox follow policies, so of these it lists the chain.
func (e *Event) Exception() string {
	if table := strings.Fields(e.Chain); len(table) == 3 && strings.HasPrefix(table[1], ruleset.TableName) {
		return "nft --handle list chain " + e.Chain
	}
	command, family := "nft insert rule "+e.Chain, "ip"
	if e.Handle != 0 {
		command += fmt.Sprintf(" handle %d", e.Handle)
	}
	if e.To.Is6() {
		family = "ip6"
	}
	return fmt.Sprintf("%s %s saddr %s %[2]s daddr %[4]s accept", command, family, e.From, e.To)
}

// Read returns what happened since the last Read, in order.
func (t *Trace) Read(ctx context.Context) ([]Event, error) {
	t.marks++
	if err := t.events.Mark(t.marks); err != nil {
		return nil, nlconn.Explain(err, "read trace")
	}
	var all []Event
	var damaged error
	packets := map[uint32]Event{}
	for marked, losses := false, 0; !marked && losses < 2; { // after a second loss the queue is empty
		lost, err := t.events.Next(ctx, func(h unix.NlMsghdr, data []byte) bool {
			if h.Type == unix.NLMSG_ERROR && h.Seq == t.marks {
				marked = true
			}
			if !nft.IsTrace(h.Type) || len(all) == maxTraced {
				return false
			}
			m, err := nft.DecodeTraced(data)
			damaged = errors.Join(damaged, err)
			if e, ok := t.event(ctx, m, packets); ok {
				all = append(all, e)
			}
			return false
		})
		if err != nil {
			return nil, nlconn.Explain(err, "read trace")
		}
		if lost {
			losses++
		}
	}
	return all, damaged
}

// event converts one message. ok is false for a message that is neither about a
// hook nor about a decision. packets has what is known of each packet: only the
// first message of a chain on a hook has the headers and the devices.
func (t *Trace) event(ctx context.Context, m nft.Traced, packets map[uint32]Event) (e Event, ok bool) {
	e = packets[m.Packet]
	if t.classify(&e, m.Network, m.Transport) {
		e.In, e.Out = t.linkName(ctx, m.In), t.linkName(ctx, m.Out)
		packets[m.Packet] = e
	}
	if !e.From.IsValid() {
		return e, false
	}
	if m.Table.Name == nft.TraceTable {
		e.Hook = m.Chain
		if m.Table.Family == unix.NFPROTO_BRIDGE {
			e.Hook = "bridge " + m.Chain
		}
		return e, m.Handle == 0 // each chain ends with its policy
	}
	word, _, _ := strings.Cut(m.Verdict, " ")
	switch word {
	case "continue", "jump", "goto", "return", "accept":
		if word != "accept" || m.Handle == 0 {
			return e, false
		}
	}
	e.Chain, e.Handle, e.Verdict = nft.Table{Family: m.Table.Family, Name: nlconn.Printable(m.Table.Name)}.String()+" "+nlconn.Printable(m.Chain), m.Handle, m.Verdict
	if m.Handle != 0 {
		if r, err := t.nft.Rule(ctx, m.Table, m.Chain, m.Handle); err == nil && r != nil {
			e.Comment = nlconn.Printable(r.Comment)
		}
	}
	return e, true
}

func (t *Trace) linkName(ctx context.Context, index int) string {
	if index == 0 {
		return ""
	}
	l, err := t.links.LinkByIndex(ctx, index)
	if err != nil {
		return fmt.Sprintf("device %d", index) // it was deleted meanwhile
	}
	return l.Name
}

// classify reads addresses, protocol and direction of a packet from the beginnings
// of its headers. It reports whether they are complete.
func (t *Trace) classify(e *Event, network, transport []byte) bool {
	if len(network) < 1 || len(transport) < 8 {
		return false
	}
	var proto byte
	switch {
	case network[0]>>4 == 4 && len(network) >= 20:
		proto, e.From, e.To = network[9], netip.AddrFrom4([4]byte(network[12:])), netip.AddrFrom4([4]byte(network[16:]))
	case network[0]>>4 == 6 && len(network) >= 40:
		proto, e.From, e.To = network[6], netip.AddrFrom16([16]byte(network[8:])), netip.AddrFrom16([16]byte(network[24:]))
	default:
		return false
	}
	e.Proto = "icmp"
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		e.Proto = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[proto]
		switch t.flow.ID { // NAT may have changed both ports
		case binary.BigEndian.Uint16(transport):
			e.Reply = false
		case binary.BigEndian.Uint16(transport[2:]):
			e.Reply = true
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		e.Reply = reach.IsEchoReply(proto, transport[0])
	default:
		return false
	}
	return true
}
