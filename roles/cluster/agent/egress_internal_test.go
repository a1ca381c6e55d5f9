package agent

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
)

// TestEgressWireGuard: with the backend wireguard the view names the flag, whose pods' packets are dropped then.
func TestEgressWireGuard(t *testing.T) {
	a := &agent{families: [2]*family{{}, {v6: true}}, knowledge: knowledge{
		set: &settings{}, own: &cluster.Node{}, snapshot: &cluster.Snapshot{}, config: &cluster.Config{EnableIPv4: true, Backend: cluster.Backend{Type: backendWireGuard}},
	}}
	if v := a.egressView(t.Context()); v.Fault == nil || !strings.Contains(v.Fault.Error(), "-egress-networks: the backend is wireguard") {
		t.Errorf("fault %v", v.Fault)
	}
	a.config.Backend.Type = backendVXLAN
	if v := a.egressView(t.Context()); v.Fault != nil {
		t.Error(v.Fault)
	}
}

// TestEgressFlags: wrong combinations name what is missing.
func TestEgressFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-egress-networks=203.0.113.0/28":                                                     "need -kube-subnet-mgr",
		"-kube-subnet-mgr -egress-except=192.0.2.0/24":                                        "no effect without -egress-networks",
		"-kube-subnet-mgr -egress-networks=203.0.113.7/28":                                    "is not a network",
		"-kube-subnet-mgr -egress-networks=169.254.0.0/24":                                    "overlaps 169.254.0.0/16",
		"-kube-subnet-mgr -egress-networks=203.0.113.0/28,2001:db8::/124 -egress-except=::/0": "",
	} {
		_, err := parseFlags("agent", "", strings.Fields(args), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
