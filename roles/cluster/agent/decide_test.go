package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store/cluster"
)

// newKnowledge returns what a node knows that has an interface, a pod network and one peer.
func newKnowledge() *knowledge {
	ip, net := netip.MustParseAddr, netip.MustParsePrefix
	k := &knowledge{
		set: &settings{ipMasq: true}, self: identity{node: "a"},
		config: &cluster.Config{EnableIPv4: true, Network: net("10.244.0.0/16"), SubnetLen: 24, SubnetMin: ip("10.244.1.0"), SubnetMax: ip("10.244.255.0"), Backend: cluster.Backend{Type: backendVXLAN, VNI: 1}},
		own:    &cluster.Node{Name: "a", PublicIP: ip("192.0.2.1"), PodCIDRs: []netip.Prefix{net("10.244.1.0/24")}},
		links: []netops.HostLink{{
			Name: "eth0", Index: 2, MTU: 1500, Up: true, OperUp: true, Default4: true,
			Addresses: []netops.HostAddr{{Prefix: net("192.0.2.1/24")}},
		}},
		choices: choices{macs: map[string]string{"flannel.1": "02:00:00:00:00:01"}, known: &verdicts{}},
	}
	k.snapshot = &cluster.Snapshot{Config: k.config, Nodes: []*cluster.Node{k.own, {
		Name: "b", PublicIP: ip("192.0.2.2"), PodCIDRs: []netip.Prefix{net("10.244.2.0/24")}, BackendType: backendVXLAN,
		BackendData: []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`),
	}}}
	return k
}

// TestDecide: what a node publishes and programs, decided from what it knows.
func TestDecide(t *testing.T) {
	k := newKnowledge()
	before := *k
	d := k.decide(nil)
	if !reflect.DeepEqual(before, *k) {
		t.Errorf("the decision changed what the node knows: %+v, before %+v", *k, before)
	}
	if u := d.underlay; len(d.faults) > 0 || len(d.macs) > 0 || !d.programs || u.link != "eth0" || u.mtu != 1500 || u.public4 != k.own.PublicIP {
		t.Fatalf("decision %+v", d)
	}
	if vtep, err := cluster.ParseVTEP(d.publish.node.BackendData); err != nil || vtep.MAC.String() != k.macs["flannel.1"] || d.publish.node.Name != "a" || d.publish.node.PublicIP != d.underlay.public4 {
		t.Errorf("record %+v, %v", d.publish, err)
	}
	f := d.families[0]
	if f.err != nil || f.mtu != 1450 || len(f.spec.Peers) != 1 || f.spec.Peers[0].Name != "b" || !f.spec.Prune {
		t.Fatalf("family %+v", f)
	}
	if v := f.spec.Device; v.Name != "flannel.1" || v.MAC != k.macs["flannel.1"] || v.Parent != "eth0" || v.Local != d.underlay.local4 {
		t.Errorf("device %+v", v)
	}
	if nat := f.nat; nat == nil || !nat.Masquerade || nat.Subnet != k.own.PodCIDRs[0] || nat.Tunnel.VNI != 1 || len(nat.Tunnel.Sources) != 1 {
		t.Errorf("packet filter %+v", nat)
	}
	if !reflect.DeepEqual(d.families[1], familyDecision{}) {
		t.Errorf("a family that the configuration lacks: %+v", d.families[1])
	}
	k.choices = d.choices
	if d := k.decide(nil); d.publish != nil || d.altered || d.peers != k.peers {
		t.Errorf("the same again: %+v", d)
	}
}

// TestDecideLater: decisions after something has changed. Each begins with the choices of a first one.
func TestDecideLater(t *testing.T) {
	own := func(k *knowledge, change func(*cluster.Node)) {
		k.snapshot = &cluster.Snapshot{Config: k.config, Nodes: slices.Clone(k.snapshot.Nodes)}
		changed := *k.own
		change(&changed)
		k.snapshot.Nodes[0] = &changed
	}
	for _, tt := range []struct {
		name   string
		change func(*knowledge)
		// want has the faults; after a publication "publish" and the pod networks, "altered"; "kernel" if it is programmed, with the
		// error of IPv4.
		want string
	}{
		{"nothing", func(*knowledge) {}, "kernel"},
		{"another snapshot", func(k *knowledge) { own(k, func(*cluster.Node) {}) }, "kernel"},
		{"the record was changed", func(k *knowledge) { own(k, func(n *cluster.Node) { n.BackendType = "other" }) }, "publish [] altered kernel"},
		{"the record was removed", func(k *knowledge) { k.snapshot = &cluster.Snapshot{Config: k.config, Nodes: k.snapshot.Nodes[1:]} }, "publish [10.244.1.0/24] altered kernel"},
		{"the record was removed, and the registry chooses", func(k *knowledge) {
			k.self.assigned, k.snapshot = true, &cluster.Snapshot{Config: k.config, Nodes: k.snapshot.Nodes[1:]}
		}, "publish [] altered kernel"},
		{"denied", func(k *knowledge) { k.acquireErr = cluster.ErrNotAssigned }, "kernel"},
		{"denied, another snapshot", func(k *knowledge) { k.acquireErr = cluster.ErrNotAssigned; own(k, func(*cluster.Node) {}) }, "publish [] kernel"},
		{"not published", func(k *knowledge) { k.own = nil }, "this node is not published yet;"},
		{"no route to the nodes", func(k *knowledge) { k.links[0].Default4 = false }, "no interface to the other nodes; kernel"},
		{"no carrier", func(k *knowledge) { k.links[0].OperUp = false }, `interface "eth0" is down or has no carrier; kernel`},
		{"from memory", func(k *knowledge) { k.fromMemory = true; own(k, func(n *cluster.Node) { n.BackendType = "other" }) }, "kernel"},
		{"a conflict", func(k *knowledge) { k.acquireErr = cluster.ErrConflict }, "held by another node; kernel"},
		{"another MTU", func(k *knowledge) { k.links[0].MTU = 100 }, "kernel the interface's MTU of 100"},
		{"another pod network", func(k *knowledge) {
			k.own = &cluster.Node{Name: "a", PublicIP: k.own.PublicIP, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}}
			own(k, func(*cluster.Node) {})
		}, "kernel this node's pod network 10.9.0.0/24 is not within"},
		{"WireGuard without a key", func(k *knowledge) {
			c := *k.config
			c.Backend.Type, k.keyErr, k.config = backendWireGuard, errors.New("damaged"), &c
		}, "damaged; kernel damaged"},
	} {
		k := newKnowledge()
		k.choices = k.decide(nil).choices
		tt.change(k)
		d := k.decide(nil)
		var got strings.Builder
		for _, f := range d.faults {
			fmt.Fprintf(&got, "%s; ", strings.SplitN(f.Error(), ":", 2)[0])
		}
		if d.publish != nil {
			fmt.Fprintf(&got, "publish %v ", d.publish.node.PodCIDRs)
		}
		if d.altered {
			got.WriteString("altered ")
		}
		if d.programs {
			got.WriteString("kernel ")
			if err := d.families[0].err; err != nil {
				fmt.Fprint(&got, err)
			}
			if nat := d.families[0].nat; nat == nil || nat.Tunnel == nil || len(nat.Tunnel.Sources) != len(d.peers.v4) {
				t.Errorf("%s: the tunnel is not filtered: %+v", tt.name, nat)
			}
			if k.fromMemory == d.families[0].spec.Prune {
				t.Errorf("%s: it removes peers that the state lacks: %t", tt.name, d.families[0].spec.Prune)
			}
		}
		if text := strings.TrimSpace(got.String()); !strings.HasPrefix(text, tt.want) || tt.want == "kernel" && text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// TestDecideMAC: where the MAC address of a VTEP comes from, and what is saved.
func TestDecideMAC(t *testing.T) {
	const saved, spare, device, listed, other = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c", "02:00:00:00:00:0d", "02:00:00:00:00:02"
	record := func(k *knowledge) {
		n := *k.own
		n.BackendData = []byte(`{"VNI":1,"VtepMAC":"` + listed + `"}`)
		k.snapshot.Nodes[0] = &n
	}
	link := func(k *knowledge) {
		k.links = append(k.links, netops.HostLink{Name: "flannel.1", Kind: "vxlan", Index: 3, MAC: device})
	}
	first := func(k *knowledge) {
		k.own.PublicIP = netip.MustParseAddr("192.0.2.3")
		k.links[0].Addresses[0].Prefix = netip.MustParsePrefix("192.0.2.3/24")
	}
	for _, tt := range []struct {
		name      string
		change    func(*knowledge)
		mac       string
		saves     bool
		usesSpare bool
	}{
		{"chosen before", func(k *knowledge) { k.macs = map[string]string{"flannel.1": device} }, device, false, false},
		{"saved", func(k *knowledge) { k.savedMACs = map[string]string{"flannel.1": saved}; record(k); link(k) }, saved, false, false},
		{"a multicast address is saved", func(k *knowledge) { k.savedMACs = map[string]string{"flannel.1": "01:00:00:00:00:0a"} }, spare, true, true},
		{"the device", func(k *knowledge) { record(k); link(k) }, device, true, false},
		{"the record", record, listed, true, false},
		{"none", func(*knowledge) {}, spare, true, true},
		{"another node has the saved one", func(k *knowledge) { k.savedMACs = map[string]string{"flannel.1": other} }, spare, true, true},
		{"another node has it, and goes first", func(k *knowledge) { k.macs = map[string]string{"flannel.1": other}; first(k) }, spare, true, true},
		{"another node has it, and goes second", func(k *knowledge) { k.macs = map[string]string{"flannel.1": other} }, other, false, false},
		{"no interface yet", func(k *knowledge) { k.links[0].Default4 = false }, "", false, false},
	} {
		k := newKnowledge()
		k.macs, k.spareMACs = nil, [2]string{spare, spare}
		tt.change(k)
		before := maps.Clone(k.macs)
		d := k.decide(nil)
		if !maps.Equal(k.macs, before) {
			t.Errorf("%s: the decision changed %v to %v", tt.name, before, k.macs)
		}
		if d.choices.macs["flannel.1"] != tt.mac || (len(d.macs) > 0) != tt.saves || (d.spareMACs[0] == "") != tt.usesSpare || d.spareMACs[1] != spare {
			t.Errorf("%s: %v, saves %v, spare %q", tt.name, d.choices.macs, d.macs, d.spareMACs)
		}
		if tt.mac != "" && !strings.Contains(string(d.publish.node.BackendData), tt.mac) {
			t.Errorf("%s: published %s", tt.name, d.publish.node.BackendData)
		}
	}
}

// TestFormerAddresses: an address in another node's pod network goes from a bridge that cnibox made only.
func TestFormerAddresses(t *testing.T) {
	k := newKnowledge()
	addr := func(p string) []netops.HostAddr { return []netops.HostAddr{{Prefix: netip.MustParsePrefix(p)}} }
	k.links = append(k.links,
		netops.HostLink{Name: "flannel.1", Addresses: addr("10.244.2.0/32")}, netops.HostLink{Name: "lo", Loopback: true, Addresses: addr("10.244.2.2/32")},
		netops.HostLink{Name: "cni0", Alias: attachment.SharedAlias, Addresses: addr("10.244.2.1/24")}, netops.HostLink{Name: "cni1", Alias: attachment.SharedAlias, Addresses: addr("10.244.1.1/24")},
		netops.HostLink{Name: "docker0", Addresses: addr("10.244.2.3/16")},
	)
	d := k.decide(nil)
	if len(d.former) != 1 || d.former[0] != (formerAddress{"cni0", "b", netip.MustParsePrefix("10.244.2.1/24")}) {
		t.Errorf("addresses %+v", d.former)
	}
	if d.formerErr == nil || d.formerErr.Error() != `interface "docker0" has address 10.244.2.3/16 of the pod network of node "b": delete the address` {
		t.Errorf("error %v", d.formerErr)
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
	peer := k.snapshot.Nodes[1]
	public, err := (overlay.Secret{16}).PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	peer.BackendType, peer.BackendData = backendWireGuard, cluster.WireGuard{PublicKey: public.String(), Port: 1}.JSON()
	f := k.decide(nil).families[0]
	if f.err != nil || f.mtu != 1340 || f.spec.Nodes[k.snapshot.Nodes[1].PodCIDRs[0]] != k.snapshot.Nodes[1].PublicIP {
		t.Fatalf("family %+v", f)
	}
	if nat := f.nat; nat.Encrypted != "flannel-wg" || len(nat.Local) != 1 || nat.Local[0] != netip.MustParsePrefix("10.244.9.0/24") {
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
		k.choosePeers()
		k.underlay.mtu = 1500
		tt.change(k)
		if err := tt.ask(k); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
