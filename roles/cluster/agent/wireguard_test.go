package agent_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/etcd/etcdtest"
	"github.com/cnibox/cnibox/test/await"
)

// wireguard returns the configuration of the examples.
func wireguard(t *testing.T) string {
	t.Helper()
	conf, err := os.ReadFile("../../../examples/kubernetes/net-conf-wireguard.json")
	must(t, err)
	return string(conf)
}

// payload is in every datagram of traffic. A frame that has it is not encrypted.
const payload = "are you there?"

// wire observes the frames of all nodes on the switch.
type wire struct {
	t  *testing.T
	mu sync.Mutex
	// plain counts frames between pods without a tunnel. readable counts frames with the payload of pods
	// in them, by the direction between two nodes. late counts those after the first encrypted
	// frame of the direction.
	plain, late int
	readable    map[[2]netip.Addr]int
	encrypted   map[[2]netip.Addr]int
}

func (w *world) observe() *wire {
	w.t.Helper()
	o := &wire{t: w.t, readable: map[[2]netip.Addr]int{}, encrypted: map[[2]netip.Addr]int{}}
	for i := range w.nodes {
		f := capture(w.t, fmt.Sprintf("port%d", i))
		raw, err := f.SyscallConn()
		must(w.t, err)
		must(w.t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) }))
		must(w.t, err)
		// A port shows the frames of its node as received ones. A frame to the node was counted at
		// another port already.
		var ended sync.WaitGroup
		ended.Go(func() {
			for b := make([]byte, 65536); ; {
				n, err := f.Read(b)
				if err != nil {
					return
				}
				o.count(b[:n])
			}
		})
		w.t.Cleanup(func() { f.Close(); ended.Wait() })
	}
	return o
}

// count evaluates an Ethernet frame.
func (o *wire) count(b []byte) {
	const eth, keepalive = 14, 32
	if len(b) < eth+20 || bytes.HasPrefix(b[6:], strangerMAC()) {
		return
	}
	var path [2]netip.Addr
	body, proto := b[eth+20:], b[eth+9]
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
		path = [2]netip.Addr{netip.AddrFrom4([4]byte(b[eth+12:])), netip.AddrFrom4([4]byte(b[eth+16:]))}
	case unix.ETH_P_IPV6:
		if len(b) < eth+40 {
			return
		}
		path = [2]netip.Addr{netip.AddrFrom16([16]byte(b[eth+8:])), netip.AddrFrom16([16]byte(b[eth+24:]))}
		body, proto = b[eth+40:], b[eth+6]
	default:
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pods := range []string{"10.244.0.0/16", "fd00:10:244::/48"} {
		if netip.MustParsePrefix(pods).Contains(path[1]) {
			o.plain++
		}
	}
	if bytes.Contains(body, []byte(payload)) {
		o.readable[path]++
		if o.encrypted[path] > 0 {
			o.late++
		}
	}
	// Type 4 is data. A packet without data is a keepalive, which needs no route to a pod.
	if port := binary.BigEndian.Uint16(body[2:]); proto == unix.IPPROTO_UDP && port/10 == 5182 && len(body) > 8+keepalive && body[8] == 4 {
		o.encrypted[path]++
	}
}

// reset forgets all frames, and returns how many were encrypted and readable.
func (o *wire) reset() (encrypted, readable int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.encrypted {
		encrypted += n
	}
	for _, n := range o.readable {
		readable += n
	}
	clear(o.encrypted)
	clear(o.readable)
	return encrypted, readable
}

// check fails if a frame was sent without a tunnel, or readable after an encrypted one.
func (o *wire) check(what string) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.plain != 0 || o.late != 0 {
		o.t.Errorf("%s: %d frames between pods without a tunnel, %d readable ones after encrypted ones", what, o.plain, o.late)
	}
	o.plain, o.late = 0, 0
}

