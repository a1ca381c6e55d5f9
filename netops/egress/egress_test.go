package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/internal/nstest"
	"github.com/cnibox/cnibox/test/nftlist"
)

// world is a node with a pod, a link to the holder of an egress address, and one to the outside. Both lead to the address of
// the outside.
type world struct {
	t                    *testing.T
	pod, holder, outside *nstest.Neighbour
	k                    *Kernel
	podAddr, podMAC      string
	out                  string // the address of the outside
	ends                 map[string]*net.UDPConn
	v6                   bool
}

func newWorld(t *testing.T, v6 bool) *world {
	t.Helper()
	w := &world{t: t, pod: nstest.NewNeighbour(t), holder: nstest.NewNeighbour(t), outside: nstest.NewNeighbour(t), v6: v6}
	a := [...]string{"10.244.1.1", "10.244.1.2", "10.244.2.0", "192.0.2.1", "192.0.2.2", "198.51.100.9"}
	bits, one := "/24", "/32"
	if v6 {
		a, bits, one = [...]string{"fd00:1::1", "fd00:1::2", "fd00:2::", "2001:db8:1::1", "2001:db8:1::2", "2001:db8:9::9"}, "/64", "/128"
	}
	w.podAddr, w.out = a[1], a[5]
	for name, ns := range map[string]*nstest.Neighbour{"pod0": w.pod, "hold0": w.holder, "out0": w.outside} {
		nstest.IP(t, fmt.Sprintf("link add %s type veth peer name eth0 netns %d", name, ns.PID))
		nstest.IP(t, "link set "+name+" up")
		t.Cleanup(func() { nstest.TryIP("link del " + name) })
		ns.IP(t, "link set eth0 up")
		ns.IP(t, "link set lo up")
	}
	nodad := ""
	if v6 {
		nodad = " nodad"
	}
	nstest.IP(t, "addr add "+a[0]+bits+" dev pod0"+nodad)
	nstest.IP(t, "addr add "+a[3]+bits+" dev out0"+nodad)
	w.pod.IP(t, "addr add "+a[1]+bits+" dev eth0"+nodad)
	w.pod.IP(t, "route add default via "+a[0])
	w.holder.IP(t, "addr add "+a[2]+one+" dev eth0"+nodad)
	w.holder.IP(t, "addr add "+w.out+one+" dev lo"+nodad)
	if !v6 {
		w.holder.IP(t, "route add 10.244.1.0/24 dev eth0")
		nstest.IP(t, "addr add 10.244.9.1/32 dev hold0")
	} else {
		w.holder.IP(t, "route add fd00:1::/64 dev eth0")
		nstest.IP(t, "addr add fd00:9::1/128 dev hold0 nodad")
		nstest.IP(t, "addr add fe80::1/64 dev hold0 nodad")
		w.holder.IP(t, "addr add fe80::2/64 dev eth0 nodad")
	}
	w.outside.IP(t, "addr add "+a[4]+bits+" dev eth0"+nodad)
	w.outside.IP(t, "addr add "+w.out+one+" dev lo"+nodad)
	w.outside.IP(t, "route add default via "+a[3])
	nstest.IP(t, "route add "+w.out+one+" via "+a[4])
	t.Cleanup(func() { nstest.TryIP("route del " + w.out + one) })
	nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	t.Cleanup(func() {
		nstest.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
	})
	for _, n := range []*nstest.Neighbour{w.pod} {
		n.In(t, func() error {
			l, err := net.InterfaceByName("eth0")
			if err == nil {
				w.podMAC = l.HardwareAddr.String()
			}
			return err
		})
	}
	// What masquerades pods in a cluster.
	nstest.Run(t, "nft", "add table inet masq")
	t.Cleanup(func() { nstest.Run(t, "nft", "delete table inet masq") })
	nstest.Run(t, "nft", "add chain inet masq c { type nat hook postrouting priority 100; }")
	nstest.Run(t, "nft", "add rule inet masq c iifname pod0 masquerade")
	var err error
	w.k, err = Open(netops.New(netops.Options{}))
	must(t, err)
	t.Cleanup(func() {
		must(t, w.k.Remove(context.Background()))
		must(t, w.k.Close())
		if text := nstest.Run(t, "ip", "rule") + nstest.Run(t, "ip", "-6", "rule") + nstest.Run(t, "nft", "list tables"); strings.Contains(text, "fwmark") || strings.Contains(text, "egress") {
			t.Errorf("left: %s", text)
		}
	})
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) spec() Spec {
	l, err := net.InterfaceByName("hold0")
	must(w.t, err)
	s := Spec{Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Arrivals: []string{"hold0"}}
	a := Address{Addr: netip.MustParseAddr("203.0.113.7"), Index: 1, Via: netip.MustParseAddr("10.244.2.0"), Link: l.Index}
	if w.v6 {
		s.Networks[0], a.Addr, a.Via = netip.MustParsePrefix("fd00::/16"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("fd00:2::")
	}
	s.Addresses = []Address{a}
	s.Pods = []Pod{{Device: "pod0", MAC: w.podMAC, Addr: netip.MustParseAddr(w.podAddr), Index: 1}}
	return s
}

// seen returns where a packet of the pod to the outside arrives, and with which source: "holder 10.244.1.2", or "" if it arrives nowhere.
func (w *world) seen() string {
	w.t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(w.out), 7777).String()
	if w.ends == nil {
		w.ends = map[string]*net.UDPConn{"holder": nstest.UDP(w.t, w.holder, to), "outside": nstest.UDP(w.t, w.outside, to)}
	}
	w.pod.In(w.t, func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	// What is forwarded on this machine has arrived when the sender's call returns, or soon after that.
	for range 20 {
		for name, end := range w.ends {
			must(w.t, end.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			if _, from, err := end.ReadFromUDPAddrPort(make([]byte, 9)); err == nil {
				return name + " " + from.Addr().Unmap().String()
			}
		}
	}
	return ""
}

func (w *world) expect(what, want string) {
	w.t.Helper()
	have := w.seen()
	for n := 0; have == "" && want != "" && n < 10; n++ { // IPv6 begins to use an address in the background
		have = w.seen()
	}
	if have != want {
		w.t.Errorf("%s: %q, want %q\n%s%s", what, have, want, nstest.Run(w.t, "nft", "list ruleset"), nstest.Run(w.t, "ip", "rule"))
	}
}

// TestAway: on the pod's node its packets go to the holder with the pod's address, whatever masquerades others. Nothing leaves by another way
// when the rule, the route or the holder is gone.
func TestAway(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint(v6), func(t *testing.T) {
			w := newWorld(t, v6)
			own := map[bool]string{false: "192.0.2.1", true: "2001:db8:1::1"}[v6]
			w.expect("without an egress address", "outside "+own)
			s := w.spec()
			must(t, w.k.Apply(t.Context(), s))
			w.expect("with one", "holder "+w.podAddr)
			// Replies of a connection from outside go back to where it came from.
			if have := w.fromOutside(); have != "x" {
				t.Errorf("a connection from outside is answered with %q", have)
			}
			ip := map[bool]string{false: "-4", true: "-6"}[v6]
			nstest.IP(t, ip+" rule del priority 142")
			w.expect("the rule is deleted", "")
			must(t, w.k.Apply(t.Context(), s))
			w.expect("the rule is back", "holder "+w.podAddr)
			nstest.IP(t, ip+" route del default metric 1 table "+fmt.Sprint(firstTable+1))
			w.expect("the route is deleted", "")
			must(t, w.k.Apply(t.Context(), s))
			w.expect("the route is back", "holder "+w.podAddr)
			s.Nodes = []netip.Addr{netip.MustParseAddr(w.out)}
			must(t, w.k.Apply(t.Context(), s))
			w.expect("a node's address", "outside "+own)
			s.Nodes, s.Near = nil, []netip.Prefix{netip.MustParsePrefix(w.out + map[bool]string{false: "/32", true: "/128"}[v6])}
			must(t, w.k.Apply(t.Context(), s))
			w.expect("a near network", "outside "+own)
			s.Near, s.Addresses[0].Via = nil, netip.Addr{}
			must(t, w.k.Apply(t.Context(), s))
			w.expect("no holder", "")
			s.Pods[0].Index = 0
			must(t, w.k.Apply(t.Context(), s))
			w.expect("refused", "")
			s.Pods = nil
			must(t, w.k.Apply(t.Context(), s))
			w.expect("not the pod's any more", "outside "+own)
		})
	}
}

