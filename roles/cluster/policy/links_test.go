package policy_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

// elements lists the elements of the sets of pods, by set.
func elements(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, family := range []string{"inet", "bridge"} {
		out, _ := exec.Command("nft", "list", "table", family, "cnibox_policy").Output() // it may not exist yet
		for block := range strings.SplitSeq(string(out), "\n\t}") {
			name := regexp.MustCompile(`(?:set|map) (pod_\w+)`).FindStringSubmatch(block)
			_, list, found := strings.Cut(block, "elements = {")
			if name == nil || !found {
				continue
			}
			for one := range strings.SplitSeq(strings.TrimRight(list, " \t\n}"), ",") {
				all[name[1]] = append(all[name[1]], strings.Join(strings.Fields(comment.ReplaceAllString(one, "")), " "))
			}
			slices.Sort(all[name[1]])
		}
	}
	return all
}

// TestLinks: every pod of the node has the elements that say which link, addresses and MAC are its own: pods that policies select and others,
// on bridges and elsewhere. An agent, an ADD without one and an agent after that make the same ones, and DEL leaves none.
func TestLinks(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	pods := []*pod{n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web")), n.add(n.onRouted("ptp", 4)), n.add(n.onRouted("routed", 5))}
	second := n.pod(2, 6, "")
	second.call.IfName = "net1"
	pods = append(pods, n.add(second))
	awaitRules(t, "10.1.0.3")
	made := elements(t)
	want := func(set string, all ...string) {
		t.Helper()
		slices.Sort(all)
		if !slices.Equal(made[set], all) {
			t.Errorf("%s has %q, want %q", set, made[set], all)
		}
	}
	quoted := func(p *pod) string { return fmt.Sprintf("%q", p.link()) }
	want("pod_address4", "10.1.0.2", "10.1.0.3", "10.8.0.4", "10.8.0.5", "10.2.0.6")
	want("pod_self6", "fd00:1::2 . fd00:1::2", "fd00:1::3 . fd00:1::3", "fd00:2::6 . fd00:2::6", "fd00:8::4 . fd00:8::4", "fd00:8::5 . fd00:8::5")
	want("pod_links", quoted(pods[2]), quoted(pods[3]))
	want("pod_link4", quoted(pods[2])+" . 10.8.0.4", quoted(pods[3])+" . 10.8.0.5")
	want("pod_ports", quoted(pods[0]), quoted(pods[1]), quoted(pods[4]))
	want("pod_port4", quoted(pods[0])+" . 10.1.0.2", quoted(pods[1])+" . 10.1.0.3", quoted(pods[4])+" . 10.2.0.6")
	want("pod_bridged4", "10.1.0.1", "10.2.0.1", "10.1.0.2", "10.1.0.3", "10.8.0.4", "10.8.0.5", "10.2.0.6")
	want("pod_selected4", "10.1.0.3")
	want("pod_ports_ingress", quoted(pods[1]))
	want("pod_bridges", `"br1"`, `"br2"`)
	want("pod_any4")
	macs := []string{link(t, "br1"), link(t, "br2"), pods[0].mac(t).String(), pods[1].mac(t).String(), second.ns.Link(t, "net1").Attrs().HardwareAddr.String()}
	want("pod_mac", macs...)
	if len(made["pod_bridged6"]) != 12 { // with those of MACs
		t.Errorf("addresses of bridges' ports: %q", made["pod_bridged6"])
	}
	same := func(what string) {
		t.Helper()
		await.Until(t, func() bool { return fmt.Sprint(elements(t)) == fmt.Sprint(made) }, func() string {
			return fmt.Sprintf("%s:\n%q\nwant\n%q", what, elements(t), made)
		})
	}
	run(t, "nft flush ruleset")
	same("after nft flush ruleset")
	run(t, "nft flush set bridge cnibox_policy pod_port_mac")
	same("after nft flush set")
	stop()
	for _, p := range pods {
		n.del(p)
	}
	run(t, "nft delete table inet cnibox_policy")
	run(t, "nft delete table bridge cnibox_policy")
	for _, p := range pods {
		n.add(p)
	}
	made["pod_ingress4"] = []string{"10.1.0.3 : goto deny"} // until the agent runs
	made["pod_ingress6"] = []string{"fd00:1::3 : goto deny"}
	same("without the agent")
	stop = n.start()
	awaitRules(t, "10.1.0.3")
	delete(made, "pod_ingress4")
	delete(made, "pod_ingress6")
	await.Until(t, func() bool {
		have := elements(t)
		delete(have, "pod_ingress4")
		delete(have, "pod_ingress6")
		return fmt.Sprint(have) == fmt.Sprint(made)
	}, func() string { return fmt.Sprintf("after the agent's start:\n%q\nwant\n%q", elements(t), made) })
	for _, p := range pods {
		n.del(p)
	}
	await.Until(t, func() bool { return len(elements(t)) == 0 }, func() string { return fmt.Sprintf("after DEL: %q", elements(t)) })
	stop()
}

// link returns the MAC of a link of the host.
func link(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("ip", "-o", "link", "show", "dev", name).Output()
	mac := regexp.MustCompile(`link/ether (\S+)`).FindStringSubmatch(string(out))
	if err != nil || mac == nil {
		t.Fatal(err, string(out))
	}
	return mac[1]
}

// onRouted returns a pod of a network without a bridge.
func (n *node) onRouted(kind string, host int) *pod {
	n.t.Helper()
	p := n.pod(8, host, "")
	p.call.Type = kind
	p.call.Conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net8","type":%q,"ipam":{"type":"static","addresses":[
		{"address":"10.8.0.%d/24","gateway":"10.8.0.1"},{"address":"fd00:8::%[2]d/64","gateway":"fd00:8::1"}]}}`, kind, host)
	return p
}

// TestEarlierTables: an ADD without the agent adds a pod to tables that an earlier version made, and the agent completes them.
func TestEarlierTables(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	near := n.add(n.pod(1, 2, ""))
	await.Until(t, func() bool { return len(elements(t)["pod_mac"]) == 2 }, func() string { return "no elements" })
	stop()
	for _, line := range []string{
		"flush table inet cnibox_policy", "delete set inet cnibox_policy pod_address4", "flush table bridge cnibox_policy",
		"delete set bridge cnibox_policy pod_mac", "delete set bridge cnibox_policy pod_port_mac", "delete chain bridge cnibox_policy from_arp",
	} {
		run(t, "nft "+line)
	}
	web := n.add(n.pod(1, 3, "app=web"))
	awaitDenied(t, "10.1.0.3")
	n.start()
	awaitRules(t, "10.1.0.3")
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.more(allowed, "the allowed port")
	n.none(denied, "after the agent's start")
}
