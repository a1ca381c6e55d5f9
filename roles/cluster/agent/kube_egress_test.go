//go:build kube

package agent_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/kubetest"
)

// Addresses of TestKubeEgress: those that namespaces name, and those of a host outside of the cluster.
const (
	egress4, egress6   = "172.17.8.77", "2001:db8:8::77"
	other4             = "172.17.8.78"
	outside4, outside6 = "198.51.100.9", "2001:db8:9::9"
	router4, router6   = "172.17.8.200", "2001:db8:8::200"
)

// outside is a host outside of the cluster, which answers datagrams with the address that they come from.
type outside struct {
	t  *testing.T
	ns *netopstest.NS
	// wrong has the datagrams of pods with an egress address that came from another address.
	mu    sync.Mutex
	wrong []string
	// strict is true while every datagram of such a pod must have the address.
	strict atomic.Bool
}

// newOutside connects the host to the nodes' network, as the router of their default routes.
func newOutside(w *world) *outside {
	t := w.t
	t.Helper()
	o := &outside{t: t, ns: netopstest.New(t)}
	ip(t, "link add outside master fabric type veth peer name eth0 netns "+o.ns.Path())
	t.Cleanup(func() { ip(t, "link del outside") })
	ip(t, "link set outside up")
	o.ns.Do(t, func() error { return netopstest.LinkUp("lo", outside4+"/32", outside6+"/128") })
	o.ns.Do(t, func() error { return netopstest.LinkUp("eth0", router4+"/24", router6+"/64") })
	for _, n := range w.nodes {
		n.ip("route add default via " + router4)
		n.ip("-6 route add default via " + router6)
	}
	for _, a := range []string{outside4, outside6} {
		c := netopstest.Listen(t, o.ns, netip.AddrPortFrom(netip.MustParseAddr(a), 9000).String())
		must(t, c.SetDeadline(time.Time{}))
		go o.answer(c)
	}
	return o
}

func (o *outside) answer(c *net.UDPConn) {
	b := make([]byte, 100)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		source := from.Addr().Unmap().String()
		if string(b[:n]) == "egress" && source != egress4 && source != egress6 && o.strict.Load() {
			o.mu.Lock()
			o.wrong = append(o.wrong, source)
			o.mu.Unlock()
		}
		_, _ = c.WriteToUDPAddrPort([]byte(source), from)
	}
}

// check reports the datagrams that came from a wrong address.
func (o *outside) check() {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wrong) > 0 {
		o.t.Errorf("%d datagrams of pods with an egress address came from %q", len(o.wrong), slices.Compact(o.wrong))
	}
	o.wrong = nil
}

// source sends a datagram from a pod to the outside, and returns the address that the outside saw, or "" without an answer.
func (o *outside) source(p *pod, what, to string) (seen string) {
	o.t.Helper()
	p.ns.Do(o.t, func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), 9000).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(4 * answerTime))
		b := make([]byte, 100)
		if _, err = c.Write([]byte(what)); err == nil {
			n, _ := c.Read(b)
			seen = string(b[:n])
		}
		return nil
	})
	return seen
}

// sees waits until the outside sees a pod's datagrams of both families from these addresses, "" for none.
func (o *outside) sees(p *pod, what, want4, want6 string) time.Duration {
	o.t.Helper()
	begin := time.Now()
	for to, want := range map[string]string{outside4: want4, outside6: want6} {
		var seen string
		await.Until(o.t, func() bool { seen = o.source(p, what, to); return seen == want }, func() string {
			text := ""
			for _, n := range p.w.nodes {
				text += n.name + ": " + n.ip("addr show dev eth1") + n.ip("rule") + n.ip("route show table all type unicast") + n.exec("nft", "list", "ruleset")
				if n.cmd != nil {
					text += fmt.Sprintf("%+v\n", n.status())
				}
			}
			return fmt.Sprintf("%s: %s is seen from %q, want %q\n%s", p.call.ID, to, seen, want, text)
		})
	}
	return time.Since(begin)
}

// flow is a socket of a pod that sends from one port to the outside.
type flow struct {
	*pod
	c net.Conn
}

func newFlow(p *pod, to string) *flow {
	f := &flow{pod: p}
	p.ns.Do(p.w.t, func() (err error) {
		f.c, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), 9000).String())
		return err
	})
	p.w.t.Cleanup(func() { f.c.Close() })
	return f
}

