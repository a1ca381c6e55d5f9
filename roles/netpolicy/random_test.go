package netpolicy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/choice"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// The types and the evaluator here follow the API's documentation alone:
// https://kubernetes.io/docs/concepts/services-networking/network-policies/. They share no code with the compiler.
type object map[string]any

var labelKeys, labelValues = []string{"app", "tier"}, []string{"a", "b"}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func randomSelector(r *rand.Rand) object {
	switch r.IntN(5) {
	case 0:
		return object{}
	case 1:
		return object{"matchLabels": object{pick(r, labelKeys...): pick(r, labelValues...)}}
	case 2:
		return object{"matchExpressions": []any{object{"key": pick(r, labelKeys...), "operator": pick(r, "In", "NotIn"), "values": []any{pick(r, labelValues...)}}}}
	case 3:
		return object{"matchExpressions": []any{object{"key": pick(r, labelKeys...), "operator": pick(r, "Exists", "DoesNotExist")}}}
	}
	return object{"matchLabels": object{"app": pick(r, labelValues...)}, "matchExpressions": []any{object{"key": "tier", "operator": "Exists"}}}
}

func randomPeer(r *rand.Rand) object {
	p := object{}
	switch r.IntN(5) {
	case 0:
		cidr := pick(r, "0.0.0.0/0", "10.9.0.0/24", "10.9.0.2/32", "fd09::/64", "::/0", "10.9.0.0/29")
		b := object{"cidr": cidr}
		if r.IntN(2) == 0 && strings.HasSuffix(cidr, "0/24") {
			b["except"] = []any{"10.9.0.4/30"}
		}
		if r.IntN(2) == 0 && cidr == "0.0.0.0/0" { // more than one rule of the kernel can have
			except := []any{"10.9.0.4/30"}
			for i := range 600 {
				except = append(except, fmt.Sprintf("172.16.%d.%d/32", i/256, i%256))
			}
			b["except"] = except
		}
		if r.IntN(2) == 0 && cidr == "::/0" {
			b["except"] = []any{"fd09::3/128"}
		}
		p["ipBlock"] = b
		return p
	case 1:
		p["namespaceSelector"] = randomSelector(r)
	case 2:
		p["namespaceSelector"] = object{"matchLabels": object{label.Namespace: pick(r, "x", "y")}}
		p["podSelector"] = randomSelector(r)
	case 3:
		p["namespaceSelector"], p["podSelector"] = randomSelector(r), randomSelector(r)
	default:
		p["podSelector"] = randomSelector(r)
	}
	return p
}

func randomPort(r *rand.Rand) object {
	p := object{}
	if v := pick(r, "", "UDP", "UDP", "UDP", "TCP", "SCTP"); v != "" {
		p["protocol"] = v
	}
	switch r.IntN(5) {
	case 0:
	case 1:
		p["port"] = "web"
	case 2:
		p["port"], p["endPort"] = 80, pick(r, 80, 81, 82)
	default:
		p["port"] = pick(r, 80, 81, 82)
	}
	return p
}

func randomPolicy(r *rand.Rand, name string) object {
	spec := object{"podSelector": randomSelector(r)}
	if types := pick(r, nil, []any{"Ingress"}, []any{"Egress"}, []any{"Ingress", "Egress"}); types != nil {
		spec["policyTypes"] = types
	}
	for key, peers := range map[string]string{"ingress": "from", "egress": "to"} {
		var rules []any
		for range r.IntN(3) {
			rule := object{}
			for _, list := range []string{peers, "ports"} {
				var all []any
				for range r.IntN(4) {
					if list == "ports" {
						all = append(all, randomPort(r))
					} else {
						all = append(all, randomPeer(r))
					}
				}
				if all != nil {
					rule[list] = all
				}
			}
			rules = append(rules, rule)
		}
		if rules != nil {
			spec[key] = rules
		}
	}
	return object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": object{"name": name, "namespace": pick(r, "x", "y")}, "spec": spec}
}

// randomNarrow returns a policy whose rules all have ports by numbers: of many such policies, a pod's chain finds those of a port by a map.
func randomNarrow(r *rand.Rand, name string) object {
	p := randomPolicy(r, name)
	for _, key := range []string{"ingress", "egress"} {
		for _, rule := range list(p["spec"].(object), key) {
			ports := []any{object{"protocol": "UDP", "port": pick(r, 80, 81, 82)}}
			if r.IntN(2) == 0 {
				ports = append(ports, object{"protocol": pick(r, "UDP", "TCP"), "port": pick(r, 80, 81), "endPort": pick(r, 81, 82)})
			}
			rule.(object)["ports"] = ports
		}
	}
	return p
}