// exchange sends a datagram from one pod to another every interval until end is called. end returns the
// numbers of datagrams that were sent and answered.
func (w *world) exchange(from, to *pod, v6 bool, interval time.Duration) (end func() (sent, answered int)) {
	w.t.Helper()
	a := to.addr4
	if v6 {
		a = to.addr6
	}
	var c *net.UDPConn
	from.ns.Do(w.t, func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, echoPort)))
		return err
	})
	stop, sent, seen := make(chan struct{}), make(chan int, 1), make(chan map[string]bool, 1)
	go func() {
		all, b := map[string]bool{}, make([]byte, 100)
		for {
			k, err := c.Read(b)
			switch {
			case err == nil:
				all[string(b[:k])] = true
			case errors.Is(err, os.ErrDeadlineExceeded):
				seen <- all
				return
			}
		}
	}()
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				sent <- n
				return
			case <-tick.C:
				_, _ = fmt.Fprintf(c, "%s %d", payload, n)
			}
		}
	}()
	return func() (int, int) {
		close(stop)
		n := <-sent
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second)) // for the last answers
		all := <-seen
		_ = c.Close()
		return n, len(all)
	}
}

// exchangeAll sends between all pods in both families. end waits for nothing.
func (w *world) exchangeAll(pods []*pod) (end func()) {
	var ends []func() (int, int)
	for _, p := range pods {
		for _, q := range pods {
			if p != q {
				ends = append(ends, w.exchange(p, q, false, 100*time.Millisecond), w.exchange(p, q, true, 100*time.Millisecond))
			}
		}
	}
	return func() {
		var all sync.WaitGroup
		for _, e := range ends {
			all.Go(func() { e() })
		}
		all.Wait()
	}
}

// exposed gives every node a default route to the next node. Packets to pods without a route of their own
// then leave the node without a tunnel.
func (w *world) exposed() {
	w.t.Helper()
	for i, n := range w.nodes {
		next := w.nodes[(i+1)%len(w.nodes)]
		n.ip("route add default via " + next.addr4.String())
		n.ip("-6 route add default via " + next.addr6.String())
	}
}

// programmed waits until a node has programmed its peers on the device. An agent that deletes a device under load
// does not answer for seconds, which is no fault here.
func (n *node) programmed(peers int, device string) {
	n.w.t.Helper()
	var a answer
	n.w.within(func() bool {
		out, err := n.verb("agent status", nil)
		raw, _ := json.Marshal(out)
		return err == nil && json.Unmarshal(raw, &a) == nil && a.Ready && a.Peers == store.OverlayPeers{Wanted: peers, Programmed: peers} && a.IPv4.Device == device
	}, func() string { return fmt.Sprintf("%s: %d peers on %s: %+v", n.name, peers, device, a) })
}

