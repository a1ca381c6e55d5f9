package netops

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// DeviceFilter is what may drop packets of a device outside of the packet filters: a program of XDP, a filter of tc, or the qdisc netem.
type DeviceFilter struct {
	Name string
	// IsAlways means that it drops every packet. Otherwise it is not known which.
	IsAlways bool
	// Limits is what a token bucket filter certainly does with packets of a link that is not that slow, or "".
	Limits string
	// Fix is a command that accepts the packets before it, or shows it.
	Fix string
}

// Values that programs and actions return, and attributes of filters (linux/bpf.h, linux/pkt_cls.h, linux/tc_act/tc_gact.h).
const (
	xdpDrop, xdpPass    = 1, 2
	actOK, actShot      = 0, 2
	actStolen           = 4
	bpfReturn, bpfExit  = 0x06, 0x95
	bpfMove, bpfMove32  = 0xb7, 0xb4
	bpfOps, bpfFlags    = 5, 8
	bpfID, bpfIsDirect  = 11, 1
	gactParms, gactVerb = 2, 8
)

// DeviceFilters returns what may drop packets on the links of ns, or of the host's namespace for a nil ns.
func (n *Net) DeviceFilters(ctx context.Context, ns *Namespace) (map[string][]DeviceFilter, error) {
	c, err := n.observed(ns).socket()
	if err != nil {
		return nil, err
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	all, names, mtus := map[string][]DeviceFilter{}, map[int32]string{}, map[int32]int{}
	for _, l := range links {
		names[int32(l.Index)], mtus[int32(l.Index)] = l.Name, l.MTU
		if l.XDP == 0 {
			continue
		}
		if value, known := programValue(l.XDP); !known || value != xdpPass {
			all[l.Name] = append(all[l.Name], DeviceFilter{Name: fmt.Sprintf("XDP program %d of %s", l.XDP, l.Name), IsAlways: known && value <= xdpDrop, Fix: "ip link show " + l.Name})
		}
	}
	read := func(kind uint16, header *nl.TcMsg, parse func(kind string, header, options []byte) error) error {
		_, err := nlconn.List(ctx, c.Conn, nlconn.Message{Kind: kind, Header: header}, func(b []byte) (none struct{}, _ bool, err error) {
			if len(b) < nl.SizeofTcMsg {
				return none, false, fmt.Errorf("message of %d bytes about tc: %w", len(b), unix.EBADMSG)
			}
			var name string
			var options []byte
			err = nlconn.ReadAttrs(b[nl.SizeofTcMsg:], []nlconn.Attr{{Kind: nl.TCA_KIND, At: &name}, {Kind: nl.TCA_OPTIONS, At: &options}})
			if err == nil {
				err = parse(name, b, options)
			}
			return none, false, err
		})
		return nlconn.Explain(err, "list filters of tc")
	}
	type hook struct {
		index  int32
		parent uint32
		name   string
	}
	var hooks []hook
	err = read(unix.RTM_GETQDISC, &nl.TcMsg{}, func(kind string, header, _ []byte) error {
		index := int32(binary.NativeEndian.Uint32(header[4:]))
		switch kind {
		case "netem":
			all[names[index]] = append(all[names[index]], DeviceFilter{Name: "qdisc netem of " + names[index], Fix: "tc qdisc show dev " + names[index]})
		case kindTBF:
			q, err := parseQdisc(header)
			if limits := q.limits(mtus[index]); err == nil && limits != "" {
				all[names[index]] = append(all[names[index]], DeviceFilter{Name: "qdisc tbf of " + names[index], Limits: limits, Fix: "tc qdisc del dev " + names[index] + " root"})
			}
			return err
		case kindClsact:
			hooks = append(hooks, hook{index, ingressFilters, "ingress"}, hook{index, egressFilters, "egress"})
		case kindIngress:
			hooks = append(hooks, hook{index, ingressFilters, "ingress"})
		}
		return nil
	})
	for _, h := range hooks {
		if err != nil {
			return nil, err
		}
		name, accepted := names[h.index], false
		err = read(unix.RTM_GETTFILTER, &nl.TcMsg{Ifindex: h.index, Parent: h.parent}, func(kind string, header, options []byte) error {
			if binary.NativeEndian.Uint32(header[8:]) == 0 { // it is about all filters of a preference
				return nil
			}
			verdict, err := filterVerdict(kind, options)
			if verdict >= mayDrop && !accepted {
				pref, fix := binary.NativeEndian.Uint32(header[16:])>>16, "tc filter show dev "+name+" "+h.name
				if pref > 1 { // the first filter that matches decides
					fix = "tc filter add dev " + name + " " + h.name + " pref 1 bpf da bytecode '1,6 0 0 0'"
				}
				all[name] = append(all[name], DeviceFilter{Name: fmt.Sprintf("tc filter of %s %s pref %d %s", name, h.name, pref, kind), IsAlways: verdict == drops, Fix: fix})
			}
			accepted = accepted || verdict == accepts
			return err
		})
	}
	return all, err
}

// slowRate is less than what people choose as the rate of a pod, in bytes a second.
const slowRate = 1e6 / 8

// limits describes a tbf of another program that drops packets which the link can carry, or that is slow, or returns "".
func (q *tcQdisc) limits(mtu int) string {
	const header = 14 // of Ethernet
	burst := int(float64(q.buffer) / ticksPerMicrosecond / 1e6 * float64(q.rate))
	switch {
	case q.handle == tbfHandle || q.kind != kindTBF || q.rate == 0:
		return ""
	case burst < mtu+header-1: // the kernel rounds
		return fmt.Sprintf("it drops packets of more than %d bytes", burst)
	case q.rate < slowRate:
		return "it passes " + rateText(q.rate) + " a second"
	}
	return ""
}

// What a filter of tc does with packets.
const (
	passes = iota // the next filter sees them
	accepts
	mayDrop
	drops
)

// filterVerdict returns what a filter does.
func filterVerdict(kind string, options []byte) (verdict int, err error) {
	if kind == "bpf" {
		var ops []byte
		var flags, id uint32
		err = nlconn.ReadAttrs(options, []nlconn.Attr{{Kind: bpfOps, At: &ops}, {Kind: bpfFlags, At: &flags}, {Kind: bpfID, At: &id}})
		if err != nil || flags&bpfIsDirect == 0 {
			return passes, err
		}
		value, known := programValue(id)
		if len(ops) == unix.SizeofSockFilter && binary.NativeEndian.Uint16(ops) == bpfReturn {
			value, known = binary.NativeEndian.Uint32(ops[4:]), true
		}
		switch {
		case !known:
			return mayDrop, nil
		case value == actOK:
			return accepts, nil
		case value == actShot, value == actStolen:
			return drops, nil
		}
		return passes, nil
	}
	actions, err := nlconn.Find(options, map[string]uint16{kindU32: nl.TCA_U32_ACT, "matchall": 2, "flower": 3, "basic": 3, "fw": 4}[kind])
	if err != nil {
		return passes, err
	}
	err = nlconn.EachAttr(actions, func(_ uint16, action []byte) error {
		var name string
		var settings []byte
		err := nlconn.ReadAttrs(action, []nlconn.Attr{{Kind: nl.TCA_ACT_KIND, At: &name}, {Kind: nl.TCA_ACT_OPTIONS, At: &settings}})
		if err != nil {
			return err
		}
		parms, err := nlconn.Find(settings, gactParms)
		switch isShot := name == "gact" && len(parms) >= gactVerb+4 && binary.NativeEndian.Uint32(parms[gactVerb:]) == actShot; {
		case isShot && kind == "matchall":
			verdict = drops
		case isShot, name == "police":
			verdict = max(verdict, mayDrop)
		}
		return err
	})
	return verdict, err
}

// programValue returns the value that a program of BPF returns for each packet, if its two instructions show it.
func programValue(id uint32) (value uint32, known bool) {
	const instruction = 8 // bytes
	fd, _, failed := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_GET_FD_BY_ID, uintptr(unsafe.Pointer(&[3]uint32{id})), unsafe.Sizeof([3]uint32{}))
	if failed != 0 {
		return 0, false // it is gone, or we may not read it
	}
	defer func() { _ = unix.Close(int(fd)) }() // it was only read
	var code [2 * instruction]byte
	info := struct { // struct bpf_prog_info begins so
		kind, id              uint32
		tag                   [8]byte
		jitedSize, xlatedSize uint32
		jitedCode             uint64
		xlatedCode            *byte
	}{xlatedSize: uint32(len(code)), xlatedCode: &code[0]}
	ask := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, failed = unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&ask)), unsafe.Sizeof(ask))
	known = failed == 0 && info.xlatedSize == uint32(len(code)) && (code[0] == bpfMove || code[0] == bpfMove32) && code[1]&0xf == 0 && code[instruction] == bpfExit
	return binary.NativeEndian.Uint32(code[4:]), known
}