// fromOutside sends a packet from the outside's own address to a port of the pod, and returns the answer.
func (w *world) fromOutside() string {
	w.t.Helper()
	end := nstest.UDP(w.t, w.pod, netip.AddrPortFrom(netip.MustParseAddr(w.podAddr), 8888).String())
	go func() {
		b := make([]byte, 9)
		_ = end.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, from, err := end.ReadFromUDPAddrPort(b); err == nil {
			_, _ = end.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	var have string
	w.outside.In(w.t, func() error {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(w.out)}, &net.UDPAddr{IP: net.ParseIP(w.podAddr), Port: 8888})
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		b := make([]byte, 9)
		if _, err := c.Write([]byte("x")); err == nil {
			n, _ := c.Read(b)
			have = string(b[:n])
		}
		return nil
	})
	return have
}

// TestHeld: the holder translates its own pod's packets to the address, as long as the kernel has it.
func TestHeld(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint(v6), func(t *testing.T) {
			w := newWorld(t, v6)
			s := w.spec()
			a := s.Addresses[0].Addr
			s.Addresses[0] = Address{Addr: a, Index: 1, Held: true}
			must(t, w.k.Apply(t.Context(), s))
			w.expect("before the node has the address", "")
			nstest.IP(t, "route add "+netip.PrefixFrom(a, a.BitLen()).String()+" dev out0")
			h, err := w.k.Find(t.Context(), a)
			nstest.IP(t, "route del "+netip.PrefixFrom(a, a.BitLen()).String()+" dev out0")
			must(t, err)
			if h.Link != "out0" || h.Own {
				t.Fatalf("%+v", h)
			}
			must(t, w.k.Hold(t.Context(), h, a, 100*time.Second))
			must(t, w.k.Hold(t.Context(), h, a, 200*time.Second))
			must(t, h.Announce(a))
			w.expect("with the address", "outside "+a.String())
			if again, err := w.k.Find(t.Context(), a); err != nil || again.Link != "out0" || again.Own {
				t.Errorf("%+v %v", again, err)
			}
			must(t, w.k.Release(t.Context(), h, a))
			must(t, w.k.Release(t.Context(), h, a))
			own := netip.MustParseAddr(map[bool]string{false: "192.0.2.1", true: "2001:db8:1::1"}[v6])
			if h, err := w.k.Find(t.Context(), own); err != nil || !h.Own {
				t.Errorf("the node's own address: %+v %v", h, err)
			}
			w.expect("without the address", "")
			must(t, w.k.Forget(t.Context(), map[netip.Addr]netip.Addr{netip.MustParseAddr(w.podAddr): {}}, func(netip.Addr) bool { return false }))
			s.Pods = nil
			must(t, w.k.Apply(t.Context(), s))
			w.expect("after its end", "outside "+map[bool]string{false: "192.0.2.1", true: "2001:db8:1::1"}[v6])
		})
	}
}

