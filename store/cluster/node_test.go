package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestVTEP(t *testing.T) {
	for data, want := range map[string]string{
		`{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`:              `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`,
		`{"port":4790,"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`:  `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3","Port":4790}`,
		`{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3","Port":65536}`: "", `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3","Port":"x"}`: "",
		`{"vtepmac":"12-C6-65-89-B4-E3"}`:             `{"VtepMAC":"12:c6:65:89:b4:e3"}`,
		`{"VNI":16777215,"VtepMAC":"12c6.6589.b4e3"}`: `{"VNI":16777215,"VtepMAC":"12:c6:65:89:b4:e3"}`,
		``: "", `null`: "", `{}`: "", `[]`: "", `"x"`: "", `{"VNI":16777216,"VtepMAC":"12:c6:65:89:b4:e3"}`: "", `{"VNI":-1,"VtepMAC":"12:c6:65:89:b4:e3"}`: "",
		`{"VtepMAC":"00:00:00:00:00:00"}`: "", `{"VtepMAC":"ff:ff:ff:ff:ff:ff"}`: "", `{"VtepMAC":"01:00:5e:00:00:01"}`: "", `{"VtepMAC":"12:c6:65:89:b4"}`: "",
		`{"VtepMAC":"02:00:5e:10:00:00:00:01"}`: "", `{"PublicKey":"k","Port":51820}`: "",
	} {
		v, err := ParseVTEP(json.RawMessage(data))
		if want == "" {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v, %v", data, v, err)
			}
		} else if err != nil || string(v.JSON()) != want || !v.Is(v.VNI) || v.Is(7) != v.NoVNI {
			t.Errorf("%s: %s, %v", data, v.JSON(), err)
		}
	}
}

func TestParseWireGuard(t *testing.T) {
	const key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
	for data, want := range map[string]string{
		`{"PublicKey":"` + key + `","Port":51820}`:                     `{"PublicKey":"` + key + `","Port":51820}`,
		`{"publickey":"` + key + `","Future":1}`:                       `{"PublicKey":"` + key + `","Port":0}`,
		`{"PublicKey":"` + key[:43] + `","Port":1}`:                    "",
		`{"PublicKey":"` + key + `","Port":65536}`:                     "",
		`{"PublicKey":"` + key[:42] + `F="}`:                           "", // bits beyond 32 bytes
		`{"PublicKey":"` + key + key + `","Port":1}`:                   "",
		`{"PublicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`: "",
		`{"PublicKey":""}`:                                             "", `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`: "", `{"PublicKey":7}`: "", "null": "", "": "", "[]": "",
	} {
		w, err := ParseWireGuard(json.RawMessage(data))
		if want == "" {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v, %v", data, w, err)
			}
		} else if err != nil || string(w.JSON()) != want {
			t.Errorf("%s: %s, %v", data, w.JSON(), err)
		}
	}
}

