package netpolicy_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// BenchmarkLabel changes a label of one of 100,000 pods.
func BenchmarkLabel(b *testing.B) {
	table, f := largeNode(b)
	old := *table.Pod("ns5", "p99845")
	for i := 0; b.Loop(); i++ {
		p := old
		p.Labels = map[string]string{"app": fmt.Sprint(i % 7), "tier": fmt.Sprint(i % 3)}
		table.PutPod(&p)
		if err := f.Ensure(b.Context(), table.Ruleset()); err != nil {
			b.Fatal(err)
		}
	}
	members := 0
	for _, s := range table.Ruleset().Sets {
		members += s.Len()
	}
	rules := 0
	for _, c := range table.Ruleset().Chains {
		rules += len(c.Rules)
	}
	b.ReportMetric(float64(members), "members")
	b.ReportMetric(float64(rules), "rules")
	b.ReportMetric(float64(len(table.Ruleset().Chains)), "chains")
}

// BenchmarkPolicy changes a port of one of 200 policies.
func BenchmarkPolicy(b *testing.B) {
	table, f := largeNode(b)
	for i := 0; b.Loop(); i++ {
		put(b, table, largePolicy(0, 10+i%2))
		if err := f.Ensure(b.Context(), table.Ruleset()); err != nil {
			b.Fatal(err)
		}
	}
}

// largeNode returns a Table of 100,000 pods. 250 pods of ten namespaces are of this node, where 200 policies select them.
func largeNode(b *testing.B) (*netpolicy.Table, *podfilter.Filter) {
	b.Helper()
	table, f := netpolicy.NewTable(), openFilter(b)
	here := map[string]bool{}
	table.OnNode = func(p *netpolicy.Pod) bool { return here[p.Key()] }
	var locals []netpolicy.Local
	for i := range 100_000 {
		a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i))))
		ns := fmt.Sprint("ns", i%240)
		p := &netpolicy.Pod{Namespace: ns, Name: fmt.Sprint("p", i), UID: fmt.Sprint(i), Addresses: []netip.Addr{a}, Labels: map[string]string{"app": fmt.Sprint(i % 7), "tier": fmt.Sprint(i % 3)}}
		here[p.Key()] = i%240 < 10 && i < 25*240
		table.PutPod(p)
		if here[p.Key()] {
			locals = append(locals, netpolicy.Local{Label: "cnibox:" + p.Key(), Namespace: ns, Name: p.Name, UID: p.UID, Addresses: p.Addresses})
		}
	}
	table.SetLocal(locals)
	for n := range 200 {
		put(b, table, largePolicy(n, 9))
	}
	ensure(b, f, table)
	return table, f
}

// largePolicy returns a policy with 5 ports, 5 ranges, 5 networks and 2 selectors, and one more port.
func largePolicy(n, port int) string {
	ports, peers := "", fmt.Sprintf(`{"podSelector":{"matchLabels":{"app":"%d"}}},{"namespaceSelector":{},"podSelector":{"matchLabels":{"tier":"%d"}}}`, n%7, n%3)
	for i := range 5 {
		ports += fmt.Sprintf(`{"port":%d},{"port":%d,"endPort":%d},`, 100+n+i, 1000*(i+1), 1000*(i+1)+n+1)
		peers += fmt.Sprintf(`,{"ipBlock":{"cidr":"192.0.%d.0/24"}}`, n+i)
	}
	return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"n%d","namespace":"ns%d"},"spec":{"podSelector":{},
		"ingress":[{"from":[%s],"ports":[%s{"port":%d}]}]}}`, n, n%10, peers, ports, port)
}

// manyPolicies returns a Table of 4,800 policies of 240 namespaces, each of which has about one pod of this node, these pods, and the text of
// a policy with one more port.
func manyPolicies(b *testing.B) (*netpolicy.Table, *podfilter.Filter, []netpolicy.Local, func(i, port int) string) {
	b.Helper()
	const namespaces, policies = 240, 4_800
	table, f := netpolicy.NewTable(), openFilter(b)
	here := map[string]bool{}
	table.OnNode = func(p *netpolicy.Pod) bool { return here[p.Key()] }
	var locals []netpolicy.Local
	for i := range 2_400 {
		a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i))))
		p := &netpolicy.Pod{Namespace: fmt.Sprint("n", i%namespaces), Name: fmt.Sprint("p", i), UID: fmt.Sprint(i), Addresses: []netip.Addr{a}, Labels: map[string]string{"app": fmt.Sprint(i % 7)}}
		here[p.Key()] = i < 250
		table.PutPod(p)
		if here[p.Key()] {
			locals = append(locals, netpolicy.Local{Label: "cnibox:" + p.Key(), Namespace: p.Namespace, Name: p.Name, UID: p.UID, Addresses: p.Addresses})
		}
	}
	table.SetLocal(locals)
	policy := func(i, port int) string {
		ports, peers := "", fmt.Sprintf(`{"podSelector":{"matchLabels":{"app":"%[1]d"}}},{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"%[1]d"}}}`, i%7)
		for j := range 5 {
			ports += fmt.Sprintf(`{"port":%d},{"port":%d,"endPort":%d},`, 100+i%50+j, 1000*(j+1), 1000*(j+1)+1+i%50)
			peers += fmt.Sprintf(`,{"ipBlock":{"cidr":"198.%d.%d.0/24"}}`, 18+i%2, (i/2+j)%256)
		}
		rules := fmt.Sprintf(`[{"PEERS":[%s],"ports":[%s{"port":%d}]}]`, peers, ports, port)
		return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"policy-%d","namespace":"n%d"},"spec":{"podSelector":{},
			"policyTypes":["Ingress","Egress"],"ingress":%s,"egress":%s}}`, i, i%namespaces, strings.ReplaceAll(rules, "PEERS", "from"), strings.ReplaceAll(rules, "PEERS", "to"))
	}
	for i := range policies {
		put(b, table, policy(i, 9))
	}
	ensure(b, f, table)
	return table, f, locals, policy
}