// continues waits until the outside sees the flow from an address.
func (f *flow) continues(what, want string) {
	t := f.w.t
	t.Helper()
	b := make([]byte, 100)
	await.Until(t, func() bool {
		_ = f.c.SetDeadline(time.Now().Add(answerTime))
		_, _ = f.c.Write([]byte("egress"))
		n, err := f.c.Read(b)
		return err == nil && string(b[:n]) == want
	}, func() string { return what + ": the flow of " + f.call.ID + " does not go on" })
}

// watchOwners reports, until the test ends, whether two nodes have an address at a time.
func watchOwners(w *world) (both func() bool) {
	var found atomic.Bool
	var handles []*netlink.Handle
	for _, n := range w.nodes {
		ns, err := netns.GetFromPath(n.ns.Path())
		must(w.t, err)
		h, err := netlink.NewHandleAt(ns)
		must(w.t, err)
		must(w.t, ns.Close())
		handles = append(handles, h)
	}
	has := func(h *netlink.Handle, a string) bool {
		all, err := h.AddrList(nil, netlink.FAMILY_ALL)
		return err == nil && slices.ContainsFunc(all, func(have netlink.Addr) bool { return have.IP.String() == a })
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
			}
			for _, a := range []string{egress4, egress6} {
				first := slices.IndexFunc(handles, func(h *netlink.Handle) bool { return has(h, a) })
				if first >= 0 && slices.ContainsFunc(handles[first+1:], func(h *netlink.Handle) bool { return has(h, a) }) && has(handles[first], a) {
					found.Store(true)
				}
			}
		}
	}()
	w.t.Cleanup(func() {
		close(end)
		<-ended
		for _, h := range handles {
			h.Close()
		}
	})
	return found.Load
}

// attachIn makes a pod of a namespace, and attaches it by the overlay's plugin.
func (c *egressCluster) attachIn(n *node, namespace string) *pod {
	t := c.t
	t.Helper()
	var o struct{ Metadata struct{ Name, UID string } }
	must(t, json.Unmarshal(c.s.Must(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", "", map[string]any{
		"metadata": map[string]any{"generateName": "pod-"},
		"spec": map[string]any{
			"nodeName": n.name, "automountServiceAccountToken": false, "containers": []any{map[string]any{"name": "c", "image": "c"}},
		},
	}), &o))
	n.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + o.Metadata.Name + ";K8S_POD_UID=" + o.Metadata.UID
	defer func() { n.args = "" }()
	return n.attachBy("vxlan", n.overlayConf())
}