func TestCheck(t *testing.T) {
	good := func() Node {
		return Node{
			Name: "a", PublicIP: netip.MustParseAddr("192.0.2.1"), PublicIPv6: netip.MustParseAddr("2001:db8::1"),
			PodCIDRs: prefixes("10.0.1.0/24", "fd00::/64"), BackendType: "vxlan", BackendData: json.RawMessage(`{}`),
		}
	}
	if n := good(); n.Check() != nil {
		t.Fatal(n.Check())
	}
	for want, change := range map[string]func(*Node){
		"publicIP is 2001:db8::1":         func(n *Node) { n.PublicIP = netip.MustParseAddr("2001:db8::1") },
		"publicIP is 224.0.0.1":           func(n *Node) { n.PublicIP = netip.MustParseAddr("224.0.0.1") },
		"publicIP is 255.255.255.255":     func(n *Node) { n.PublicIP = netip.MustParseAddr("255.255.255.255") },
		"publicIPv6 is fe80::1%eth0":      func(n *Node) { n.PublicIPv6 = netip.MustParseAddr("fe80::1%eth0") },
		"publicIPv6 is ::ffff:10.0.0.1":   func(n *Node) { n.PublicIPv6 = netip.MustParseAddr("::ffff:10.0.0.1") },
		"write 10.0.1.0/24":               func(n *Node) { n.PodCIDRs = prefixes("10.0.1.5/24") },
		"0.0.0.0/0 is not a pod network":  func(n *Node) { n.PodCIDRs = prefixes("0.0.0.0/0") },
		"IPv4 first":                      func(n *Node) { n.PodCIDRs = prefixes("fd00::/64", "10.0.1.0/24") },
		"one of each":                     func(n *Node) { n.PodCIDRs = prefixes("10.0.2.0/24", "10.0.1.0/24") },
		"invalid Prefix is not a network": func(n *Node) { n.PodCIDRs = []netip.Prefix{{}} },
		"backendType is longer":           func(n *Node) { n.BackendType = strings.Repeat("x", 65) },
		"backendData is longer":           func(n *Node) { n.BackendData = json.RawMessage(strings.Repeat(" ", 5000)) },
		"backendV6Data is not JSON":       func(n *Node) { n.BackendV6Data = json.RawMessage(`{`) },
	} {
		n := good()
		change(&n)
		if err := n.Check(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "node-1.example_x": true, "A9": true, strings.Repeat("a", 253): true,
		"": false, ".": false, "..": false, "a/b": false, ".a": false, "a.": false, "-": false, "ä": false, "a b": false, "a\x00": false, strings.Repeat("a", 254): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTable(t *testing.T) {
	var tab Table
	bad := errors.New("bad")
	for i, step := range []struct {
		do      func() bool
		changed bool
		want    string
	}{
		{func() bool { return tab.Put("b", Node{Name: "b"}, nil) }, true, "b"},
		{func() bool { return tab.Put("a", Node{Name: "a", BackendData: json.RawMessage(`{"a": 1}`)}, nil) }, true, "a b"},
		{func() bool { return tab.Put("a", Node{Name: "a", BackendData: json.RawMessage(`{"a":1}`)}, nil) }, false, "a b"},
		{func() bool { return tab.Put("a", Node{}, bad) }, true, "b !a"},
		{func() bool { return tab.Put("a", Node{}, bad) }, false, "b !a"},
		{func() bool { return tab.Keep(map[string]bool{"a": true, "b": true}) }, false, "b !a"},
		{func() bool { return tab.Put("c", Node{Name: "c"}, nil) }, true, "b c !a"},
		{func() bool { return tab.Remove("b") }, true, "c !a"},
		{func() bool { return tab.Remove("b") }, false, "c !a"},
		{func() bool { return tab.Keep(map[string]bool{"c": true}) }, true, "c"},
	} {
		before := tab.Snapshot()
		said := describe(before)
		if got := step.do(); got != step.changed {
			t.Errorf("step %d: changed %t", i, got)
		}
		if describe(before) != said {
			t.Errorf("step %d changed a snapshot", i)
		}
		var got []string
		for _, n := range tab.Snapshot().Nodes {
			got = append(got, n.Name)
		}
		for name := range tab.Snapshot().Faults {
			got = append(got, "!"+name)
		}
		if strings.Join(got, " ") != step.want {
			t.Errorf("step %d: %q, not %q", i, got, step.want)
		}
	}
}

func describe(s *Snapshot) string {
	text := fmt.Sprint(s.Faults)
	for _, n := range s.Nodes {
		text += fmt.Sprintf(" %+v", *n)
	}
	return text
}

// A slow consumer gets the newest snapshot, an error that came after it, and no error that a snapshot has followed.
func TestRelay(t *testing.T) {
	r, down := NewRelay(), errors.New("down")
	made := 0
	name := func(s string) func() *Snapshot {
		return func() *Snapshot { made++; return &Snapshot{Nodes: []*Node{{Name: s}}} }
	}
	r.Put(name("one"))
	<-r.Changes()
	first := r.Take()
	r.Put(name("two"))
	r.Fail(down)
	r.Put(name("three"))
	<-r.Changes()
	again := r.Take()
	r.Put(name("four"))
	r.Fail(down)
	<-r.Changes()
	last, none := r.Take(), r.Take()
	if first.Err != nil || first.Snapshot.Nodes[0].Name != "one" || again.Err != nil || again.Snapshot.Nodes[0].Name != "three" {
		t.Errorf("%+v, %+v", first, again)
	}
	if last.Snapshot.Nodes[0].Name != "four" || !errors.Is(last.Err, down) || made != 3 {
		t.Errorf("%+v, %d were made", last, made)
	}
	if last.Since.Before(first.Since) || none.Snapshot != nil || none.Err != nil {
		t.Errorf("%v, %v, %+v", first.Since, last.Since, none)
	}
}