// TestWireGuard: pods of three nodes reach each other in both families, and all frames between the nodes are
// encrypted, also while the devices are deleted, set down and made again, and the agent is killed.
// The private key is only in keep.db and in the kernel.
func TestWireGuard(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w := newWorld(t, 3, wireguard(t))
	w.exposed()
	seen := w.observe()
	pods := w.startAll()
	for _, n := range w.nodes {
		n.programmed(2, "flannel-wg")
	}
	t.Logf("IPv4 %s, IPv6 %s", w.reach(false, pods...), w.reach(true, pods...))
	n := w.nodes[0]
	a := n.status()
	if a.IPv4.MTU != 1440 || a.IPv6.MTU != 1420 || len(a.Nodes) != 4 {
		t.Errorf("status %+v", a)
	}
	for _, p := range a.Nodes {
		if p.State != "programmed" || !p.Route || p.Handshake.IsZero() || p.Received == 0 || p.Sent == 0 || p.PublicKey == "" || p.Direct {
			t.Errorf("peer %+v", p)
		}
	}
	table, err := n.verb("agent status", nil)
	must(t, err)
	raw, err := json.Marshal(table)
	must(t, err)
	facts := doctor.Facts{Now: time.Now()}
	facts.Overlay.Agent = new(doctor.Agent)
	must(t, json.Unmarshal(raw, facts.Overlay.Agent))
	underlay := netops.LinkInfo{Name: "eth1", Up: true, Running: true, MTU: 1500}
	var links []netops.LinkInfo
	for _, f := range []*doctor.AgentFamily{facts.Overlay.Agent.IPv4, facts.Overlay.Agent.IPv6} {
		local := netip.PrefixFrom(f.Local, f.Local.BitLen())
		underlay.Addresses = append(underlay.Addresses, local)
		links = append(links, netops.LinkInfo{Name: f.Device, Kind: "wireguard", Up: true, MTU: f.MTU, Addresses: []netip.Prefix{local}})
	}
	known, err := json.Marshal(append(links, underlay))
	must(t, err)
	facts.Host = view.Recorded(map[string]view.Record{"links": {Value: known}})
	for _, f := range doctor.Diagnose(&facts).Findings {
		if f.ID == "peer-missing" || f.ID == "mtu-tunnel" || f.ID == "tunnel-missing" || f.ID == "underlay-down" {
			t.Errorf("%+v", f)
		}
	}
	head, rows := table.(interface{ Table() ([]string, [][]string) }).Table()
	if head[4] != "HANDSHAKE" || len(rows) != 6 || rows[2][1] != w.nodes[1].addr4.String()+":51820" || rows[2][4] == "none" {
		t.Errorf("the table is %q %q", head, rows)
	}
	warnings := func() string {
		t.Helper()
		table, err := n.verb("agent status", nil)
		must(t, err)
		return fmt.Sprint(table)
	}
	if text := warnings(); strings.Contains(text, "warning: flannel-wg") {
		t.Errorf("of a healthy node: %s", text)
	}
	peer := w.nodes[1].addr4.String()
	n.ip("rule add priority 100 to " + peer + " blackhole")
	if text := warnings(); !strings.Contains(text, "warning: flannel-wg, node "+peer+": there is no route: ip rule 100 (blackhole)") {
		t.Errorf("with a policy rule: %s", text)
	}
	n.ip("rule del priority 100")
	w.keyIsSecret(n)
	end := w.exchangeAll(pods)
	reach := func(what string) {
		t.Helper()
		d4, d6 := w.reach(false, pods...), w.reach(true, pods...)
		t.Logf("%s: %s, %s", what, d4, d6)
		seen.check(what)
	}
	for what, do := range map[string]func(){
		"device deleted": func() { n.ip("link del flannel-wg") },
		"device down":    func() { n.ip("link set flannel-wg-v6 down") },
		"route deleted": func() {
			n.ip("route del 10.244.0.0/16 dev flannel-wg")
			n.ip("-6 route del fd00:10:244::/48 dev flannel-wg-v6")
		},
		"guard deleted": func() {
			n.ip("route del unreachable 10.244.0.0/16")
			n.ip("-6 route del unreachable fd00:10:244::/48 dev lo")
		},
		"routes flushed": func() {
			n.ip("route flush proto 142")
			n.ip("-6 route flush proto 142")
		},
		"address deleted": func() { n.ip("addr flush dev flannel-wg") },
		"agent killed":    func() { n.kill(); n.start() },
	} {
		do()
		reach(what)
		n.programmed(2, "flannel-wg")
		w.within(func() bool {
			guards := n.ip("route show type unreachable proto 142") + n.ip("-6 route show type unreachable proto 142")
			return strings.Count(guards, "unreachable") == 2
		}, func() string { return what + ": a guard is absent" })
	}
	w.strangers(pods[0], pods[1])
	// The underlay's MTU changes.
	n.ip("link set eth1 mtu 1400")
	n.until("a smaller MTU", func(a answer) bool { return a.Ready && a.IPv4.MTU == 1340 && a.IPv6.MTU == 1320 })
	if out := n.ip("link show flannel-wg-v6"); !strings.Contains(out, "mtu 1320") {
		t.Error(out)
	}
	n.ip("link set eth1 mtu 1500")
	n.until("the former MTU", func(a answer) bool { return a.Ready && a.IPv4.MTU == 1440 })
	end()
	encrypted, readable := seen.reset()
	t.Logf("%d encrypted frames", encrypted)
	if encrypted == 0 || readable != 0 {
		t.Errorf("%d encrypted frames, %d readable ones", encrypted, readable)
	}
	seen.check("at the end")
	// A third-party route that leads around the tunnel is reported. Its packets are not encrypted.
	other := w.record("k8s-dev-1").PodCIDRs[0]
	n.ip(fmt.Sprintf("route add %s via %s dev eth1", netip.PrefixFrom(other.Addr(), 25), w.nodes[1].addr4))
	n.until("the detour", func(a answer) bool { return strings.Contains(a.Reason, "another program's route") })
	n.ip(fmt.Sprintf("route del %s dev eth1", netip.PrefixFrom(other.Addr(), 25)))
	n.stop()
	// Packets of pods that still run are refused after the cleanup, until they have ended.
	cleanup := func(says string) {
		t.Helper()
		out, err := n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile()})
		must(t, err)
		if text, _ := out.(string); strings.Contains(text, "packets to 10.244.0.0/16, fd00:10:244::/48 stay: pods are still attached") != (says != "") {
			t.Errorf("cleanup says %q", text)
		}
	}
	cleanup("guards")
	if pods[0].asks(pods[1], false) || pods[0].asks(pods[1], true) {
		t.Error("a pod is answered after the cleanup")
	}
	seen.check("after the cleanup")
	n.detach(pods[0])
	cleanup("")
	if left := n.ip("-o link") + n.ip("route show proto 142") + n.ip("-6 route show proto 142"); strings.Contains(left, "flannel") || strings.Contains(left, "unreachable") {
		t.Errorf("cleanup leaves %s", left)
	}
}

