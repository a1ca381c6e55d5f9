package netpolicy_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/test/await"
)

const (
	clusterHead = `{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":"c"},"spec":`
	aSubject    = `"tier":"Admin","priority":1,"subject":{"namespaces":{}}`
)

// TestClusterFaults: what the CRD's validation refuses is refused, with its path.
func TestClusterFaults(t *testing.T) {
	egress := func(rule string) string { return "{" + aSubject + `,"egress":[{"action":"Accept",` + rule + "}]}" }
	many := func(item string) string { return "[" + strings.Repeat(item+",", 25) + item + "]" }
	for spec, want := range map[string]string{
		`{"tier":"admin","priority":1,"subject":{"namespaces":{}}}`:                               `spec.tier: "admin" is not Admin or Baseline`,
		`{"tier":"Admin","subject":{"namespaces":{}}}`:                                            `spec.priority: needs a number from 0 to 1000`,
		`{"tier":"Admin","priority":1001,"subject":{"namespaces":{}}}`:                            `spec.priority: needs a number`,
		`{"tier":"Admin","priority":1}`:                                                           `spec.subject: needs namespaces or pods`,
		`{"tier":"Admin","priority":1,"subject":{"nodes":{}}}`:                                    `spec.subject: needs namespaces or pods`,
		`{"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabel":{}}}}`:                `spec.subject: json: unknown field "matchLabel"`,
		"{" + aSubject + `,"ingress":[{"action":"Accept","from":[{"networks":["10.0.0.0/8"]}]}]}`: `spec.ingress[0].from[0]: needs namespaces or pods`,
		"{" + aSubject + `,"ingress":[{"action":"Allow","from":[{"namespaces":{}}]}]}`:            `spec.ingress[0].action: "Allow" is not Accept, Deny or Pass`,
		"{" + aSubject + `,"ingress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`:               `spec.ingress[0]: has the peers of the other direction`,
		"{" + aSubject + `,"egress":` + many(`{"action":"Deny","to":[{"namespaces":{}}]}`) + "}":  `spec.egress: has 26 items: use 0 to 25`,
		egress(`"to":[]`):   `spec.egress[0].to: has 0 items: use 1 to 25`,
		egress(`"to":[{}]`): `spec.egress[0].to[0]: needs one of namespaces, pods, nodes, networks`,
		egress(`"to":[{"nodes":{},"namespaces":{}}]`):                                                              `and no other field`,
		egress(`"to":[{"networks":["10.0.0.1"]}]`):                                                                 `spec.egress[0].to[0].networks[0]: "10.0.0.1" is not a network`,
		egress(`"to":[{"nodes":{"matchExpressions":[{"key":"a","operator":"Near"}]}}]`):                            `spec.egress[0].to[0].nodes.matchExpressions[0].operator: "Near"`,
		egress(`"to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"-":"b"}}}}]`):                 `pods.podSelector.matchLabels: "-" is not a label's key`,
		egress(`"name":"` + strings.Repeat("x", 101) + `","to":[{"namespaces":{}}]`):                               `name: is longer than 100`,
		egress(`"to":[{"namespaces":{}}],"protocols":[]`):                                                          `protocols: has 0 items`,
		egress(`"to":[{"namespaces":{}}],"protocols":[{}]`):                                                        `protocols[0]: needs one of tcp, udp, sctp`,
		egress(`"to":[{"namespaces":{}}],"protocols":[{"tcp":{}}]`):                                                `protocols[0].tcp.destinationPort: needs number or range`,
		egress(`"to":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":65536}}}]`):              `not 1 to 65535`,
		egress(`"to":[{"namespaces":{}}],"protocols":[{"udp":{"destinationPort":{"range":{"start":9,"end":9}}}}]`): `start must be less than end`,
		egress(`"to":[{"networks":["10.0.0.0/8"]}],"protocols":[{"destinationNamedPort":"web"}]`):                  `destinationNamedPort: excludes nodes, networks`,
		egress(`"to":[{"namespaces":{}}],"protocols":[{"icmp":{}}]`):                                               `unknown field "icmp"`,
	} {
		if _, err := netpolicy.Decode([]byte(clusterHead + spec + "}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	_, err := netpolicy.Decode([]byte(`{"apiVersion":"policy.networking.k8s.io/v1alpha1","kind":"AdminNetworkPolicy","metadata":{"name":"a"}}`))
	if err == nil || !strings.Contains(err.Error(), "write it as a ClusterNetworkPolicy") {
		t.Error(err)
	}
}

// TestClusterClosed: a rule that is not understood fails closed, and its policy's other rules stay. A policy whose subject or tier is not
// understood denies what its rules match, for all pods.
func TestClusterClosed(t *testing.T) {
	const known = `"namespaces":{"matchLabels":{"a":"b"}}`
	for _, c := range []struct {
		name, spec string
		// want are the actions of the egress rules, with ! if a rule is for all peers.
		want string
	}{
		{"accept", `{` + aSubject + `,"egress":[{"action":"Accept","to":[{}]},{"action":"Deny","to":[{` + known + `}]}]}`, "Deny"},
		{"deny", `{` + aSubject + `,"egress":[{"action":"Deny","to":[{` + known + `},{"future":1}]},{"action":"Accept","to":[{` + known + `}]}]}`, "Deny! Accept"},
		{"pass", `{` + aSubject + `,"egress":[{"action":"Pass","to":[{` + known + `}],"protocols":[{"icmp":{}}]}]}`, "Deny!"},
		{"action", `{` + aSubject + `,"egress":[{"action":"Log","to":[{` + known + `}]}]}`, "Deny!"},
		{"domain names", `{` + aSubject + `,"egress":[{"action":"Accept","to":[{"domainNames":["a.example"]},{` + known + `}]},{"action":"Deny","to":[{"domainNames":["b.example"]}]}]}`, "Deny!"},
		{"subject", `{"tier":"Admin","priority":1,"subject":{"future":{}},"egress":[{"action":"Accept","to":[{` + known + `}]},{"action":"Pass","to":[{` + known + `}]}]}`, "Deny"},
		{"tier", `{"tier":"Future","priority":1,"subject":{` + known + `},"egress":[{"action":"Accept","to":[{` + known + `}]},{"action":"Deny","to":[{` + known + `}]}]}`, "Deny"},
		{"no type", `{` + aSubject + `,"egress":[{"action":"Deny","to":"all"},7]}`, "Deny! Deny!"},
	} {
		var spec netpolicy.ClusterSpec
		if err := json.Unmarshal([]byte(c.spec), &spec); err != nil {
			t.Fatal(err)
		}
		p, _ := spec.Policy("c")
		var have []string
		for _, r := range p.Rules[netpolicy.Egress] {
			text := string(r.Action)
			if len(r.Peers) == 0 {
				text += "!"
			}
			have = append(have, text)
		}
		if strings.Join(have, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, have, c.want)
		}
		if closed := c.name == "subject" || c.name == "tier"; closed && (len(p.Namespaces) > 0 || !p.Admin) {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// TestUnenforced: domain names are valid, and named as not enforced.
func TestUnenforced(t *testing.T) {
	o, err := netpolicy.Decode([]byte(everyCluster))
	if err != nil || !slices.Equal(o.Cluster.Unenforced, []string{"spec.egress[1].to[0].domainNames"}) {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestUnknownNamespace: the labels of a namespace decide which cluster policies select its pods. Without them all is denied.
func TestUnknownNamespace(t *testing.T) {
	table := netpolicy.NewTable()
	a := netip.MustParseAddr("10.0.0.5")
	table.PutPod(&netpolicy.Pod{Namespace: "x", Name: "p", UID: "1", Addresses: []netip.Addr{a}})
	locals(table)
	chains := func() string { p := table.Ruleset().Pods[a]; return p.Egress + " " + p.Ingress }
	if have := chains(); have != " " {
		t.Errorf("without policies: %q", have)
	}
	put(t, table, clusterHead+`{`+aSubject+`,"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}}`)
	if have := chains(); have != "deny deny" {
		t.Errorf("unknown namespace: %q", have)
	}
	saved := table.Save(false)
	if egress, ingress := saved.Choose("x", "p", "1", "", nil); egress+" "+ingress != "deny deny" {
		t.Errorf("unknown saved namespace: %s %s", egress, ingress)
	}
	table.PutNamespace("x", nil)
	if have := chains(); !strings.HasPrefix(have, "pods_") || !strings.HasSuffix(have, " ") {
		t.Errorf("known namespace: %q", have)
	}
	table.RemoveNamespace("x")
	table.ImplicitNamespaces = true
	if have := chains(); !strings.HasPrefix(have, "pods_") {
		t.Errorf("implicit namespace: %q", have)
	}
}

// TestOwnAddress: through a Service, NetworkPolicies let a pod reach itself, and cluster policies do not. The node reaches a pod to
// which cluster policies deny everything: so do kubelet's probes.
func TestOwnAddress(t *testing.T) {
	forwarding(t)
	p := routed(t, 0, netpolicy.Pod{Namespace: "default", Name: "p", UID: "1", Addresses: []netip.Addr{netip.MustParseAddr("10.9.3.1"), netip.MustParseAddr("fd09:3::1")}})
	run(t, "nft", `table ip svc {
		chain pre { type nat hook prerouting priority -100; ip daddr 10.99.0.1 dnat to 10.9.3.1; }
		chain post { type nat hook postrouting priority 100; oifname "pod0" masquerade; }
	}`)
	t.Cleanup(func() { run(t, "nft", "delete", "table", "ip", "svc") })
	f, table := openFilter(t), netpolicy.NewTable()
	table.ImplicitNamespaces = true
	table.PutPod(&p.Pod)
	locals(table)
	server := map[int]*net.UDPConn{80: p.listen(t, 80), 81: p.listen(t, 81)}
	client := p.listen(t, 2000)
	node, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	sendTo := func(c *net.UDPConn, address string) {
		t.Helper()
		if _, err := c.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address))); err != nil {
			t.Fatal(err)
		}
	}
	arrives := func(port int) {
		t.Helper()
		_ = server[port].SetReadDeadline(await.Deadline())
		if _, err := server[port].Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, table, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"none"},"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"]}}`)
	ensure(t, f, table)
	for _, port := range []int{80, 81} {
		sendTo(client, fmt.Sprint("10.99.0.1:", port))
		arrives(port)
	}
	put(t, table, clusterHead+`{`+aSubject+`,"ingress":[{"action":"Deny","from":[{"namespaces":{}}],"protocols":[{"udp":{"destinationPort":{"number":80}}}]}]}}`)
	ensure(t, f, table)
	sendTo(client, "10.99.0.1:80")
	sendTo(client, "10.99.0.1:81")
	arrives(81)
	if text := received(t, server[80]); text != "" {
		t.Errorf("a denied connection to itself: %q", text)
	}
	put(t, table, clusterHead+`{`+aSubject+`,"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`)
	ensure(t, f, table)
	sendTo(node, "10.9.3.1:80")
	arrives(80)
}