func (n *node) overlayConf() string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"overlay","type":"vxlan","overlayFile":%q,"delegate":{"isDefaultGateway":true}}`, n.overlayFile())
}

// egressCluster is the world of a test of egress addresses.
type egressCluster struct {
	*world
	s     *kubetest.Server
	wires []*kubetest.Wire
	out   *outside
	both  func() bool
}

const mergePatch = "application/merge-patch+json"

// label says whether a node may hold egress addresses.
func (c *egressCluster) label(n *node, value any) {
	c.t.Helper()
	c.s.Must(c.t, http.MethodPatch, "/api/v1/nodes/"+n.name, mergePatch, map[string]any{"metadata": map[string]any{"labels": map[string]any{"cnibox.io/egress-node": value}}})
}

// annotate changes the annotation of a namespace.
func (c *egressCluster) annotate(namespace string, value any) {
	c.t.Helper()
	c.s.Must(c.t, http.MethodPatch, "/api/v1/namespaces/"+namespace, mergePatch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"cnibox.io/egress-address": value}}})
}

// holder waits until one node holds both addresses, which is none of the others given, and returns it.
func (c *egressCluster) holders(others ...*node) (at [2]*node) {
	c.t.Helper()
	for i, a := range []string{egress4, egress6} {
		await.Until(c.t, func() bool {
			at[i] = nil
			for _, n := range c.nodes {
				if !slices.Contains(others, n) && strings.Contains(n.ip("addr show dev eth1"), " "+a+"/") {
					at[i] = n
				}
			}
			return at[i] != nil
		}, func() string { return "no node holds " + a })
	}
	return at
}

// newEgressCluster makes three nodes, of which the last two may hold addresses.
func newEgressCluster(t *testing.T, conf string, flags ...string) *egressCluster {
	t.Helper()
	runtime.LockOSThread() // the server ends with the thread that started it
	t.Cleanup(runtime.UnlockOSThread)
	s, err := kubetest.Start(kubetest.DebianEtcd)
	must(t, err)
	t.Cleanup(s.Stop)
	rule := func(group, resource string, verbs ...string) kubetest.Rule {
		return kubetest.Rule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	s.Allow(t, "agents", rule("", "nodes", "get", "list", "watch"), rule("", "nodes/status", "patch"), rule("", "namespaces", "list", "watch"))
	s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": "cnibox-egress"}})
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/cnibox-egress/"
	s.Must(t, http.MethodPost, rbac+"roles", "", map[string]any{"metadata": map[string]any{"name": "agents"}, "rules": []kubetest.Rule{
		rule("", "configmaps", "get", "list", "watch", "create", "patch"), rule("coordination.k8s.io", "leases", "get", "create", "patch"),
	}})
	s.Must(t, http.MethodPost, rbac+"rolebindings", "", map[string]any{
		"metadata": map[string]any{"name": "agents"}, "roleRef": map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "agents"},
		"subjects": []map[string]string{{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "agents"}},
	})
	for _, name := range []string{"team", "plain"} {
		s.Must(t, http.MethodPost, "/api/v1/namespaces", "", map[string]any{"metadata": map[string]any{"name": name}})
		s.Must(t, http.MethodPost, "/api/v1/namespaces/"+name+"/serviceaccounts", "", map[string]any{"metadata": map[string]any{"name": "default"}})
	}
	c := &egressCluster{world: newWorld(t, 3, conf), s: s}
	c.out = newOutside(c.world)
	path := c.dir + "/net-conf.json"
	must(t, os.WriteFile(path, []byte(conf), 0o600))
	c.registry = []string{"-kube-subnet-mgr", "-net-config-path=" + path}
	token := kubetest.Agent
	if slices.Contains(flags, "-policy") {
		token = kubetest.Admin // the rights to policies are those of other tests
	}
	for i, n := range c.nodes {
		wire := s.NewWire(t)
		n.forward(wire.Address)
		c.wires = append(c.wires, wire)
		n.flags = append([]string{
			"-kubeconfig-file=" + s.Kubeconfig(t, wire.Address, token), "-ip-masq",
			"-egress-networks=172.17.8.64/26,2001:db8:8::/120",
		}, flags...)
		subnets := []string{fmt.Sprintf("10.244.%d.0/24", i+1), fmt.Sprintf("fd00:10:244:%d::/64", i+1)}
		s.Must(t, http.MethodPost, "/api/v1/nodes", "", map[string]any{
			"metadata": map[string]any{"name": n.name}, "spec": map[string]any{"podCIDR": subnets[0], "podCIDRs": subnets},
		})
		n.exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.default.rp_filter=1", "net.ipv4.conf.eth1.rp_filter=1")
		if i > 0 {
			c.label(n, "")
		}
	}
	c.both = watchOwners(c.world)
	return c
}

// TestKubeEgress: pods of an annotated namespace leave with its addresses, whatever node they are on and whatever happens to the holder. At
// no time do two nodes have an address, and no packet of such a pod leaves with another source.
func TestKubeEgress(t *testing.T) {
	c := newEgressCluster(t, dual)
	pods, plain := c.begin()

	var flows []*flow
	for _, p := range pods {
		flows = append(flows, newFlow(p, outside4))
	}
	fail := func(what string, broken *node, do, mend func()) {
		t.Helper()
		for _, f := range flows {
			f.continues(what, egress4)
		}
		do()
		at := c.holders(broken)
		begin := time.Now()
		for _, p := range pods {
			if p.node != broken {
				c.out.sees(p, "egress", egress4, egress6)
			}
		}
		t.Logf("%s: new connections work %s after another node has the addresses", what, time.Since(begin))
		mend()
		for i, p := range pods {
			c.out.sees(p, "egress", egress4, egress6)
			flows[i].continues(what+" mended", egress4)
		}
		if now := c.holders(); now != at {
			t.Errorf("%s: the address moved again", what)
		}
	}
	// Both addresses on one node, so that each failure is that of both.
	c.label(c.nodes[2], nil)
	c.holders(c.nodes[0], c.nodes[2])
	c.label(c.nodes[2], "")
	n1, n2 := c.nodes[1], c.nodes[2]
	begin := time.Now()
	fail("kill", n1, n1.kill, func() { n1.start() })
	t.Logf("killed and mended within %s", time.Since(begin))
	fail("stop", n2, n2.suspend, n2.resume)
	fail("cut", n1, c.wires[1].Cut, func() { c.wires[1].Join(t) })
	fail("drain", n2, func() { c.label(n2, nil) }, func() { c.label(n2, "") })

	// A restarted agent keeps its addresses.
	n1.stop()
	var lease struct {
		Spec struct{ HolderIdentity string }
	}
	must(t, json.Unmarshal(c.s.Must(t, http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/cnibox-egress/leases/address-172-17-8-77", "", nil), &lease))
	if lease.Spec.HolderIdentity != n1.name {
		t.Errorf("an agent that ends leaves its lease to %q", lease.Spec.HolderIdentity)
	}
	n1.start()
	c.out.sees(pods[0], "egress", egress4, egress6)
	if at := c.holders(); at != [2]*node{n1, n1} {
		t.Errorf("a restart moved the addresses")
	}
	c.out.check()
	if c.both() {
		t.Error("two nodes had an address at a time")
	}
	c.checkChanges(pods, plain)
}

// TestKubeEgressHostGW: the same without a tunnel, and with the agents' network policies. Its pods' packets pass both nodes.
func TestKubeEgressHostGW(t *testing.T) {
	c := newEgressCluster(t, hostGW, "-policy")
	pods, _ := c.begin()
	at := c.holders()
	at[0].kill()
	c.holders(at[0])
	for _, p := range pods {
		if p.node != at[0] {
			c.out.sees(p, "egress", egress4, egress6)
		}
	}
	c.out.check()
	if c.both() {
		t.Error("two nodes had an address at a time")
	}
}

// begin starts the agents, and a pod of the namespace team on each node. plain is another one on the first node. Then it checks how they leave.
func (c *egressCluster) begin() (pods []*pod, plain *pod) {
	t, first := c.t, c.nodes[0]
	t.Helper()
	for _, n := range c.nodes {
		n.start()
	}
	c.annotate("team", egress4+","+egress6)
	for _, n := range c.nodes {
		n.until("the namespace", func(answer) bool { return strings.Contains(n.readOverlay(), `"team"`) })
		pods = append(pods, c.attachIn(n, "team"))
	}
	plain = c.attachIn(first, "plain")
	c.out.strict.Store(true)
	for _, p := range pods {
		t.Logf("%s leaves after %s", p.call.ID, c.out.sees(p, "egress", egress4, egress6))
	}
	c.out.sees(plain, "plain", first.addr4.String(), first.addr6.String())
	c.checkCluster(pods)
	return pods, plain
}

// explained returns what the agent of the first node says about packets of its pod, as 'cnibox path' asks it.
func (c *egressCluster) explained(p *pod, to netip.Addr) string {
	t := c.t
	t.Helper()
	var a struct{ Address, Holder, Dropped string }
	must(t, service.Ask(t.Context(), c.nodes[0].socket(), service.EgressExplain, map[string]netip.Addr{"from": p.addr4, "to": to}, service.Into(&a)))
	return fmt.Sprint(a.Address, " ", a.Holder, " ", a.Dropped)
}

// checkCluster: what is in the cluster, and connections from outside, stay as they are.
func (c *egressCluster) checkCluster(pods []*pod) {
	t, first := c.t, c.nodes[0]
	t.Helper()
	for from, to := range map[netip.Addr]netip.Addr{pods[0].addr4: pods[1].addr4, pods[0].addr6: pods[1].addr6} {
		netopstest.CheckDatagram(t, "to a pod", pods[0].ns, netopstest.Listen(t, pods[1].ns, netip.AddrPortFrom(to, 7001).String()), from.String())
	}
	for to, want := range map[string]string{outside4: egress4 + " " + c.holders()[0].name + " ", pods[1].addr4.String(): "  "} {
		if have := c.explained(pods[0], netip.MustParseAddr(to)); have != want {
			t.Errorf("path to %s: %q, want %q", to, have, want)
		}
	}
	// A service with this address has a pod of another node.
	first.exec("nft", "add table ip services")
	first.exec("nft", "add chain ip services c { type nat hook prerouting priority -100; }")
	first.exec("nft", fmt.Sprintf("add rule ip services c ip daddr 10.96.0.10 udp dport 53 dnat to %s:7002", pods[1].addr4))
	end := netopstest.Listen(t, pods[1].ns, pods[1].addr4.String()+":7002")
	netopstest.CheckDatagramVia(t, "to a service", pods[0].ns, "10.96.0.10:53", end, pods[0].addr4.String())
	// A host port, asked from the outside.
	first.exec("nft", fmt.Sprintf("add rule ip services c ip daddr %s udp dport 8080 dnat to %s:7003", first.addr4, pods[0].addr4))
	end = netopstest.Listen(t, pods[0].ns, pods[0].addr4.String()+":7003")
	netopstest.CheckDatagramVia(t, "to a host port", c.out.ns, first.addr4.String()+":8080", end, router4)
	// The node itself, and another one.
	for _, n := range c.nodes[:2] {
		want := pods[0].addr4.String()
		if n != first {
			want = first.addr4.String()
		}
		netopstest.CheckDatagram(t, "to "+n.name, pods[0].ns, netopstest.Listen(t, n.ns, n.addr4.String()+":7004"), want)
	}
}

// checkChanges changes annotations while pods run, and ends the agents.
func (c *egressCluster) checkChanges(pods []*pod, plain *pod) {
	t, first := c.t, c.nodes[0]
	t.Helper()
	c.annotate("team", "172.17.8.1")
	c.out.sees(pods[0], "egress", "", "")
	warned := func(text string) func(answer) bool {
		return func(a answer) bool {
			return slices.ContainsFunc(a.Warnings, func(w string) bool { return strings.Contains(w, text) })
		}
	}
	first.until("the fault", warned("172.17.8.1 is not in -egress-networks"))
	c.annotate("team", "172.17.8.101")
	first.until("the fault", warned("172.17.8.101 is the address of a node"))
	c.out.sees(pods[0], "egress", "", "")
	c.annotate("team", egress4)
	c.out.sees(pods[0], "v4", egress4, first.addr6.String())
	c.out.strict.Store(false)
	f := newFlow(pods[0], outside4)
	f.continues("one address", egress4)
	c.annotate("team", other4)
	f.continues("another address", other4)
	c.annotate("team", egress4)
	f.continues("the first address", egress4)
	c.annotate("team", nil)
	f.continues("no address", first.addr4.String())
	c.out.sees(pods[0], "egress", first.addr4.String(), first.addr6.String())
	c.annotate("plain", egress6)
	c.out.sees(plain, "plain", first.addr4.String(), egress6)
	// A pod of an annotated namespace does not start without the agent, one of another does.
	first.kill()
	c.attachIn(first, "team")
	if err := first.tryIn("plain"); err == nil || !strings.Contains(err.Error(), "namespace plain has an egress address") {
		t.Errorf("ADD without the agent: %v", err)
	}
	c.out.sees(plain, "plain", first.addr4.String(), egress6)
	// An agent without the flag removes everything.
	first.flags = slices.DeleteFunc(first.flags, func(f string) bool { return strings.HasPrefix(f, "-egress-networks") })
	first.start()
	c.out.sees(plain, "plain", first.addr4.String(), first.addr6.String())
	for _, text := range []string{first.exec("nft", "list", "tables"), first.ip("rule"), first.ip("-6 rule")} {
		if strings.Contains(text, "cnibox_egress") || strings.Contains(text, "fwmark") {
			t.Errorf("left: %s", text)
		}
	}
}

// tryIn calls ADD for a pod of a namespace and returns its error.
func (n *node) tryIn(namespace string) error {
	t := n.w.t
	t.Helper()
	ns := netopstest.New(t)
	cmd := n.Cmd(rolestest.Call{
		Type: "vxlan", Verb: "ADD", ID: "refused", Netns: ns.Path(), IfName: "eth0", Conf: n.overlayConf(),
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=refused",
	})
	var out []byte
	var err error
	n.ns.Do(t, func() error {
		out, err = cmd.Output()
		return nil
	})
	if err == nil {
		return nil
	}
	var e struct{ Msg, Details string }
	must(t, json.Unmarshal(out, &e))
	return fmt.Errorf("%s %s", e.Msg, e.Details)
}

// readOverlay returns the hand-off file.
func (n *node) readOverlay() string {
	n.w.t.Helper()
	raw, err := os.ReadFile(n.overlayFile())
	must(n.w.t, err)
	return string(raw)
}