// TestRemote: the holder translates packets of other nodes' pods that it knows. It drops those of unknown pods, which it would forward with its own
// address. What it was asked for from outside stays as it is.
func TestRemote(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint(v6), func(t *testing.T) {
			w := newWorld(t, v6)
			remote, far, via, one := "10.244.2.9", "192.0.2.2", "10.244.9.1", "/32"
			if v6 {
				remote, far, via, one = "fd00:2::9", "2001:db8:1::2", "fd00:9::1", "/128"
			}
			w.holder.IP(t, "addr add "+remote+one+" dev lo"+map[bool]string{true: " nodad"}[v6])
			w.holder.IP(t, "route add "+far+one+" via "+via+" dev eth0 onlink")
			nstest.IP(t, "route add "+remote+one+" dev hold0")
			nstest.Run(t, "nft", "add rule inet masq c iifname hold0 masquerade")
			end := nstest.UDP(t, w.outside, netip.AddrPortFrom(netip.MustParseAddr(far), 0).String())
			s := w.spec()
			a := s.Addresses[0].Addr
			s.Pods, s.Addresses[0] = nil, Address{Addr: a, Index: 1, Held: true}
			nodad := map[bool]string{true: " nodad"}[v6]
			nstest.IP(t, "addr add "+netip.PrefixFrom(a, a.BitLen()).String()+" dev out0"+nodad)
			nstest.UDP(t, nil, netip.AddrPortFrom(a, 0).String()) // it waits until the address is used
			s.Remote = map[netip.Addr]int{netip.MustParseAddr(remote): 1}
			must(t, w.k.Apply(t.Context(), s))
			if have := nstest.SeenSource(t, w.holder, remote, end); have != a.String() {
				t.Errorf("seen as %s", have)
			}
			s.Remote = nil
			must(t, w.k.Apply(t.Context(), s))
			w.holder.In(t, func() error {
				c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(remote)}, net.UDPAddrFromAddrPort(end.LocalAddr().(*net.UDPAddr).AddrPort()))
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write([]byte("x"))
				return err
			})
			must(t, end.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			if _, from, err := end.ReadFromUDPAddrPort(make([]byte, 9)); err == nil {
				t.Errorf("an unknown pod is seen as %s", from)
			}
			if counted := nstest.Run(t, "nft", "list chain inet cnibox_egress stray"); !strings.Contains(counted, "packets 1 ") {
				t.Errorf("it was not dropped: %s", counted)
			}
		})
	}
}

