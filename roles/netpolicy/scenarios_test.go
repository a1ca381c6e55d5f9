package netpolicy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/label"
)

// scenarioPods are web, which policies select, two pods of its namespace, two of another one, and a server outside of the cluster.
func scenarioPods() (all []netpolicy.Pod) {
	for i, name := range []string{"x/web", "x/client", "x/other", "y/client", "y/other"} {
		ns, name, _ := strings.Cut(name, "/")
		all = append(all, netpolicy.Pod{
			Namespace: ns, Name: name, UID: fmt.Sprint(i), Labels: map[string]string{"app": name},
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", i+1)), netip.MustParseAddr(fmt.Sprintf("fd09::%d", i+1))},
			Ports:     []netpolicy.PodPort{{Name: "dns", Protocol: "UDP", Port: uint16(80 + i%3)}},
		})
	}
	return append(all, netpolicy.Pod{Name: "outside", Addresses: []netip.Addr{netip.MustParseAddr("10.9.2.1"), netip.MustParseAddr("fd09:2::1")}})
}

// TestScenarios has the cases of kube-router's tests of network policies (test/e2e/netpol of v2.11.1) that concern the meaning of a policy, by our
// reading. Each is played for what web receives and, with the peers of an egress rule, for what it sends.
func TestScenarios(t *testing.T) {
	const (
		anyPort    = ":80,81,82"
		clientPeer = `{"podSelector":{"matchLabels":{"app":"client"}}}`
		teamY      = `{"namespaceSelector":{"matchLabels":{"team":"y"}}}`
		both       = `{"namespaceSelector":{"matchLabels":{"team":"y"}},"podSelector":{"matchLabels":{"app":"client"}}}`
	)
	rule := func(peers, ports string) string { return fmt.Sprintf(`{"PEERS":[%s],"ports":[%s]}`, peers, ports) }
	scenarios := []struct {
		name string
		// rules are those of a policy each, and want the peers with their ports. "" is all.
		rules []string
		want  string
	}{
		{"no policy", nil, ""},
		{"no rule allows", []string{``}, "none"},
		{"an empty rule allows all", []string{`{}`}, ""},
		{"a pod selector", []string{rule(clientPeer, "")}, "x/client" + anyPort},
		{"a namespace selector", []string{rule(teamY, "")}, "y/client" + anyPort + " y/other" + anyPort},
		{"both in one peer are and", []string{rule(both, "")}, "y/client" + anyPort},
		{"both as two peers are or", []string{rule(clientPeer+","+teamY, "")}, "x/client" + anyPort + " y/client" + anyPort + " y/other" + anyPort},
		{"all pods of all namespaces", []string{rule(`{"namespaceSelector":{}}`, "")}, "x/client" + anyPort + " x/other" + anyPort + " y/client" + anyPort + " y/other" + anyPort},
		{"a network", []string{rule(`{"ipBlock":{"cidr":"10.9.2.0/24"}},{"ipBlock":{"cidr":"fd09:2::/64"}}`, "")}, "/outside" + anyPort},
		{"a network without a part", []string{rule(`{"ipBlock":{"cidr":"10.9.0.0/16","except":["10.9.0.0/24"]}},{"ipBlock":{"cidr":"fd09::/16","except":["fd09::/64"]}}`, "")}, "/outside" + anyPort},
		{"a port", []string{rule("", `{"protocol":"UDP","port":81}`)}, "x/client:81 x/other:81 y/client:81 y/other:81 /outside:81"},
		{"a range of ports", []string{rule("", `{"protocol":"UDP","port":80,"endPort":81}`)}, "x/client:80,81 x/other:80,81 y/client:80,81 y/other:80,81 /outside:80,81"},
		{"a protocol without a port", []string{rule(clientPeer, `{"protocol":"UDP"}`)}, "x/client" + anyPort},
		{"another protocol", []string{rule(clientPeer, `{"protocol":"TCP"}`)}, "none"},
		{"a peer and a port are and", []string{rule(clientPeer, `{"protocol":"UDP","port":80}`)}, "x/client:80"},
		{"two rules are or", []string{rule(clientPeer, "") + "," + rule(both, `{"protocol":"UDP","port":82}`)}, "x/client" + anyPort + " y/client:82"},
		{"two policies are or", []string{rule(clientPeer, `{"protocol":"UDP","port":80}`), rule(both, "")}, "x/client:80 y/client" + anyPort},
		{"a policy that allows nothing beside another", []string{``, rule(clientPeer, "")}, "x/client" + anyPort},
		{"names of the greatest length", []string{rule(clientPeer, "")}, "x/client" + anyPort},
	}
	a, f, table := newArena(t, scenarioPods(), 80, 81, 82), openFilter(t), netpolicy.NewTable()
	for _, ns := range []string{"x", "y"} {
		table.PutNamespace(ns, map[string]string{"team": ns, label.Namespace: ns})
	}
	for _, p := range a.pods[:5] {
		table.PutPod(&p.Pod)
	}
	locals(table)
	for i, s := range scenarios {
		for direction, peers := range map[string]string{"Ingress": "from", "Egress": "to"} {
			var names []string
			for n, rules := range s.rules {
				name := fmt.Sprint("p", n)
				if strings.HasPrefix(s.name, "names") {
					name = strings.Repeat("p", 253)
				}
				names = append(names, name)
				put(t, table, fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":%q,"namespace":"x"},"spec":{"podSelector":{"matchLabels":{"app":"web"}},
					"policyTypes":[%q],%q:[%s]}}`, name, direction, strings.ToLower(direction), strings.ReplaceAll(rules, "PEERS", peers)))
			}
			ensure(t, f, table)
			passed := a.passed(t, fmt.Sprint(i, direction), func() {
				for _, name := range names {
					table.RemovePolicy("x", name)
				}
				ensure(t, f, table)
			})
			for c := range a.all {
				c := &a.all[c]
				self, other := c.server, c.client
				if direction == "Egress" {
					self, other = c.client, c.server
				}
				want := self.Name != "web" || other.Name == "web" || s.want == "" || allows(s.want, other.Key(), c.port)
				if have := passed(c); have != want {
					t.Errorf("%s, %s: %s: passed %v", s.name, direction, c, have)
				}
			}
		}
	}
}

// allows reports whether a list such as "x/client:80,81 y/client:82" has a port of a pod.
func allows(list, pod string, port int) bool {
	for _, one := range strings.Fields(list) {
		name, ports, _ := strings.Cut(one, ":")
		if name == pod && slices.Contains(strings.Split(ports, ","), fmt.Sprint(port)) {
			return true
		}
	}
	return false
}