// strangerMAC is the address of a machine whose frames are not of nodes.
func strangerMAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, 0x99} }

// strangers sends to a pod from a machine on the nodes' network, without encryption: as another node's pod, as a pod of the same node, and
// as itself. Only the last one arrives.
func (w *world) strangers(to, other *pod) {
	t := w.t
	t.Helper()
	ns := netopstest.New(t)
	do := func(args string) {
		t.Helper()
		ns.Do(t, func() error { return exec.Command("ip", strings.Fields(args)...).Run() })
	}
	ip(t, "link add stranger up master fabric type veth peer name eth1 address "+strangerMAC().String()+" netns "+ns.Path())
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "stranger").Run() })
	do("link set lo up")
	do("link set eth1 up")
	do("addr add 172.17.8.200/24 dev eth1")
	do("addr add 2001:db8:8::200/64 dev eth1 nodad")
	for _, c := range []struct{ to, other, own, via netip.Addr }{
		{to.addr4, other.addr4, netip.MustParseAddr("172.17.8.200"), to.node.addr4}, {to.addr6, other.addr6, netip.MustParseAddr("2001:db8:8::200"), to.node.addr6},
	} {
		do(fmt.Sprintf("route add %s via %s", c.to, c.via))
		neighbour := c.to.Next().Next()
		var sink *net.UDPConn
		to.ns.Do(t, func() (err error) {
			sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.to, 0)))
			return err
		})
		defer sink.Close()
		at := sink.LocalAddr().(*net.UDPAddr)
		for _, source := range []netip.Addr{c.other, neighbour, c.own} {
			if source != c.own {
				do(fmt.Sprintf("addr add %s/%d dev lo nodad", source, source.BitLen()))
			}
			ns.Do(t, func() error {
				from, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), at)
				if err != nil {
					return err
				}
				defer from.Close()
				_, err = from.Write([]byte(source.String()))
				return err
			})
		}
		must(t, sink.SetReadDeadline(await.Deadline()))
		b := make([]byte, 100)
		k, err := sink.Read(b)
		must(t, err)
		if first := string(b[:k]); first != c.own.String() {
			t.Errorf("an unencrypted packet from %s arrived at a pod", first)
		}
	}
}