// BenchmarkManyPolicies changes a port of one of many policies.
func BenchmarkManyPolicies(b *testing.B) {
	table, f, _, policy := manyPolicies(b)
	for i := 0; b.Loop(); i++ {
		put(b, table, policy(0, 10+i%2))
		if err := f.Ensure(b.Context(), table.Ruleset()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(table.Ruleset().Chains)), "chains")
}

// BenchmarkAttach is the agent's part of an ADD and a DEL on a node with many policies.
func BenchmarkAttach(b *testing.B) {
	table, f, locals, _ := manyPolicies(b)
	last := &locals[len(locals)-1]
	ensure := func(all []netpolicy.Local) {
		table.SetLocal(all)
		if err := f.Ensure(b.Context(), table.Ruleset()); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := f.Delete(b.Context(), last.Label); err != nil {
			b.Fatal(err)
		}
		ensure(locals[:len(locals)-1])
		for _, pending := range []bool{true, false} {
			last.Pending = pending
			ensure(locals)
		}
	}
}

// BenchmarkConnect opens TCP connections to a pod that 22 policies select: without policies, if they allow single ports and the last one
// allows the connection, if this one has a range, and if 200 policies allow the same port from others.
func BenchmarkConnect(b *testing.B) {
	forwarding(b)
	pods := randomPods(false)[:2]
	client, server := routed(b, 0, pods[0]), routed(b, 1, pods[1])
	const port = 9000
	var listener net.Listener
	server.ns.Do(b, func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprint(":", port))
		return err
	})
	defer listener.Close() //nolint:errcheck // of a benchmark
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	allow := func(n int, ports, from string) string {
		return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p%03d","namespace":"x"},"spec":{"podSelector":{},"ingress":[{"ports":[%s],"from":[%s]}]}}`, n, ports, from)
	}
	const everyone = `{"namespaceSelector":{}}`
	for _, shape := range []struct {
		name string
		put  func(n int) string
		n    int
	}{
		{"none", nil, 0},
		{"single ports", func(n int) string { return allow(n, fmt.Sprintf(`{"port":%d}`, port-21+n), everyone) }, 22},
		{"the last has a range", func(n int) string {
			return allow(n, fmt.Sprintf(`{"port":%d,"endPort":%d}`, port-210+10*n, port-210+10*n+5), everyone)
		}, 22},
		{"one port", func(n int) string {
			from := everyone
			if n < 199 {
				from = fmt.Sprintf(`{"ipBlock":{"cidr":"198.18.%d.0/24"}}`, n)
			}
			return allow(n, fmt.Sprintf(`{"port":%d}`, port), from)
		}, 200},
	} {
		b.Run(shape.name, func(b *testing.B) {
			table, f := netpolicy.NewTable(), openFilter(b)
			table.ImplicitNamespaces = true
			for _, p := range pods {
				table.PutPod(&p)
			}
			locals(table)
			for n := range shape.n {
				put(b, table, shape.put(n))
			}
			ensure(b, f, table)
			client.ns.Do(b, func() error {
				for b.Loop() {
					c, err := net.Dial("tcp4", net.JoinHostPort(server.Addresses[0].String(), fmt.Sprint(port)))
					if err != nil {
						return err
					}
					if err := c.(*net.TCPConn).SetLinger(0); err != nil {
						return err
					}
					_ = c.Close()
				}
				return nil
			})
		})
	}
}
