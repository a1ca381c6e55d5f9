package netops_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/await"
)

// flowsNet makes a client namespace behind the host's veth fc0. No rule makes the kernel
// track connections yet.
func flowsNet(t *testing.T) *netopstest.NS {
	t.Helper()
	client := netopstest.New(t)
	ip := func(args string) {
		t.Helper()
		run(t, append([]string{"ip"}, strings.Fields(args)...)...)
	}
	ip("link add fc0 type veth peer name eth0")
	t.Cleanup(func() { ip("link del fc0") })
	run(t, "ip", "link", "set", "eth0", "netns", client.Path())
	ip("addr add 198.51.100.1/24 dev fc0")
	ip("addr add 2001:db8:5::1/64 dev fc0 nodad")
	ip("link set fc0 up")
	for _, args := range []string{"addr add 198.51.100.2/24 dev eth0", "addr add 2001:db8:5::2/64 dev eth0 nodad", "link set eth0 up"} {
		run(t, append([]string{"nsenter", "--net=" + client.Path(), "ip"}, strings.Fields(args)...)...)
	}
	return client
}

// listen opens a UDP socket in the calling thread's namespace.
func listen(t *testing.T, local netip.AddrPort) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(await.Deadline()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// heardBy sends a datagram and returns the name of the receiver that gets it.
func heardBy(t *testing.T, from *net.UDPConn, to netip.AddrPort, receivers map[string]*net.UDPConn) string {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
	heard := make(chan string)
	for name, r := range receivers {
		go func() {
			if _, _, err := r.ReadFromUDPAddrPort(make([]byte, 9)); err != nil {
				name = ""
			}
			heard <- name
		}()
	}
	first := <-heard
	for _, r := range receivers { // end the read of the other receiver
		if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	second := <-heard
	for _, r := range receivers {
		if err := r.SetReadDeadline(await.Deadline()); err != nil {
			t.Fatal(err)
		}
	}
	return first + second
}

// TestFlowsFollowTheRules keeps one UDP connection while a port mapping is added and
// deleted. Without netops.Flows the packets would still go to the receiver of the first
// packet.
func TestFlowsFollowTheRules(t *testing.T) {
	for _, v := range []struct{ name, client, node, zone string }{
		{"IPv4", "198.51.100.2", "198.51.100.1", ""},
		{"IPv6", "2001:db8:5::2", "2001:db8:5::1", ""},
		{"zone", "198.51.100.2", "198.51.100.1", "ct zone set 5"},
	} {
		t.Run(v.name, func(t *testing.T) {
			client := flowsNet(t)
			run(t, "nft", "add table inet flows; add chain inet flows raw { type filter hook prerouting priority raw; };"+
				"add chain inet flows track { type filter hook prerouting priority mangle; }; add rule inet flows track ct state invalid drop;"+
				"add chain inet flows pre { type nat hook prerouting priority dstnat; }")
			t.Cleanup(func() { run(t, "nft", "delete", "table", "inet", "flows") })
			if v.zone != "" {
				run(t, "nft", "add rule inet flows raw "+v.zone)
			}
			node := netip.MustParseAddr(v.node)
			at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(node, port) }
			receivers := map[string]*net.UDPConn{"node": listen(t, at(7000)), "container": listen(t, at(7001))}
			var sender *net.UDPConn
			client.Do(t, func() error {
				sender = listen(t, netip.AddrPortFrom(netip.MustParseAddr(v.client), 0))
				return nil
			})
			want := func(what, receiver string) {
				t.Helper()
				if got := heardBy(t, sender, at(7000), receivers); got != receiver {
					t.Errorf("%s: the %s hears it, want the %s", what, got, receiver)
				}
			}
			ctx := context.Background()
			n := newNet(t, nil)
			plan, err := n.Plan(ctx, netops.Spec{Objects: []netops.Object{&netops.Flows{In: netops.Host, Proto: "udp", Port: 7000}}}, nil)
			if err != nil || len(plan.Changes) != 1 {
				t.Fatalf("plan: %v, %v", plan.Changes, err)
			}
			want("before", "node")
			run(t, "nft", "add rule inet flows pre udp dport 7000 redirect to :7001")
			want("mapped, not flushed", "node")
			if err := n.Apply(ctx, plan, nil); err != nil {
				t.Fatal(err)
			}
			want("mapped", "container")
			run(t, "nft", "flush chain inet flows pre")
			want("unmapped, not flushed", "container")
			for range 2 {
				if err := n.Undo(ctx, plan.Changes, nil); err != nil {
					t.Fatal(err)
				}
			}
			want("unmapped", "node")
		})
	}
}

// track makes the kernel track a connection. If answers differs from dst, the connection
// is one that was mapped to answers.
func track(proto uint8, src, dst netip.AddrPort, answers netip.Addr) error {
	family := netlink.InetFamily(unix.AF_INET)
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	flow := &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 600,
		Forward: netlink.IPTuple{Protocol: proto, SrcIP: src.Addr().AsSlice(), SrcPort: src.Port(), DstIP: dst.Addr().AsSlice(), DstPort: dst.Port()},
		Reverse: netlink.IPTuple{Protocol: proto, SrcIP: answers.AsSlice(), SrcPort: dst.Port(), DstIP: src.Addr().AsSlice(), DstPort: src.Port()},
	}
	if proto == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: nlTCPEstablished}
	}
	return netlink.ConntrackCreate(netlink.ConntrackTable, family, flow)
}