// keyIsSecret fails if a private key is anywhere except in keep.db.
func (w *world) keyIsSecret(n *node) {
	t := w.t
	t.Helper()
	var key []byte
	must(t, n.host().Store.KeepView(t.Context(), func(tx *store.KeepTx) error {
		raw, _, err := tx.Marked("agent", "wireguard")
		must(t, err)
		return json.Unmarshal(raw, &key)
	}))
	text := b64(string(key))
	if len(key) != 32 {
		t.Fatalf("a key of %d bytes", len(key))
	}
	status, err := n.verb("agent status", nil)
	must(t, err)
	raw, err := json.Marshal(status)
	must(t, err)
	if strings.Contains(string(raw)+n.log.String()+n.saved(), text) {
		t.Error("the private key is printed")
	}
	for _, dir := range []string{n.Dir(), w.dir} {
		must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			if err == nil && (bytes.Contains(raw, []byte(text)) || bytes.Contains(raw, key)) {
				info, err := d.Info()
				if must(t, err); d.Name() != "keep.db" || info.Mode().Perm() != 0o600 {
					t.Errorf("%s %v has the private key", path, info.Mode())
				}
			}
			return err
		}))
	}
}

// TestWireGuardSwitch: while all nodes change from vxlan to wireguard, no frame leaves without a tunnel, and
// after the first encrypted frame to a node no readable one follows (with flannel, packets continue
// over the old device: rke2 #9338). Routes that flannel's host-gw left are removed too. The change back
// leaves nothing of wireguard.
func TestWireGuardSwitch(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w := newWorld(t, 3, dual)
	w.exposed()
	pods := w.startAll()
	w.reach(false, pods...)
	w.reach(true, pods...)
	seen := w.observe()
	end := w.exchangeAll(pods)
	readableFrames := func() bool { seen.mu.Lock(); defer seen.mu.Unlock(); return len(seen.readable) == 12 }
	w.within(readableFrames, func() string { return "vxlan is not seen" })
	hostGW := fmt.Sprintf("%s via %s", w.record("k8s-dev-1").PodCIDRs[0], w.nodes[1].addr4)
	w.nodes[0].ip("route add " + hostGW + " dev eth1 metric 50")
	w.configure(wireguard(t))
	for _, n := range w.nodes {
		n.programmed(2, "flannel-wg")
	}
	w.reach(false, pods...)
	w.reach(true, pods...)
	seen.check("from vxlan to wireguard")
	seen.reset()
	w.within(func() bool { seen.mu.Lock(); defer seen.mu.Unlock(); return len(seen.encrypted) == 12 }, func() string { return "wireguard is not seen" })
	for _, n := range w.nodes {
		if out := n.ip("-o link") + n.ip("route") + n.ip("nexthop"); strings.Contains(out, "flannel.1") || strings.Contains(out, hostGW) {
			t.Errorf("%s: the old backend is left: %s", n.name, out)
		}
	}
	if encrypted, readable := seen.reset(); encrypted == 0 || readable != 0 {
		t.Errorf("after the change: %d encrypted frames, %d readable ones", encrypted, readable)
	}
	w.configure(dual)
	for _, n := range w.nodes {
		n.programmed(2, "flannel.1")
	}
	w.reach(false, pods...)
	w.reach(true, pods...)
	end()
	for _, n := range w.nodes {
		if out := n.ip("-o link") + n.ip("route") + n.ip("-6 route"); strings.Contains(out, "flannel-wg") || strings.Contains(out, "unreachable") {
			t.Errorf("%s: wireguard is left: %s", n.name, out)
		}
	}
}

