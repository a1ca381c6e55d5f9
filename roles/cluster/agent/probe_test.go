package agent_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// TestUnheardPeers: the tunnel between two of three nodes drops packets of one address family. Both name each other, and the third node names none.
func TestUnheardPeers(t *testing.T) {
	w := newWorld(t, 3, dual)
	w.startAll("-healthz-ip=127.0.0.1", "-healthz-port=8081")
	peer := regexp.MustCompile(`cnibox_peer_unheard\{peer="(.*)"} 1`)
	unheard := func(n *node) string {
		_, page := n.get("/metrics")
		var all []string
		for _, m := range peer.FindAllStringSubmatch(page, -1) {
			all = append(all, m[1])
		}
		return strings.Join(all, " ")
	}
	want := func(names ...string) {
		t.Helper()
		for i, n := range w.nodes {
			w.within(func() bool { return unheard(n) == names[i] }, func() string { return fmt.Sprintf("%s does not hear %q, want %q", n.name, unheard(n), names[i]) })
		}
	}
	w.nodes[0].exec("nft", fmt.Sprintf("table ip x { chain i { type filter hook input priority -200; ip saddr %s udp dport 8472 drop; }; }", w.nodes[1].addr4))
	want("k8s-dev-1", "k8s-dev-0", "")
	if u := w.nodes[0].status().Unheard; len(u) != 1 || u[0].Peer != "k8s-dev-1" {
		t.Errorf("status: %+v", u)
	}
	out, err := w.nodes[0].verb("agent status", nil)
	must(t, err)
	if want := roles.Warning("1 of 2 nodes do not answer through the tunnel"); w.nodes[0].exit != want { //nolint:errorlint // nothing wraps it
		t.Errorf("error %v, want %v", w.nodes[0].exit, want)
	}
	if text := fmt.Sprint(out); !strings.Contains(text, "warning: k8s-dev-1 does not answer k8s-dev-0 through the tunnel since ") {
		t.Errorf("status: %s", text)
	}
	w.nodes[0].exec("nft", "delete table ip x")
	want("", "", "")
	for _, p := range w.nodes[0].status().Nodes {
		if isLost := p.LossPercent > 0; isLost != (p.Peer == "k8s-dev-1" && p.Family == "IPv4") {
			t.Errorf("%s, %s: %d %% of the requests lost", p.Peer, p.Family, p.LossPercent)
		}
	}
	if _, page := w.nodes[0].get("/metrics"); !regexp.MustCompile(`(?m)^cnibox_peer_loss_ratio\{peer="k8s-dev-1",family="IPv4"} 0\.`).MatchString(page) {
		t.Errorf("metrics: %s", page)
	}
	w.nodes[0].exec("nft", fmt.Sprintf("table ip6 x { chain i { type filter hook input priority -200; ip6 saddr %s udp dport 8472 drop; }; }", w.nodes[1].addr6))
	want("k8s-dev-1", "k8s-dev-0", "")
	w.nodes[0].exec("nft", "delete table ip6 x")
	want("", "", "")
}
