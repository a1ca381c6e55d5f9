package cluster

import (
	"encoding/json"
	"testing"
)

// FuzzParseConfig: an accepted configuration assigns subnets that lie in its
// networks.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`))
	f.Add([]byte(`{"EnableIPv6":true,"Network":"10.0.0.0/28","IPv6Network":"fd00::/124","IPv6SubnetMin":"fd00::8","SubnetLen":30,"Backend":{"VNI":1e3}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := ParseSubnetConfig(data)
		if err != nil {
			return
		}
		got, err := c.Assign(SubnetRequest{})
		if err != nil || len(got) != len(c.Families()) {
			t.Fatalf("%+v: %v, %v", c, got, err)
		}
		for _, p := range got {
			if !c.Fits(p) {
				t.Fatalf("%+v gives %s", c, p)
			}
		}
		if _, _, err := ParseConfig(data); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzVTEP: accepted data has the same value after it is encoded and decoded again.
func FuzzVTEP(f *testing.F) {
	f.Add([]byte(`{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`))
	f.Add([]byte(`{"VtepMAC":"12:c6:65:89:b4:e3"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ParseVTEP(data)
		if err != nil {
			return
		}
		again, err := ParseVTEP(v.JSON())
		if err != nil || again.VNI != v.VNI || again.NoVNI != v.NoVNI || again.Port != v.Port || again.MAC.String() != v.MAC.String() {
			t.Fatalf("%s: %v, %v", v.JSON(), again, err)
		}
	})
}

// FuzzWireGuard: accepted data has the same value after it is encoded and decoded again.
func FuzzWireGuard(f *testing.F) {
	f.Add([]byte(`{"PublicKey":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","Port":51820}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := ParseWireGuard(data)
		if err != nil {
			return
		}
		again, err := ParseWireGuard(w.JSON())
		if err != nil || again != w {
			t.Fatalf("%s: %v, %v", w.JSON(), again, err)
		}
	})
}

// FuzzNode: Check ends for any record, and a record without faults can be written.
func FuzzNode(f *testing.F) {
	f.Add([]byte(`{"name":"a","publicIP":"192.0.2.1","podCIDRs":["10.0.0.0/24","fd00::/64"],"backendType":"vxlan","backendData":{"VtepMAC":"12:c6:65:89:b4:e3"}}`))
	f.Add([]byte(`{"name":"a","podCIDRs":["10.0.0.0/24"],"backendData":{"escaped when written":"&"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var n Node
		if json.Unmarshal(data, &n) != nil || n.Check() != nil || CheckName(n.Name) != nil {
			return
		}
		out, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var again Node
		if err := json.Unmarshal(out, &again); err != nil || !again.Same(&n) {
			t.Fatalf("%s: %v", out, err)
		}
	})
}