// TestWireGuardRotate: a node gets a new key. Its datagrams wait for the new handshake. Those to it wait too, except the
// ones that the other node encrypts before it has read the new key.
func TestWireGuardRotate(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w := newWorld(t, 2, wireguard(t))
	pods := w.startAll()
	w.reach(false, pods...)
	w.reach(true, pods...)
	n, other := w.nodes[0], w.nodes[1]
	key := func() string {
		k, err := cluster.ParseWireGuard(w.record(n.name).BackendData)
		must(t, err)
		return k.PublicKey
	}
	before := key()
	const interval, onTheWay = 100 * time.Millisecond, 3
	ends := []func() (int, int){w.exchange(pods[0], pods[1], false, interval), w.exchange(pods[1], pods[0], false, interval), w.exchange(pods[0], pods[1], true, interval)}
	out, err := n.verb("agent rotate-key", nil)
	must(t, err)
	t.Log(out)
	w.within(func() bool { return key() != before }, func() string { return "the new key is not published" })
	other.until("the new key", func(a answer) bool {
		return a.Ready && len(a.Nodes) == 2 && a.Nodes[0].PublicKey == key() && !a.Nodes[0].Handshake.IsZero() && !a.Nodes[1].Handshake.IsZero()
	})
	w.reach(false, pods...)
	for i, e := range ends {
		sent, answered := e()
		t.Logf("stream %d: %d datagrams, %d answered", i, sent, answered)
		if sent-answered > onTheWay {
			t.Errorf("stream %d: %d of %d datagrams were lost", i, sent-answered, sent)
		}
	}
	if !strings.Contains(out.(string), key()) {
		t.Errorf("%v, the record has %s", out, key())
	}
	w.keyIsSecret(n)
}

// newWireGuardFlannel makes three nodes and their etcd with a configuration that has a preshared key. flanneld runs on the second
// node. start runs it on a node.
func newWireGuardFlannel(t *testing.T, conf string) (w *world, start func(n *node, flags ...string)) {
	t.Helper()
	runtime.LockOSThread() // etcd ends with the thread that started it
	t.Cleanup(runtime.UnlockOSThread)
	built, err := filepath.Abs("../../../bin/kube")
	must(t, err)
	t.Setenv("PATH", built+":"+os.Getenv("PATH"))
	conf = fmt.Sprintf(`{"EnableNFTables":true,"Network":"10.244.0.0/16",`+conf+`}`, b64(strings.Repeat("k", 32)))
	server := etcdtest.Start(t)
	etcdCall(t, server.URL, "/v3/kv/put", map[string]any{"key": b64(flannelPrefix + "/config"), "value": b64(conf)})
	w = newWorld(t, 3, conf)
	w.useEtcd(server.URL)
	start = func(n *node, flags ...string) {
		cmd := exec.Command(filepath.Join(built, "flanneld"), "-etcd-endpoints="+server.URL, "-iface=eth1", "-subnet-file="+n.subnetFile())
		cmd.Args = append(cmd.Args, flags...)
		cmd.Env = append(os.Environ(), "WIREGUARD_KEY_FILE="+filepath.Join(n.Dir(), "wgkey"))
		n.runReady(cmd)
	}
	start(w.nodes[1])
	return w, start
}