// nlTCPEstablished is TCP_CONNTRACK_ESTABLISHED.
const nlTCPEstablished = 3

// tracked lists the tracked connections of a namespace.
func tracked(t testing.TB, box *netopstest.NS) (all []string) {
	t.Helper()
	box.Do(t, func() (err error) {
		all, err = trackedHere()
		return err
	})
	return all
}

// trackedHere lists the tracked connections of the calling thread's namespace.
func trackedHere() (all []string, err error) {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			port := f.Forward.DstPort
			if f.Forward.Protocol == unix.IPPROTO_SCTP {
				port = 53 // the library does not read SCTP ports
			}
			all = append(all, fmt.Sprintf("%d %s %d %s", f.Forward.Protocol, f.Forward.DstIP, port, f.Reverse.SrcIP))
		}
	}
	slices.Sort(all)
	return all, nil
}

func TestFlowsSelect(t *testing.T) {
	addr := netip.MustParseAddr
	const udp4, udp6 = "17 192.0.2.1 53 10.1.0.2", "17 2001:db8::1 53 fd01::2"
	all := []string{
		udp4, udp6, "17 192.0.2.1 54 10.1.0.2", "17 192.0.2.1 153 10.1.0.2", "17 192.0.2.9 53 10.1.0.2",
		"17 192.0.2.1 53 10.1.0.3", "17 2001:db8::9 53 fd01::2", "6 192.0.2.1 53 10.1.0.2", "132 192.0.2.1 53 10.1.0.2",
	}
	slices.Sort(all)
	one := func(f netops.Flows) []*netops.Flows { f.In = netops.Container; return []*netops.Flows{&f} }
	for _, v := range []struct {
		name  string
		flows []*netops.Flows
		gone  []string
	}{
		{"port", one(netops.Flows{Proto: "udp", Port: 53}), []string{udp4, udp6, "17 192.0.2.9 53 10.1.0.2", "17 192.0.2.1 53 10.1.0.3", "17 2001:db8::9 53 fd01::2"}},
		{"address", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("192.0.2.1")}), []string{udp4, "17 192.0.2.1 53 10.1.0.3"}},
		{"address6", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("2001:db8::1")}), []string{udp6}},
		{"any4", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("0.0.0.0")}), []string{udp4, "17 192.0.2.9 53 10.1.0.2", "17 192.0.2.1 53 10.1.0.3"}},
		{"any6", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("::")}), []string{udp6, "17 2001:db8::9 53 fd01::2"}},
		{"any4 of one", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("0.0.0.0"), ReplySrc: addr("10.1.0.3")}), []string{"17 192.0.2.1 53 10.1.0.3"}},
		{"answers", one(netops.Flows{Proto: "udp", Port: 53, ReplySrc: addr("10.1.0.2")}), []string{udp4, "17 192.0.2.9 53 10.1.0.2"}},
		{"answers6", one(netops.Flows{Proto: "udp", Port: 53, ReplySrc: addr("fd01::2")}), []string{udp6, "17 2001:db8::9 53 fd01::2"}},
		{"both", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("192.0.2.1"), ReplySrc: addr("10.1.0.2")}), []string{udp4}},
		{"range", one(netops.Flows{Proto: "udp", Port: 54, End: 152}), []string{"17 192.0.2.1 54 10.1.0.2"}},
		{"range of one", one(netops.Flows{Proto: "udp", Port: 153, End: 153}), []string{"17 192.0.2.1 153 10.1.0.2"}},
		{"tcp", one(netops.Flows{Proto: "tcp", Port: 53}), []string{"6 192.0.2.1 53 10.1.0.2"}},
		{"sctp", one(netops.Flows{Proto: "sctp", Port: 53}), []string{"132 192.0.2.1 53 10.1.0.2"}},
		{"none", one(netops.Flows{Proto: "udp", Port: 9}), nil},
		{"local", one(netops.Flows{Proto: "udp", Port: 53, Local: true}), []string{"17 192.0.2.9 53 10.1.0.2", udp6}},
		{"local4", one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("0.0.0.0"), Local: true}), []string{"17 192.0.2.9 53 10.1.0.2"}},
		{
			"several ports and families",
			append(one(netops.Flows{Proto: "udp", Port: 153}), &netops.Flows{In: netops.Container, Proto: "udp", Port: 53, Dst: addr("2001:db8::1")}),
			[]string{"17 192.0.2.1 153 10.1.0.2", udp6},
		},
		{
			"several addresses",
			append(one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("192.0.2.9")}), one(netops.Flows{Proto: "udp", Port: 53, Dst: addr("192.0.2.1"), ReplySrc: addr("10.1.0.3")})...),
			[]string{"17 192.0.2.9 53 10.1.0.2", "17 192.0.2.1 53 10.1.0.3"},
		},
		{
			"several protocols",
			append(one(netops.Flows{Proto: "tcp", Port: 53}), one(netops.Flows{Proto: "sctp", Port: 50, End: 60})...),
			[]string{"6 192.0.2.1 53 10.1.0.2", "132 192.0.2.1 53 10.1.0.2"},
		},
	} {
		t.Run(v.name, func(t *testing.T) {
			box := netopstest.New(t)
			box.Do(t, func() error {
				run(t, "ip", "addr", "add", "192.0.2.9/32", "dev", "lo")
				run(t, "ip", "addr", "add", "2001:db8::1/128", "dev", "lo")
				for i, line := range all {
					var proto uint8
					var port uint16
					var dst, answers string
					if _, err := fmt.Sscan(line, &proto, &dst, &port, &answers); err != nil {
						return err
					}
					client := addr("198.51.100.7")
					if addr(dst).Is6() {
						client = addr("2001:db8:5::7")
					}
					err := track(proto, netip.AddrPortFrom(client, 30000+uint16(i)), netip.AddrPortFrom(addr(dst), port), addr(answers))
					if err != nil {
						return fmt.Errorf("track %s: %w", line, err)
					}
				}
				return nil
			})
			ctx := context.Background()
			n := newNet(t, nil)
			ns, err := n.OpenNamespace(box.Path())
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			var spec netops.Spec
			for _, f := range v.flows {
				spec.Add(f)
			}
			if err := n.Ensure(ctx, spec, ns); err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(v.gone, s) })
			if d := cmp.Diff(want, tracked(t, box)); d != "" {
				t.Errorf("left (-want +got):\n%s", d)
			}
		})
	}
}