// TestStrict: strict reverse path filtering is relaxed on tunnels, and only there.
func TestStrict(t *testing.T) {
	w := newWorld(t, false)
	for _, all := range []string{"0", "1", "2"} {
		nstest.Run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter="+all, "net.ipv4.conf.hold0.rp_filter=0", "net.ipv4.conf.out0.rp_filter=0")
		s := w.spec()
		s.Tunnels = []string{"hold0"}
		must(t, w.k.Apply(t.Context(), s))
		want := "0\n0\n"
		if all == "1" {
			want = "2\n0\n"
		}
		if have := nstest.Run(t, "sysctl", "-n", "net.ipv4.conf.hold0.rp_filter", "net.ipv4.conf.out0.rp_filter"); have != want {
			t.Errorf("all=%s: %q", all, have)
		}
	}
	nstest.Run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0")
}

// TestForeign: another program's flush is noticed, elements of pods change without the rules, and a MAC of another pod gets nothing.
func TestForeign(t *testing.T) {
	w := newWorld(t, false)
	s := w.spec()
	must(t, w.k.Apply(t.Context(), s))
	handle := func() string { return nstest.Run(t, "nft", "-a", "list chain inet cnibox_egress prerouting") }
	before := handle()
	s.Pods[0].MAC = "02:00:00:00:00:99"
	must(t, w.k.Apply(t.Context(), s))
	if after := handle(); after != before {
		t.Errorf("the rules were made again:\n%s\n%s", before, after)
	}
	w.expect("another MAC", "outside 192.0.2.1")
	s.Pods[0].MAC = w.podMAC
	must(t, w.k.Apply(t.Context(), s))
	w.expect("the pod's MAC", "holder "+w.podAddr)
	nstest.Run(t, "nft", "flush ruleset")
	<-w.k.Changes()
	must(t, w.k.Apply(t.Context(), s))
	w.expect("after a flush", "holder "+w.podAddr)
	nstest.Run(t, "nft", "add table inet masq") // the test's end deletes it
}

// TestListed: each version of nft lists the table, and loads what it listed.
func TestListed(t *testing.T) {
	programs := nftlist.Find(t)
	w := newWorld(t, false)
	s := w.spec()
	s.Tunnels = []string{"hold0"}
	s.Nodes, s.Near = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, []netip.Prefix{netip.MustParsePrefix("192.0.2.128/25")}
	six := Address{Addr: netip.MustParseAddr("2001:db8::7"), Index: 2, Via: netip.MustParseAddr("fd00:2::"), Link: s.Addresses[0].Link}
	held4, held6 := Address{Addr: netip.MustParseAddr("203.0.113.8"), Index: 3, Held: true}, Address{Addr: netip.MustParseAddr("2001:db8::8"), Index: 4, Held: true}
	s.Addresses = append(s.Addresses, six, held4, held6, Address{Addr: netip.MustParseAddr("203.0.113.9"), Index: 5})
	s.Pods = append(s.Pods, Pod{Device: "pod0", MAC: w.podMAC, Addr: netip.MustParseAddr("fd00:1::2")})
	s.Remote = map[netip.Addr]int{netip.MustParseAddr("10.244.2.9"): 3, netip.MustParseAddr("fd00:2::9"): 4}
	nstest.IP(t, "addr add fd00:9::1/128 dev hold0 nodad")
	must(t, w.k.Apply(t.Context(), s))
	must(t, programs.Check())
	must(t, programs.Reload(func() error { return nil }))
	must(t, w.k.Apply(t.Context(), s))
	w.expect("after a reload", "holder "+w.podAddr)
}
