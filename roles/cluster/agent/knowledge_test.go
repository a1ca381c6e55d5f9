package agent

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// newKnowledge returns what a node knows that has an interface, a pod network and one peer.
func newKnowledge() *knowledge {
	ip, net := netip.MustParseAddr, netip.MustParsePrefix
	k := &knowledge{
		set: &settings{ipMasq: true}, self: identity{node: "a"},
		config: &cluster.Config{EnableIPv4: true, Network: net("10.244.0.0/16"), Backend: cluster.Backend{Type: backendVXLAN, VNI: 1}},
		own:    &cluster.Node{Name: "a", PublicIP: ip("192.0.2.1"), PodCIDRs: []netip.Prefix{net("10.244.1.0/24")}},
		links: []netops.HostLink{{
			Name: "eth0", Index: 2, MTU: 1500, Up: true, OperUp: true, Default4: true,
			Addresses: []netops.HostAddr{{Prefix: net("192.0.2.1/24")}},
		}},
		macs: map[string]string{"flannel.1": "02:00:00:00:00:01"},
	}
	k.snapshot = &cluster.Snapshot{Config: k.config, Nodes: []*cluster.Node{k.own, {
		Name: "b", PublicIP: ip("192.0.2.2"), PodCIDRs: []netip.Prefix{net("10.244.2.0/24")}, BackendType: backendVXLAN,
		BackendData: []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`),
	}}}
	k.peers = choosePeers(k.snapshot, k.config, k.own, &verdicts{})
	return k
}

// TestDecisions: what a node publishes and programs, decided from what it knows.
func TestDecisions(t *testing.T) {
	k := newKnowledge()
	u, err := k.chooseUnderlay(k.config, nil)
	if err != nil || u.link != "eth0" || u.mtu != 1500 || u.public4 != k.own.PublicIP {
		t.Fatalf("underlay %+v, %v", u, err)
	}
	k.underlay = u
	record := k.buildRecord()
	if vtep, err := cluster.ParseVTEP(record.BackendData); err != nil || vtep.MAC.String() != k.macs["flannel.1"] || record.Name != "a" || record.PublicIP != u.public4 {
		t.Errorf("record %+v, %v", record, err)
	}
	spec, mtu, err := k.spec(false)
	if err != nil || mtu != 1450 || len(spec.Peers) != 1 || spec.Peers[0].Name != "b" || !spec.Prune {
		t.Fatalf("MTU %d, spec %+v, %v", mtu, spec, err)
	}
	if d := spec.Device; d.Name != "flannel.1" || d.MAC != k.macs["flannel.1"] || d.Parent != "eth0" || d.Local != u.local4 {
		t.Errorf("device %+v", d)
	}
	nat, ok := k.nat(false, spec.Device)
	if !ok || !nat.Masquerade || nat.Subnet != k.own.PodCIDRs[0] || nat.Tunnel.VNI != 1 || len(nat.Tunnel.Sources) != 1 {
		t.Errorf("packet filter %+v, %t", nat, ok)
	}
	if _, ok := k.nat(true, nil); ok {
		t.Error("the packet filter has a family without a pod network")
	}
	k.fromMemory = true
	if spec, _, _ := k.spec(false); spec.Prune {
		t.Error("a node removes peers that the saved state lacks")
	}
}

// TestDecisionsOfWireGuard: the MTU of pods follows the interfaces that packets leave through, and pods in a former pod
// network stay local.
func TestDecisionsOfWireGuard(t *testing.T) {
	k := newKnowledge()
	k.config.Backend.Type, k.key, k.underlay.mtu = backendWireGuard, overlay.Secret{8}, 1500
	k.links = append(k.links, netops.HostLink{Index: 3, MTU: 1400}, netops.HostLink{
		Index: 4, MTU: 9000, Addresses: []netops.HostAddr{{Prefix: netip.MustParsePrefix("10.244.9.1/24")}, {Prefix: netip.MustParsePrefix("10.244.2.1/24")}},
	})
	k.devices[0].links = []int{2, 3}
	spec, mtu, err := k.spec(false)
	if err != nil || mtu != 1340 || spec.Nodes[k.snapshot.Nodes[1].PodCIDRs[0]] != k.snapshot.Nodes[1].PublicIP {
		t.Fatalf("MTU %d, spec %+v, %v", mtu, spec, err)
	}
	nat, _ := k.nat(false, spec.Device)
	if nat.Encrypted != "flannel-wg" || len(nat.Local) != 1 || nat.Local[0] != netip.MustParsePrefix("10.244.9.0/24") {
		t.Errorf("packet filter %+v", nat)
	}
}

// TestFaults: why a node cannot decide, or is not ready.
func TestFaults(t *testing.T) {
	inputs := func(k *knowledge) error { return k.inputFault() }
	underlay := func(k *knowledge) error { _, err := k.chooseUnderlay(k.config, nil); return err }
	specs := func(k *knowledge) error { _, _, err := k.spec(false); return err }
	own := func(k *knowledge) error { return errors.Join(k.ownFaults()...) }
	carrier := func(k *knowledge) error { return k.carrierFault("eth0") }
	for _, tt := range []struct {
		name   string
		ask    func(*knowledge) error
		change func(*knowledge)
		want   string
	}{
		{"all is read", inputs, func(*knowledge) {}, ""},
		{"no snapshot", inputs, func(k *knowledge) { k.snapshot = nil }, "the registry has not answered yet"},
		{"no registry", inputs, func(k *knowledge) { k.snapshot, k.registryErr = nil, errors.New("refused") }, "not answered yet: refused"},
		{"a later fault of the registry", inputs, func(k *knowledge) { k.registryErr = errors.New("refused") }, ""},
		{"no configuration", inputs, func(k *knowledge) { k.config, k.configErr = nil, errors.New("no network") }, "no network"},
		{"a later fault of the configuration", inputs, func(k *knowledge) { k.configErr = errors.New("no network") }, ""},
		{"links", inputs, func(k *knowledge) { k.linkErr = errors.New("links") }, "links"},
		{"no route", underlay, func(k *knowledge) { k.links[0].Default4 = false }, "there is no default route"},
		{"nodes in the pod network", underlay, func(k *knowledge) { k.config.Network = netip.MustParsePrefix("192.0.0.0/16") }, `contains 192.0.2.0/24 of interface "eth0"`},
		{"host-gw behind a router", underlay, func(k *knowledge) {
			k.config.Backend.Type, k.set.underlay.ifaces, k.overrides.NodeIP = backendHostGW, []string{"eth0"}, netip.MustParseAddr("198.51.100.1")
		}, "the public address does not belong to the interface"},
		{"carrier", carrier, func(*knowledge) {}, ""},
		{"no carrier", carrier, func(k *knowledge) { k.links[0].OperUp = false }, "is down or has no carrier"},
		{"published", own, func(*knowledge) {}, ""},
		{"not published", own, func(k *knowledge) { k.own = nil }, "not published yet"},
		{"refused", own, func(k *knowledge) { k.own, k.acquireErr = nil, cluster.ErrNotAssigned }, "this node is not published: "},
		{"a conflict", own, func(k *knowledge) { k.acquireErr = cluster.ErrConflict }, cluster.ErrConflict.Error()},
		{"an error of a published node", own, func(k *knowledge) { k.acquireErr = errors.New("timeout") }, ""},
		{"no pod network", own, func(k *knowledge) { k.own.PodCIDRs = nil }, `no IPv4 pod network to node "a"`},
		{"nothing to program", specs, func(k *knowledge) { k.own.PodCIDRs = nil }, "no pod network"},
		{"a foreign pod network", specs, func(k *knowledge) { k.own.PodCIDRs[0] = netip.MustParsePrefix("10.9.0.0/24") }, "10.9.0.0/24 is not within 10.244.0.0/16"},
		{"a small MTU", specs, func(k *knowledge) { k.underlay.mtu = 100 }, "leaves 50 bytes"},
	} {
		k := newKnowledge()
		k.underlay.mtu = 1500
		tt.change(k)
		if err := tt.ask(k); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