// TestWireGuardFlanneld: in each mode, nodes with flanneld's backend wireguard and nodes with the agent share an etcd, a preshared key
// and all pods of both families.
func TestWireGuardFlanneld(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	for mode, want := range map[string]struct {
		device6, endpoint string
		mtu               int
	}{
		"separate": {"flannel-wg-v6", "172.17.8.102:51820", 1440},
		"ipv4":     {"flannel-wg", "172.17.8.102:51820", 1440},
		"ipv6":     {"flannel-wg", "[2001:db8:8::102]:51820", 1420},
		"auto":     {"flannel-wg", "[2001:db8:8::102]:51820", 1420},
	} {
		t.Run(mode, func(t *testing.T) {
			w, _ := newWireGuardFlannel(t, `"EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"wireguard","PSK":%q,"Mode":"`+mode+`"}`)
			var pods []*pod
			for _, n := range []*node{w.nodes[0], w.nodes[2]} {
				n.start()
				pods = append(pods, n.attach())
			}
			theirs := w.nodes[1]
			pods = append(pods, theirs.attachBy("flannel", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"flannel","subnetFile":%q,"dataDir":%q}`, theirs.subnetFile(), theirs.Dir()+"/flannel-data")))
			a := w.nodes[0].until("both peers", func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} })
			if a.IPv4.Device != "flannel-wg" || a.IPv6.Device != want.device6 || a.IPv4.MTU != want.mtu {
				t.Errorf("%+v, %+v", a.IPv4, a.IPv6)
			}
			seen := w.observe()
			w.reach(false, pods...)
			w.reach(true, pods...)
			if _, readable := seen.reset(); readable != 0 {
				t.Errorf("%d readable frames", readable)
			}
			seen.check(mode)
			found := false
			for _, p := range w.nodes[0].status().Nodes {
				found = found || p.Endpoint == want.endpoint
				if p.Handshake.IsZero() {
					t.Errorf("no handshake with %+v", p)
				}
			}
			if !found {
				t.Errorf("no peer has the endpoint %s: %+v", want.endpoint, w.nodes[0].status().Nodes)
			}
		})
	}
}

// TestWireGuardMode: while pods send, the mode of a cluster changes to one device and back. The change leaves no other device, and cleanup
// leaves none.
func TestWireGuardMode(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w := newWorld(t, 2, wireguard(t))
	w.exposed()
	pods := w.startAll()
	seen := w.observe()
	end := w.exchangeAll(pods)
	for _, mode := range []string{"auto", "separate"} {
		w.configure(strings.Replace(wireguard(t), `"wireguard"`, `"wireguard", "Mode": "`+mode+`"`, 1))
		device6 := map[string]string{"auto": "flannel-wg", "separate": "flannel-wg-v6"}[mode]
		for _, n := range w.nodes {
			n.until(mode, func(a answer) bool {
				return a.Ready && a.Peers == store.OverlayPeers{Wanted: 1, Programmed: 1} && a.IPv6.Device == device6
			})
			if out := n.ip("-o link"); strings.Contains(out, "flannel-wg-v6") != (mode == "separate") {
				t.Errorf("%s: %s", mode, out)
			}
			if out := n.ip("-6 -o addr show dev flannel-wg"); strings.Contains(out, "fd00:10:244:") != (mode == "auto") {
				t.Errorf("%s: %s", mode, out)
			}
		}
		w.reach(false, pods...)
		w.reach(true, pods...)
		seen.check(mode)
	}
	end()
	n := w.nodes[0]
	n.stop()
	_, err := n.verb("agent cleanup", map[string]string{"subnet-file": n.subnetFile(), "force": "true"})
	must(t, err)
	if left := n.ip("-o link") + n.ip("route show proto 142") + n.ip("-6 route show proto 142"); strings.Contains(left, "flannel") || strings.Contains(left, "unreachable") {
		t.Errorf("cleanup leaves %s", left)
	}
}

// TestWireGuardMTU: the MTU follows the interface to which the routes to the other node lead, and the MTU of that interface.
func TestWireGuardMTU(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w := newWorld(t, 2, wireguard(t))
	for i, n := range w.nodes {
		port := fmt.Sprintf("port%d-2", i)
		ip(t, "link add "+port+" up master fabric type veth peer name eth2 netns "+n.ns.Path())
		n.ip("link set eth2 up mtu 1400")
		n.ip(fmt.Sprintf("addr add 172.17.9.%d/24 dev eth2", 101+i))
		n.ip(fmt.Sprintf("addr add 2001:db8:9::%d/64 dev eth2 nodad", 101+i))
	}
	pods := w.startAll()
	n := w.nodes[0]
	mtu := func(what string, of4, of6 int) {
		t.Helper()
		n.until(what, func(a answer) bool { return a.Ready && a.IPv4.MTU == of4 && a.IPv6.MTU == of6 })
		for device, want := range map[string]int{"flannel-wg": of4, "flannel-wg-v6": of6} {
			if out := n.ip("link show " + device); !strings.Contains(out, fmt.Sprintf("mtu %d ", want)) {
				t.Errorf("%s: %s", what, out)
			}
		}
		w.reach(false, pods...)
		w.reach(true, pods...)
	}
	mtu("eth1", 1440, 1420)
	n.ip("route add 172.17.8.102 via 172.17.9.102 src 172.17.8.101")
	mtu("IPv4 over eth2", 1340, 1320) // the pods' interfaces have both families
	n.ip("link set eth2 mtu 1380")
	mtu("a smaller eth2", 1320, 1300)
	n.ip("-6 route add 2001:db8:8::102 via 2001:db8:9::102 src 2001:db8:8::101")
	n.ip("route del 172.17.8.102")
	mtu("IPv6 over eth2", 1320, 1300)
	n.ip("-6 route del 2001:db8:8::102")
	mtu("eth1 again", 1440, 1420)
}

// TestWireGuardKeyOrder: an agent that starts with a new key, and cannot give it to the device, leaves the published key unchanged
// until it can.
func TestWireGuardKeyOrder(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w := newWorld(t, 1, wireguard(t))
	n := w.nodes[0]
	n.start()
	key := func() string {
		k, err := cluster.ParseWireGuard(w.record(n.name).BackendData)
		must(t, err)
		return k.PublicKey
	}
	before := key()
	n.stop()
	_, err := n.verb("agent rotate-key", nil)
	must(t, err)
	n.ip("link del flannel-wg")
	n.ip("link add flannel-wg type dummy")
	n.launch()
	w.within(func() bool {
		_, _ = n.verb("agent status", nil)
		return n.exit != nil && strings.Contains(n.exit.Error(), `it is not of kind "wireguard"`)
	}, func() string { return fmt.Sprintf("the device can be made: %v", n.exit) })
	if key() != before {
		t.Error("a key is published that the device does not have")
	}
	n.ip("link del flannel-wg")
	w.within(func() bool { return key() != before }, func() string { return "the new key is not published" })
}

// TestWireGuardMigrate migrates a node from flanneld to the agent and back. The connection continues, and packets between pods are never sent
// unencrypted, although flanneld deletes its device when it ends, and when it begins.
func TestWireGuardMigrate(t *testing.T) {
	netopstest.NeedKind(t, "wireguard")
	w, flanneld := newWireGuardFlannel(t, `"Backend":{"Type":"wireguard","PSK":%q}`)
	w.exposed()
	ours, theirs, moves := w.nodes[0], w.nodes[1], w.nodes[2]
	moves.useReference()
	flanneld(moves, "-ip-masq")
	ours.start()
	programmed := func(a answer) bool { return a.Ready && a.Peers == store.OverlayPeers{Wanted: 2, Programmed: 2} }
	ours.until("flanneld's nodes", programmed)
	pods := []*pod{ours.attach(), theirs.attachBy("flannel", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0",%s}`, theirs.flannelConf())), moves.attachReference()}
	w.reach(false, pods...)
	seen := w.observe()
	end := w.transfer(pods[1], pods[2])
	// refused sends a packet while the node has no device.
	refused := func(what string) {
		t.Helper()
		if pods[2].asks(pods[1], false) {
			t.Errorf("%s: a pod of the other node answers", what)
		}
		seen.check(what)
	}
	step := func(want string, args ...string) {
		t.Helper()
		out := moves.command(moves.migrate(append([]string{"migrate", "flannel", "--yes"}, args...)...)...)
		if !strings.Contains(out, want) {
			t.Fatalf("%q is not in\n%s", want, out)
		}
	}
	step("the next step is yours: stop flanneld")
	moves.stop()
	refused("without flanneld")
	step("start the agent with flanneld's flags")
	agent := moves.agent("-ip-masq")
	agent.Path = filepath.Join(ours.PluginDir(), "agent") // only plugins are installed
	moves.runReady(agent)
	moves.until("the others", programmed)
	step("no differences found")
	w.reach(false, pods...)
	seen.check("with the agent")

	step("the next step is yours: stop the agent", "--back")
	moves.stop()
	step("start flanneld and wait until it is ready", "--back")
	flanneld(moves, "-ip-masq")
	step("the node has returned to flannel", "--back")
	w.reach(false, pods...)
	seen.check("with flanneld again")
	t.Logf("the longest silence was %s", end())
	if _, readable := seen.reset(); readable != 0 {
		t.Errorf("%d readable frames", readable)
	}
	if left := moves.ip("route show proto 142") + moves.ip("-d link show flannel-wg"); strings.Contains(left, "unreachable") || strings.Contains(left, "alias") {
		t.Errorf("left: %s", left)
	}
}
