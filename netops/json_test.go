package netops_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
)

func TestJSON(t *testing.T) {
	spec := wanted("br0", "veth0")
	scope := 253
	spec.Add(
		&netops.Route{In: netops.Host, Link: "br0", Scope: &scope},
		&netops.PortVLANs{In: netops.Host, Link: "veth0", VLANs: []netops.VLAN{{ID: 1, PVID: true}, {ID: 5, End: 9}}},
		&netops.Link{In: netops.Host, Name: "eth0", Down: true, Unset: &netops.Unset{Promisc: true}},
	)
	raw, err := json.Marshal(netops.Spec{Objects: spec.Objects[:18]})
	if err != nil {
		t.Fatal(err)
	}
	var back netops.Spec
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back)
	if d := cmp.Diff(string(raw), string(again)); d != "" || err != nil {
		t.Errorf("round trip: %s%v", d, err)
	}
	step, err := json.Marshal(netops.Step{Verb: netops.VerbDel, Object: &netops.Link{In: netops.Host, Name: "veth1"}})
	if want := `{"verb":"del","link":{"in":"host","name":"veth1"}}`; string(step) != want || err != nil {
		t.Errorf("step: %s, %v, want %s", step, err, want)
	}
	if b, err := json.Marshal(netops.Change{}); err == nil {
		t.Errorf("a Change without a step gives %s", b)
	}
}

// hostile are possible contents of a damaged or forged record.
var hostile = []string{
	`{}`, `[]`, `null`, `{"do":null}`, `{"do":{}}`, `{"do":{"verb":"add"}}`,
	`{"do":{"verb":"rm","link":{"in":"host","name":"veth1"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"veth1"},"addr":{}}}`,
	`{"do":{"verb":"add","tunnel":{"in":"host"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"../x"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"veth1","mac":"zz"}}}`,
	`{"do":{"verb":"add","link":{"in":"moon","name":"veth1"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","peer":{"in":"host","name":"w"}}}}`,
	`{"do":{"verb":"add","link":{"in":"container","name":"v","kind":"veth","peer":{"in":"host","name":"w"}}}}`,
	`{"do":{"verb":"set","sysctl":{"in":"host","key":"net/../kernel/core_pattern","value":"|/x"}}}`,
	`{"do":{"verb":"set","sysctl":{"in":"host","key":"kernel/core_pattern","value":"|/x"}}}`,
	`{"do":{"verb":"add","addr":{"in":"host","link":"l","address":"10.0.0.0/99"}}}`,
	`{"do":{"verb":"add","link":{"in":"netns/../x","name":"veth1"}}}`,
	`{"do":{"verb":"add","netns":{"name":"../../x","alias":"cnibox:shared"}}}`,
	`{"do":{"verb":"add","netns":{"name":"x","alias":"no label"}}}`,
	`{"do":{"verb":"add","ovsPort":{"link":"../x"}}}`,
	`{"do":{"verb":"add","ovsPort":{"link":"veth1","socket":"ssl:127.0.0.1:6640"}}}`,
	`{"do":{"verb":"add","ovsPort":{"link":"veth1","tag":4096}}}`,
	`{"do":{"verb":"add","ovsPort":{"link":"veth1","trunks":[-1]}}}`,
	`{"do":{"verb":"add","ovsPort":{"link":"veth1","ofport":65280}}}`,
	`{"do":{"verb":"add","ovsPort":{"link":"veth1","wait":60001}}}`,
	`{"do":{"verb":"add","rule":{"in":"host","family":2,"dstPort":80,"prohibit":true}}}`,
	`{"do":{"verb":"add","rule":{"in":"host","family":2,"prohibit":true,"table":7}}}`,
	`{"do":{"verb":"add","route":{"in":"host","link":"l","dst":"::/0","via":"10.0.0.1"}}}`,
	`{"do":{"verb":"add","rule":{"in":"host","family":2,"from":"::/0","table":1}}}`,
	`{"do":{"verb":"add","neigh":{"in":"host","link":"l","mac":"02:00:00:00:00:01"}}}`,
	`{"do":{"verb":"set","portVLANs":{"in":"host","link":"l","vlans":[{"id":5000}]}}}`,
	`{"do":{"verb":"add","vrf":{"in":"container","name":"red","table":-1,"link":"eth0"}}}`,
	`{"do":{"verb":"add","vrf":{"in":"container","name":"eth0","table":1,"link":"eth0"}}}`,
	`{"do":{"verb":"del","flows":{"in":"host","proto":"icmp","port":1}}}`,
	`{"do":{"verb":"del","flows":{"in":"host","proto":"udp","port":65536}}}`,
	`{"do":{"verb":"del","flows":{"in":"host","proto":"udp","port":9,"dst":"10.0.0.1","replySrc":"::1"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"dummy","parent":"p"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"macvlan","parent":"../p"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"macvlan","parent":"p","mode":"l2"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"macvlan","parent":"p","parentIn":"container"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"ipvlan","parent":"p","mac":"02:00:00:00:00:01"}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"ipvlan","parent":"p","bcQueueLen":1}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"vlan","parent":"p","vlanId":4095}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"veth","owner":0}}}`,
	`{"do":{"verb":"add","link":{"in":"host","name":"v","kind":"tun","owner":-1}}}`,
	`{"do":{"verb":"add","move":{"from":"host","name":"v","to":"host","as":"w","alias":"a"}}}`,
	`{"do":{"verb":"add","move":{"from":"host","name":"v","to":"container","as":"w"}}}`,
	`{"do":{"verb":"add","move":{"from":"host","name":"dev%d","to":"container","as":"w","alias":"a"}}}`,
	`{"do":{"verb":"add","move":{"from":"host","name":"v","to":"container","as":"w","alias":"a","mac":"zz"}}}`,
	`{"do":{"verb":"add","element":{"set":"masq4"}}}`,
	`{"do":{"verb":"del","link":{"in":"host","name":"v"}},"undo":{"verb":"del"}}`,
}

func TestHostileJSON(t *testing.T) {
	for _, s := range hostile {
		var c netops.Change
		if err := json.Unmarshal([]byte(s), &c); err == nil && s != "null" {
			t.Errorf("%s: no error", s)
		}
	}
	var c netops.Change
	if err := json.Unmarshal([]byte(hostile[6]), &c); !errors.Is(err, netops.ErrInvalid) {
		t.Errorf("an unknown verb: %v, want ErrInvalid", err)
	}
}

func FuzzChange(f *testing.F) {
	for _, s := range hostile {
		f.Add([]byte(s))
	}
	objects := slices.Concat(wanted("br0", "veth0").Objects, moveSpec().Objects)
	for _, c := range kindCases() {
		c.link.In, c.link.Name = netops.Container, "eth0"
		objects = append(objects, &c.link)
	}
	for _, o := range objects {
		b, err := json.Marshal(netops.Change{Do: netops.Step{Verb: netops.VerbAdd, Object: o}, Undo: &netops.Step{Verb: netops.VerbDel, Object: o}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var c netops.Change
		if json.Unmarshal(b, &c) != nil || c.Do.Object == nil {
			return
		}
		_ = c.Do.Object.String()
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		var again netops.Change
		if err := json.Unmarshal(raw, &again); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if c.Do.Object.String() != again.Do.Object.String() {
			t.Fatalf("%s: %s became %s", b, c.Do.Object, again.Do.Object)
		}
	})
}