func evalSelector(s any, labels map[string]string) bool {
	sel := s.(object)
	if m, ok := sel["matchLabels"]; ok {
		for k, v := range m.(object) {
			if labels[k] != v {
				return false
			}
		}
	}
	for _, e := range list(sel, "matchExpressions") {
		e := e.(object)
		value, has := labels[e["key"].(string)]
		ok := false
		switch e["operator"] {
		case "In":
			ok = has && slices.Contains(list(e, "values"), any(value))
		case "NotIn":
			ok = !has || !slices.Contains(list(e, "values"), any(value))
		case "Exists":
			ok = has
		case "DoesNotExist":
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

func list(o object, key string) []any { all, _ := o[key].([]any); return all }

// world is what the evaluator sees.
type world struct {
	namespaces map[string]map[string]string
	policies   []object
	cluster    []object
	nodes      []node
}

// connection is what a client opens to a server.
type connection struct {
	client, server *pod
	v6             bool
	protocol       string
	port           int
}

// other returns the pod at the other end.
func (c *connection) other(self *pod) *pod {
	if self == c.client {
		return c.server
	}
	return c.client
}

func (c *connection) flow() netpolicy.Flow {
	return netpolicy.Flow{Client: c.client.address(c.v6), Server: c.server.address(c.v6), Protocol: c.protocol, Port: uint16(c.port)}
}

func (c *connection) String() string {
	return fmt.Sprintf("%s %v -> %s %v %s %d IPv6 %v", c.client.Key(), c.client.Labels, c.server.Key(), c.server.Labels, c.protocol, c.port, c.v6)
}

// direction reports whether NetworkPolicies allow a connection on one side.
func (w *world) direction(key, peers string, self *pod, c *connection) bool {
	isolated := false
	for _, p := range w.policies {
		spec := p["spec"].(object)
		if p["metadata"].(object)["namespace"] != self.Namespace || !evalSelector(spec["podSelector"], self.Labels) {
			continue
		}
		kind := map[string]string{"egress": "Egress", "ingress": "Ingress"}[key]
		types := list(spec, "policyTypes")
		applies := slices.Contains(types, any(kind))
		if types == nil {
			applies = kind == "Ingress" || len(list(spec, key)) > 0
		}
		if !applies {
			continue
		}
		isolated = true
		for _, r := range list(spec, key) {
			r := r.(object)
			peerOK, portOK := len(list(r, peers)) == 0, len(list(r, "ports")) == 0
			for _, q := range list(r, peers) {
				peerOK = peerOK || w.peer(q.(object), self.Namespace, c.other(self), c.v6)
			}
			for _, q := range list(r, "ports") {
				portOK = portOK || evalPort(q.(object), c)
			}
			if peerOK && portOK {
				return true
			}
		}
	}
	return !isolated
}

func (w *world) peer(q object, own string, other *pod, v6 bool) bool {
	if b, ok := q["ipBlock"].(object); ok {
		in := func(s any) bool { return netip.MustParsePrefix(s.(string)).Contains(other.address(v6)) }
		return in(b["cidr"]) && !slices.ContainsFunc(list(b, "except"), in)
	}
	if !other.isPod() {
		return false
	}
	if s, ok := q["namespaceSelector"]; ok {
		if !evalSelector(s, w.namespaces[other.Namespace]) {
			return false
		}
	} else if other.Namespace != own {
		return false
	}
	s, ok := q["podSelector"]
	return !ok || evalSelector(s, other.Labels)
}

func evalPort(q object, c *connection) bool {
	protocol, ok := q["protocol"]
	if ok && protocol != c.protocol || !ok && c.protocol != "TCP" {
		return false
	}
	switch v := q["port"].(type) {
	case nil:
		return true
	case string:
		return slices.Contains(c.server.Ports, netpolicy.PodPort{Name: v, Protocol: c.protocol, Port: uint16(c.port)})
	case int:
		if end, ok := q["endPort"].(int); ok {
			return v <= c.port && c.port <= end
		}
		return v == c.port
	}
	return false
}

// sameWithoutAgent compares the chains of an ADD that the agent answers with those that the saved policies give.
func sameWithoutAgent(t *testing.T, table *netpolicy.Table) {
	t.Helper()
	content, err := json.Marshal(table.Save(false))
	var saved choice.Saved
	if err == nil {
		err = coldjson.Unmarshal(content, &saved)
	}
	if err != nil {
		t.Fatal(err)
	}
	pods := table.Ruleset().Pods
	for _, p := range table.Pods() {
		egress, ingress := saved.Choose(p.Namespace, p.Name, p.UID, "", nil)
		if have := pods[p.Addresses[0]]; !p.HostNetwork && (have.Egress != egress || have.Ingress != ingress) {
			t.Errorf("%s: the agent's chains are %+v, those of the saved policies %s and %s", p.Key(), have, egress, ingress)
		}
	}
}

// transferred returns the table that a verb makes from what the agent sends.
func transferred(t *testing.T, table *netpolicy.Table) *netpolicy.Table {
	t.Helper()
	content, err := json.Marshal(table.State())
	var state netpolicy.State
	if err == nil {
		err = json.Unmarshal(content, &state)
	}
	if err != nil {
		t.Fatal(err)
	}
	return state.Table()
}

// arrival is a datagram that a pod received.
type arrival struct {
	text string
	to   *pod
	port int
}

// randomPods returns six pods in two namespaces. With outside, two addresses follow: that of another node, which its pods with hostNetwork
// have, too, and that of a server outside of the cluster.
func randomPods(outside bool) (all []netpolicy.Pod) {
	for i := range 6 {
		all = append(all, netpolicy.Pod{
			Namespace: []string{"x", "y"}[i/3], Name: fmt.Sprint("p", i), UID: fmt.Sprint(i),
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", i+1)), netip.MustParseAddr(fmt.Sprintf("fd09::%d", i+1))},
			Ports:     []netpolicy.PodPort{{Name: "web", Protocol: "UDP", Port: uint16(80 + i%3)}},
		})
	}
	if outside {
		all = append(all, netpolicy.Pod{Name: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.9.1.1"), netip.MustParseAddr("fd09:1::1")}},
			netpolicy.Pod{Name: "outside", Addresses: []netip.Addr{netip.MustParseAddr("10.9.2.1"), netip.MustParseAddr("fd09:2::1")}})
	}
	return all
}

// randomWorld changes the labels of namespaces and pods, and makes NetworkPolicies. It puts all into a table. say is called with each
// policy and returns its JSON.
func randomWorld(t *testing.T, r *rand.Rand, table *netpolicy.Table, pods []*pod, say func(object) string) *world {
	t.Helper()
	w := &world{namespaces: map[string]map[string]string{}}
	for _, ns := range []string{"x", "y"} {
		l := map[string]string{"app": pick(r, labelValues...)}
		table.PutNamespace(ns, l)
		w.namespaces[ns] = map[string]string{"app": l["app"], label.Namespace: ns}
	}
	for _, p := range pods {
		if !p.isPod() {
			continue
		}
		p.Labels = map[string]string{}
		for _, k := range labelKeys {
			if r.IntN(3) > 0 {
				p.Labels[k] = pick(r, labelValues...)
			}
		}
		one := p.Pod
		table.PutPod(&one)
	}
	locals(table)
	n, narrow := 1+r.IntN(4), 0
	if r.IntN(2) == 0 {
		narrow = 12
	}
	for i := range n + narrow {
		p := randomNarrow(r, fmt.Sprint("n", i))
		if i >= narrow {
			p = randomPolicy(r, fmt.Sprint("n", i))
		}
		w.policies = append(w.policies, p)
		put(t, table, say(p))
	}
	return w
}

// documents has the JSON of a world's policies, for the message of a failure.
type documents []string

func (d *documents) add(t *testing.T) func(object) string {
	return func(p object) string {
		doc, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		*d = append(*d, string(doc))
		return string(doc)
	}
}

// TestRandom compares random policies with the evaluator, through real sockets of six pods in two namespaces. After the
// probes the policies are removed, and a marker follows on the way of each probe: what has not arrived before it was
// dropped. The same Table and Filter see all rounds, so each round is a change of the kernel's objects.
func TestRandom(t *testing.T) { random(t, randomRounds(), false, nil) }

// TestRandomCluster does so with ClusterNetworkPolicies too, and with a host-network pod at another node's address and a
// server outside of the cluster.
func TestRandomCluster(t *testing.T) { random(t, randomRounds(), true, nil) }

func randomRounds() int {
	if n, err := strconv.Atoi(os.Getenv("CNIBOX_SOAK")); err == nil {
		return 10 * n
	}
	return 20
}

// arena has pods with sockets of UDP at ports, and the connections between all of them.
type arena struct {
	pods     []*pod
	all      []connection
	senders  map[*pod][2]*net.UDPConn
	arrivals chan arrival
}

func newArena(t *testing.T, some []netpolicy.Pod, ports ...int) *arena {
	forwarding(t)
	a := &arena{senders: map[*pod][2]*net.UDPConn{}, arrivals: make(chan arrival, 10000)}
	for i, one := range some {
		p := routed(t, i, one)
		a.pods = append(a.pods, p)
		var s [2]*net.UDPConn
		for v := range s {
			s[v] = p.listen(t, 2000+v)
		}
		a.senders[p] = s
		for _, port := range ports {
			c := p.listen(t, port)
			go func() {
				b := make([]byte, 100)
				for n, err := c.Read(b); err == nil; n, err = c.Read(b) {
					a.arrivals <- arrival{string(b[:n]), p, port}
				}
			}()
		}
	}
	for _, client := range a.pods {
		for _, server := range a.pods {
			for _, port := range ports {
				for _, v6 := range []bool{false, true} {
					a.all = append(a.all, connection{client, server, v6, "UDP", port})
				}
			}
		}
	}
	return a
}

func (c *connection) text(of string) string { return fmt.Sprintf("%s %s %v", of, c.client.Key(), c.v6) }

// send sends a datagram on each connection.
func (a *arena) send(t *testing.T, text string) {
	t.Helper()
	for i := range a.all {
		c := &a.all[i]
		v := map[bool]int{true: 1}[c.v6]
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.server.address(c.v6), uint16(c.port)))
		if _, err := a.senders[c.client][v].WriteTo([]byte(c.text(text)), to); err != nil {
			t.Fatal(err)
		}
	}
}

// learn sends on each connection until all have arrived: without policies only a neighbour that the kernel has yet to ask loses them.
func (a *arena) learn(t *testing.T) {
	t.Helper()
	const tries = 10
	for try := range tries {
		name := fmt.Sprint("learn ", try)
		a.send(t, name)
		for all := 0; all < len(a.all); {
			select {
			case one := <-a.arrivals:
				if strings.HasPrefix(one.text, name+" ") {
					all++
				}
				if all == len(a.all) {
					return
				}
				continue
			case <-time.After(5 * time.Second):
			}
			break
		}
	}
	t.Fatal("the pods do not reach each other")
}

// passed reports which connections pass. open removes the policies: a marker then follows on the way of each probe, and what has not arrived
// before it was dropped.
func (a *arena) passed(t *testing.T, name string, open func()) func(*connection) bool {
	t.Helper()
	probe, mark := "probe "+name, "mark "+name
	a.send(t, probe)
	open()
	a.send(t, mark)
	got := map[arrival]bool{}
	for marks := 0; marks < len(a.all); {
		select {
		case one := <-a.arrivals:
			got[one] = true
			if strings.HasPrefix(one.text, mark+" ") {
				marks++
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: only %d markers arrived", name, marks)
		}
	}
	return func(c *connection) bool { return got[arrival{c.text(probe), c.server, c.port}] }
}

// random plays rounds. judge is called with the connections of each, unless it is nil.
func random(t *testing.T, rounds int, cluster bool, judge func(*world, []connection)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f := openFilter(t)
	a := newArena(t, randomPods(cluster), 80, 81, 82)
	a.learn(t)
	table := netpolicy.NewTable()
	for round := range rounds {
		var docs documents
		w := randomWorld(t, r, table, a.pods, docs.add(t))
		if cluster {
			w.addCluster(r, table, a.pods[6], docs.add(t))
		}
		ensure(t, f, table)
		sameWithoutAgent(t, table)
		explainer := netpolicy.NewExplainer(transferred(t, table))
		passed := a.passed(t, fmt.Sprint(round), func() {
			for i := range w.policies {
				for _, ns := range []string{"x", "y"} {
					table.RemovePolicy(ns, fmt.Sprint("n", i))
				}
			}
			for _, p := range w.cluster {
				table.RemoveClusterPolicy(p["metadata"].(object)["name"].(string))
			}
			ensure(t, f, table)
		})
		for i := range a.all {
			c := &a.all[i]
			have, want := passed(c), w.passes(c)
			if have != want {
				t.Errorf("round %d: %s: passed %v, want %v, namespaces %v", round, c, have, want, w.namespaces)
			}
			explained := explainer.Explain(c.flow())
			if c.client != c.server && explained.Allowed != want {
				t.Errorf("explained as %+v", explained)
			}
		}
		if judge != nil {
			judge(w, a.all)
		}
		if t.Failed() {
			t.Fatalf("policies:\n%s", strings.Join(docs, "\n"))
		}
	}
}