// TestFlowsMany deletes more connections than fit in one write. The connections of another
// namespace, which the kernel keeps in the same table, must stay.
func TestFlowsMany(t *testing.T) {
	client, node := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("192.0.2.1")
	fill := func(box *netopstest.NS) {
		box.Do(t, func() error {
			for i := range uint16(301) {
				if err := track(unix.IPPROTO_UDP, netip.AddrPortFrom(client, 1000+i), netip.AddrPortFrom(node, 53), node); err != nil {
					return err
				}
			}
			return track(unix.IPPROTO_UDP, netip.AddrPortFrom(client, 1000), netip.AddrPortFrom(node, 54), node)
		})
	}
	box, other := netopstest.New(t), netopstest.New(t)
	fill(box)
	fill(other)
	n := newNet(t, nil)
	ns, err := n.OpenNamespace(box.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := n.Ensure(context.Background(), netops.Spec{Objects: []netops.Object{&netops.Flows{In: netops.Container, Proto: "udp", Port: 53}}}, ns); err != nil {
		t.Fatal(err)
	}
	if here, there := len(tracked(t, box)), len(tracked(t, other)); here != 1 || there != 302 {
		t.Errorf("%d connections left, and %d in another namespace, want 1 and %d", here, there, 302)
	}
}

// orders is a Probe that records the successful steps.
type orders struct{ lines []string }

func (o *orders) Before(netops.Step) error { return nil }
func (o *orders) After(st netops.Step) {
	o.lines = append(o.lines, string(st.Verb)+" "+st.Object.String())
}

// TestFlowsLast puts flows first in a Spec. They must be applied and undone last.
func TestFlowsLast(t *testing.T) {
	const label = "cnibox:flows"
	spec := netops.Spec{Objects: []netops.Object{
		&netops.Flows{In: netops.Host, Proto: "udp", Port: 53},
		&netops.Link{In: netops.Host, Name: "flows0", Kind: "bridge", Alias: label},
		&netops.Element{Set: "masq4", Key: []string{"flows0", "10.9.0.0/16"}, Label: label},
	}}
	ctx := context.Background()
	probe := &orders{}
	n := newNet(t, probe)
	plan, err := n.Plan(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.Apply(ctx, plan, nil), n.Undo(ctx, plan.Changes, nil)); err != nil {
		t.Fatal(err)
	}
	const flush = "del flows proto udp dport 53"
	if len(probe.lines) < 4 || probe.lines[len(plan.Changes)-1] != flush || probe.lines[len(probe.lines)-1] != flush {
		t.Errorf("made and undone:\n%s", strings.Join(probe.lines, "\n"))
	}
	probe.lines = nil
	plan.Changes = plan.Changes[:len(plan.Changes)-1]
	if err := n.Apply(ctx, plan, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.Remove(ctx, spec, nil); err != nil {
		t.Fatal(err)
	}
	if probe.lines[len(probe.lines)-1] != flush {
		t.Errorf("removed:\n%s", strings.Join(probe.lines, "\n"))
	}
}

func TestFlowsValidate(t *testing.T) {
	n := newNet(t, nil)
	for _, f := range []netops.Flows{
		{Proto: "udp", Port: 1},
		{In: netops.Host, Proto: "icmp", Port: 1},
		{In: netops.Host, Proto: "udp"},
		{In: netops.Host, Proto: "udp", Port: 2, End: 1},
		{In: netops.Host, Proto: "udp", Port: 1, Dst: netip.MustParseAddr("::ffff:10.0.0.1")},
		{In: netops.Host, Proto: "udp", Port: 1, ReplySrc: netip.MustParseAddr("fe80::1%eth0")},
		{In: netops.Host, Proto: "udp", Port: 1, Dst: netip.MustParseAddr("10.0.0.1"), ReplySrc: netip.MustParseAddr("::1")},
	} {
		if _, err := n.Plan(context.Background(), netops.Spec{Objects: []netops.Object{&f}}, nil); !errors.Is(err, netops.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// BenchmarkFlows deletes the connections to a port while the host has 10,000 tracked
// connections. One connection matches each time.
func BenchmarkFlows(b *testing.B) {
	client, node := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("192.0.2.1")
	for i := range uint16(10_000) {
		if err := track(unix.IPPROTO_UDP, netip.AddrPortFrom(client, 10000+i), netip.AddrPortFrom(node, 54), node); err != nil {
			b.Fatal(err)
		}
	}
	defer func() { _ = netlink.ConntrackTableFlush(netlink.ConntrackTable) }()
	spec := netops.Spec{Objects: []netops.Object{&netops.Flows{In: netops.Host, Proto: "udp", Port: 53}}}
	for b.Loop() {
		b.StopTimer()
		if err := track(unix.IPPROTO_UDP, netip.AddrPortFrom(client, 1000), netip.AddrPortFrom(node, 53), node); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		n := netops.New(netops.Options{})
		if err := n.Ensure(context.Background(), spec, nil); err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}
