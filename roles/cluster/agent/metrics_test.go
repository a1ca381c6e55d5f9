package agent_test

import (
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// metric returns the value of a sample of the agent, or -1 if there is none.
func (n *node) metric(sample string) float64 {
	n.w.t.Helper()
	_, text := n.get("/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, sample+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			must(n.w.t, err)
			return v
		}
	}
	return -1
}

// TestMetrics: the metrics follow peers, repairs, the registry, pools and calls. promtool
// accepts them with a hostile network name.
func TestMetrics(t *testing.T) {
	w := newWorld(t, 1, vxlan)
	n := w.nodes[0]
	n.start("-healthz-port=8081", "-healthz-ip=127.0.0.1")
	want := func(sample string, v float64) {
		t.Helper()
		w.within(func() bool { return n.metric(sample) == v }, func() string {
			_, text := n.get("/metrics")
			return "want " + sample + " " + strconv.FormatFloat(v, 'g', -1, 64) + ":\n" + text
		})
	}
	want("cnibox_agent_ready", 1)
	want("cnibox_state_readable", 1)
	want("cnibox_registry_age_seconds", 0)
	want(`cnibox_peers_wanted{family="IPv4"}`, 0)

	twin := w.record(n.name)
	twin.Name, twin.PublicIP, twin.PodCIDRs = "x", netip.MustParseAddr("172.17.8.201"), []netip.Prefix{netip.MustParsePrefix("10.244.201.0/24")}
	twin.BackendData = []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`)
	w.publish(twin)
	twin.Name, twin.PodCIDRs = "y", []netip.Prefix{netip.MustParsePrefix("10.244.202.0/24")}
	w.publish(twin)
	want(`cnibox_peers_wanted{family="IPv4"}`, 2)
	want(`cnibox_peers_programmed{family="IPv4"}`, 1)
	want(`cnibox_peers_failed{family="IPv4"}`, 1)
	if n.metric("cnibox_program_duration_seconds_count") < 1 {
		t.Error("the time to program is not counted")
	}

	n.ip("route del 10.244.201.0/24")
	want(`cnibox_repairs_total{kind="route"}`, 1)
	n.exec("nft", "delete", "table", "inet", "cnibox_overlay")
	want(`cnibox_repairs_total{kind="packet filter"}`, 1)

	p := n.attachBy("bridge", `{"cniVersion":"1.0.0","name":"a.b","type":"bridge","bridge":"m0",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.99.0.0/24"}],[{"subnet":"2001:db8:99::/64"}]]}}`)
	want(`cnibox_attachments{network="a.b"}`, 1)
	want(`cnibox_leases{network="a.b",family="IPv4"}`, 1)
	want(`cnibox_leases{network="a.b",family="IPv6"}`, 1)
	want(`cnibox_pool_addresses{network="a.b",family="IPv4"}`, 253)
	want(`cnibox_pool_addresses{network="a.b",family="IPv6"}`, 1<<64)
	want(`cnibox_cni_call_duration_seconds_count{role="bridge",verb="ADD",code="0"}`, 1)
	twice := n.Cmd(p.call) // an ADD without a DEL
	n.ns.Do(t, func() error {
		if err := twice.Run(); err == nil {
			t.Error("a second ADD succeeded")
		}
		return nil
	})
	want(`cnibox_cni_call_duration_seconds_count{role="bridge",verb="ADD",code="105"}`, 1)
	n.detach(p)
	want(`cnibox_leases{network="a.b",family="IPv4"}`, 0)
	want(`cnibox_cni_call_duration_seconds_count{role="bridge",verb="DEL",code="0"}`, 1)

	hostile := "q\"\\\n{}\u2028"
	must(t, n.host().Store.Update(t.Context(), func(tx *store.Tx) error {
		return tx.PutAttachment(&store.Attachment{Key: store.Key{Network: hostile, ContainerID: "c", IfName: "eth0"}, Created: time.Now()})
	}))
	want(`cnibox_attachments{network="q\"\\\n{}`+"\u2028"+`"}`, 1)
	must(t, os.Rename(w.dir, w.dir+".away"))
	w.within(func() bool { return n.metric("cnibox_registry_age_seconds") > 0 }, func() string { return "the loss of the registry is not seen" })
	_, text := n.get("/metrics")
	check := exec.Command("../../../bin/prometheus/usr/bin/promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text + "\n")
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v (sh test/apt.sh unpacks it)\n%s\n%s", err, out, text)
	}
	must(t, os.Rename(w.dir+".away", w.dir))
	want("cnibox_registry_age_seconds", 0)
}
