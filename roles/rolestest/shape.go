package rolestest

import (
	"encoding/json"
	"reflect"
	"testing"
)

// checkShape asserts that a result has the format of its spec version: the keys of the
// version, and none of a later one.
func checkShape(t *testing.T, version, stdout string) {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(stdout), &m); err != nil {
		t.Fatalf("result is not a single JSON document: %v: %s", err, stdout)
	}
	var have string
	if err := json.Unmarshal(m["cniVersion"], &have); err != nil || have != version {
		t.Errorf("cniVersion is %s, want %q", m["cniVersion"], version)
	}
	if version < "0.3.0" {
		if m["ip4"] == nil && m["ip6"] == nil {
			t.Errorf("version %s has neither ip4 nor ip6: %s", version, stdout)
		}
		if m["interfaces"] != nil || m["ips"] != nil {
			t.Errorf("version %s has keys of 0.3.0: %s", version, stdout)
		}
		return
	}
	var ips []map[string]json.RawMessage
	if m["ips"] != nil {
		if err := json.Unmarshal(m["ips"], &ips); err != nil {
			t.Fatal(err)
		}
	}
	for _, ip := range ips {
		if _, ok := ip["version"]; ok != (version < "1.0.0") {
			t.Errorf("version %s: ips[].version present is %v: %s", version, ok, stdout)
		}
	}
	if version >= "1.1.0" {
		return
	}
	for list, keys := range map[string][]string{
		"interfaces": {"mtu", "socketPath", "pciID"},
		"routes":     {"mtu", "advmss", "priority", "table", "scope"},
	} {
		var items []map[string]json.RawMessage
		if m[list] == nil {
			continue
		}
		if err := json.Unmarshal(m[list], &items); err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			for _, k := range keys {
				if _, ok := item[k]; ok {
					t.Errorf("version %s: %s[] has %q of 1.1.0: %s", version, list, k, stdout)
				}
			}
		}
	}
}

// SameJSON fails the test if two JSON documents differ. White space and the order of keys
// may differ.
func SameJSON(t *testing.T, have, want string) {
	t.Helper()
	var h, w any
	if err := json.Unmarshal([]byte(have), &h); err != nil {
		t.Fatalf("%v: %s", err, have)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%v: %s", err, want)
	}
	if !reflect.DeepEqual(h, w) {
		t.Errorf("have %s\nwant %s", have, want)
	}
}
