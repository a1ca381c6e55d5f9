package agent

import (
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/netops/overlay"
	"github.com/cnibox/cnibox/store/cluster"
)

// TestSameMAC: a node whose state was copied differs from a node that was renamed.
func TestSameMAC(t *testing.T) {
	const mac = "02:00:00:00:00:01"
	ip := netip.MustParseAddr
	k := &knowledge{
		self: identity{node: "copy"}, config: &cluster.Config{Backend: cluster.Backend{VNI: 1}},
		choices: choices{underlay: underlay{public4: ip("192.0.2.2"), public6: ip("2001:db8::2")}},
	}
	for _, c := range []struct {
		name string
		node cluster.Node
		want [2]string
	}{
		{"no record", cluster.Node{}, [2]string{}},
		{"its own", cluster.Node{Name: "copy", PublicIP: ip("192.0.2.1"), BackendData: []byte(`{"VNI":1,"VtepMAC":"` + mac + `"}`)}, [2]string{}},
		{"renamed", cluster.Node{Name: "old", PublicIP: ip("192.0.2.2"), BackendData: []byte(`{"VNI":1,"VtepMAC":"` + mac + `"}`)}, [2]string{}},
		{"IPv4", cluster.Node{Name: "first", PublicIP: ip("192.0.2.1"), BackendData: []byte(`{"VNI":1,"VtepMAC":"` + mac + `"}`)}, [2]string{"first", ""}},
		{"IPv6", cluster.Node{Name: "first", PublicIPv6: ip("2001:db8::1"), BackendV6Data: []byte(`{"VNI":1,"VtepMAC":"` + mac + `"}`)}, [2]string{"", "first"}},
		{"another VNI", cluster.Node{Name: "first", PublicIP: ip("192.0.2.1"), BackendData: []byte(`{"VNI":7,"VtepMAC":"` + mac + `"}`)}, [2]string{}},
		{"another address", cluster.Node{Name: "first", PublicIP: ip("192.0.2.1"), BackendData: []byte(`{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`)}, [2]string{}},
	} {
		k.snapshot = &cluster.Snapshot{Nodes: []*cluster.Node{&c.node}}
		for i, v6 := range []bool{false, true} {
			got := ""
			if twin := k.nodeWithSameMAC(mac, v6); twin != nil {
				got = twin.Name
			}
			if got != c.want[i] {
				t.Errorf("%s, %s: %q, want %q", c.name, familyName(v6), got, c.want[i])
			}
		}
	}
}

// TestPublishedKey: a node's record has the key of its device. A restarted agent publishes a new key only after the device has it.
func TestPublishedKey(t *testing.T) {
	key := func(first byte) (k overlay.Secret, public string) {
		k[0] = first
		of, err := k.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return k, of.String()
	}
	_, before := key(8)
	kept, after := key(16)
	record := &cluster.Node{Name: "me", BackendV6Data: cluster.WireGuard{PublicKey: before, Port: 1}.JSON(), BackendData: []byte(`{"VNI":1}`)}
	k := &knowledge{self: identity{node: "me"}, snapshot: &cluster.Snapshot{Nodes: []*cluster.Node{record}}, key: kept, config: &cluster.Config{}}
	if got := k.publicKey(true); got != before {
		t.Errorf("before the device has the new key: %s", got)
	}
	if got := k.publicKey(false); got != after {
		t.Errorf("the record has no key: %s", got)
	}
	k.devices[1].key = kept
	if got := k.publicKey(true); got != after {
		t.Errorf("when the device has the new key: %s", got)
	}
}
