package netpolicy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/podfilter"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/nftlist"
)

// everything has each form of a rule.
const everything = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"all","namespace":"default"},"spec":{
"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Ingress","Egress"],
"ingress":[
 {"from":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16","10.2.3.4/32"]}},{"ipBlock":{"cidr":"2001:db8::/33"}}],
  "ports":[{"port":80},{"port":443},{"protocol":"UDP","port":8000,"endPort":8100},{"protocol":"SCTP"},{"port":"web"}]},
 {"from":[{"ipBlock":{"cidr":"0.0.0.0/0"}},{"ipBlock":{"cidr":"::/0","except":["fd00::/8"]}}]}],
"egress":[{"to":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"Exists"}]}}],"ports":[{"port":"dns","protocol":"UDP"}]},{"ports":[{"port":53,"protocol":"UDP"}]}]}}`

// everyCluster has each form of a rule of a ClusterNetworkPolicy.
const everyCluster = `{"apiVersion":"policy.networking.k8s.io/v1beta1","kind":"ClusterNetworkPolicy","metadata":{"name":"all"},"spec":{"tier":"Admin","priority":5,
"subject":{"namespaces":{}},
"ingress":[{"action":"Pass","from":[{"namespaces":{}},{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"x"}}}}],
  "protocols":[{"tcp":{"destinationPort":{"number":80}}},{"udp":{"destinationPort":{"range":{"start":1,"end":9}}}},{"destinationNamedPort":"web"}]}],
"egress":[{"name":"nodes","action":"Deny","to":[{"nodes":{}},{"networks":["192.0.2.0/24","2001:db8::/64"]}]},{"action":"Accept","to":[{"domainNames":["a.example"]}]}]}}`

func everyTable(t *testing.T) *netpolicy.Table {
	table := netpolicy.NewTable()
	put(t, table, everything)
	put(t, table, everyCluster)
	put(t, table, strings.NewReplacer("Admin", "Baseline", `"all"`, `"base"`).Replace(everyCluster))
	for n := range 5 { // so many that the pod's chain has a map
		putAllowing(t, table, fmt.Sprint("n", n), fmt.Sprintf(`{"port":%d},{"port":9000,"protocol":"UDP"}`, 7000+n))
	}
	put(t, table, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}`)
	put(t, table, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"Hostname","address":"n"}]}}`)
	table.PutPod(&netpolicy.Pod{Namespace: "default", Name: "other", UID: "2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.6")}})
	put(t, table, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny","namespace":"default"},"spec":{"podSelector":{}}}`)
	table.PutPod(&netpolicy.Pod{
		Namespace: "default", Name: "web-0", UID: "1", Labels: map[string]string{"app": "web"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")},
		Ports:     []netpolicy.PodPort{{Name: "web", Protocol: "TCP", Port: 8080}},
	})
	table.SetLocal([]netpolicy.Local{{
		Label: "cnibox:web-0", Namespace: "default", Name: "web-0", UID: "1", Port: "veth0", Bridge: "br0",
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")},
	}})
	return table
}

// TestListing: nft lists each chain as it prints itself, each version of nft lists the table, and a saved table loads again.
func TestListing(t *testing.T) {
	table, f := everyTable(t), openFilter(t)
	ensure(t, f, table)
	var chains []*podfilter.Chain
	for _, c := range table.Ruleset().Chains {
		chains = append(chains, c.Of(false), c.Of(true))
	}
	for _, c := range chains {
		have, err := exec.Command("nft", "-s", "list", "chain", "inet", "cnibox_policy", c.Name).Output()
		if err != nil {
			t.Fatal(err)
		}
		want := "table inet cnibox_policy {\n\t" + strings.ReplaceAll(strings.TrimSuffix(c.String(), "\n"), "\n", "\n\t") + "\n}\n"
		if string(have) != want {
			t.Errorf("nft lists\n%s\nwant\n%s", have, want)
		}
	}
	programs := nftlist.Find(t)
	if err := errors.Join(programs.Check(), programs.Reload(func() error { return nil })); err != nil {
		t.Error(err)
	}
}

// handles lists the tables with the handles of its objects, which change when an object is made again.
func handles(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "-a", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// found returns the part of a list that the parentheses of a pattern match.
func found(t *testing.T, list, pattern string) string {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(list)
	if match == nil {
		t.Fatalf("nothing in the list matches %q:\n%s", pattern, list)
	}
	return match[1]
}

// TestCompared: a second Filter, as after the agent's restart, changes nothing, and restores what another program
// changed.
func TestCompared(t *testing.T) {
	f := openFilter(t)
	ensure(t, f, everyTable(t))
	before := handles(t)
	ensure(t, openFilter(t), everyTable(t))
	if after := handles(t); after != before {
		t.Fatalf("a restart changed\n%s\nto\n%s", before, after)
	}
	set := found(t, before, `set (a_\w+4) \{ # handle \d+\s+type ipv4_addr\s+elements`)
	networks := found(t, before, `set (n_\w+4) \{`)
	ports := found(t, before, `map (m_\w+4) \{ # handle \d+\s+type inet_service : verdict\s+flags interval\s+elements = \{ 7000`)
	chain := found(t, before, `chain (policy_\w+)`)
	handle := regexp.MustCompile(` # handle \d+`)
	plain := func(s string) string { return handle.ReplaceAllString(s, "") }
	for _, change := range []string{
		"flush table inet cnibox_policy", "delete table inet cnibox_policy", "flush ruleset", "flush chain inet cnibox_policy " + chain,
		"flush set inet cnibox_policy " + set, "flush map inet cnibox_policy pod_ingress4",
		"flush map inet cnibox_policy " + ports, "delete element inet cnibox_policy " + ports + " { 7003 }", "add element inet cnibox_policy " + ports + " { 1 : accept }",
		"flush set inet cnibox_policy " + networks, "add element inet cnibox_policy " + networks + " { 203.0.113.0/24 }", "flush chain inet cnibox_policy ingress",
		"add element inet cnibox_policy " + set + " { 192.0.2.1 }", "add chain inet cnibox_policy other",
		"add element inet cnibox_policy pod_egress4 { 192.0.2.1 : goto deny }", "flush chain inet cnibox_policy deny",
		"delete element inet cnibox_policy pod_self6 { fd00::5 . fd00::5 }",
		"flush table bridge cnibox_policy", "delete table bridge cnibox_policy", "flush chain bridge cnibox_policy to_pod", "flush set bridge cnibox_policy pod_port4",
	} {
		for _, kind := range []string{"the same", "another"} {
			t.Run(fmt.Sprintf("%s, %s filter", change, kind), func(t *testing.T) {
				run(t, append([]string{"nft"}, strings.Fields(change)...)...)
				table, after := everyTable(t), ""
				restored := func() bool {
					after = plain(handles(t))
					return sorted(after) == sorted(plain(before))
				}
				what := func() string { return fmt.Sprintf("restored\n%s\nwant\n%s", after, before) }
				if kind == "another" {
					ensure(t, openFilter(t), table)
					if !restored() {
						t.Error(what())
					}
					return
				}
				await.Until(t, func() bool { // it may hear first of what the other filter did
					<-f.Changes()
					ensure(t, f, table)
					ensure(t, f, table) // the first kept nothing of the sets
					return restored()
				}, what)
			})
			ensure(t, f, everyTable(t))
		}
	}
}

// TestRangesRestored: sets of ranges are restored, also if another program joined or divided ranges.
func TestRangesRestored(t *testing.T) {
	f, table := openFilter(t), dualStack()
	put(t, table, ingressTo("a", `{"from":[{"ipBlock":{"cidr":"10.0.0.0/8"}},{"ipBlock":{"cidr":"192.168.0.0/16"}},{"ipBlock":{"cidr":"255.0.0.0/8"}}],
		"ports":[{"port":80},{"port":443},{"port":65530,"endPort":65535}]}`))
	ensure(t, f, table)
	handle := regexp.MustCompile(` # handle \d+`)
	plain := func() string { return sorted(handle.ReplaceAllString(handles(t), "")) }
	before := plain()
	sets := regexp.MustCompile(`set ([rn]_\w+) \{`).FindAllStringSubmatch(before, -1)
	for i, changes := range [][]string{
		{"10.0.0.0-192.168.255.255", "10.0.0.0/9", "10.128.0.0/9", "0.0.0.0/0", "1.0.0.0/8", "255.0.0.0/9"},
		{"80-443", "80-65535", "1-65535", "65530-65534", "443-65529"},
	} {
		for _, elements := range changes {
			run(t, "nft", fmt.Sprintf("flush set inet cnibox_policy %s; add element inet cnibox_policy %[1]s { %s }", sets[i][1], elements))
			after := ""
			await.Until(t, func() bool {
				<-f.Changes()
				ensure(t, f, table)
				after = plain()
				return after == before
			}, func() string { return fmt.Sprintf("after %s:\n%s\nwant\n%s", elements, after, before) })
		}
	}
}

// sorted returns lines in an order that does not depend on that of the objects.
func sorted(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(slices.Sorted(slices.Values(lines)), "\n")
}
