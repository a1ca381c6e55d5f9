package bond

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestGolden runs testdata/*.txtar.
func TestGolden(t *testing.T) {
	rolestest.Golden{
		Role: Role(),
		Observed: func(seen []byte) (any, error) {
			var links []link
			if len(seen) == 0 {
				return links, nil
			}
			err := json.Unmarshal(seen, &links)
			return links, err
		},
	}.Run(t)
}

// TestValidate checks the bounds of all keys.
func TestValidate(t *testing.T) {
	const good = `"mode":"active-backup","miimon":"100","links":[{"name":"a"},{"name":"b"}]`
	faulty := func(name, more string, paths ...string) rolestest.FaultyConf {
		return rolestest.FaultyConf{Name: name, Conf: "{" + good + more + "}", Paths: paths}
	}
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`, Paths: []string{"mode", "links", "miimon"}},
		faulty("good", ``),
		faulty("least", `,"mtu":68,"miimon":"0","failOverMac":0,"allSlavesActive":0`),
		faulty("most", `,"mtu":65536,"miimon":"2147483647","failOverMac":2,"allSlavesActive":1,"mode":"balance-tlb","tlbDynamicLb":1,"xmitHashPolicy":"vlan+srcmac"`),
		faulty("mtu 0 is the default", `,"mtu":0`),
		faulty("mtu 67", `,"mtu":67`, "mtu"),
		faulty("mtu negative", `,"mtu":-1`, "mtu"),
		faulty("mtu a text", `,"mtu":"1500"`, "mtu"),
		faulty("miimon a number, as bond-cni's page says", `,"miimon":100`, "miimon"),
		faulty("miimon empty", `,"miimon":""`, "miimon"),
		faulty("miimon with a unit", `,"miimon":"100ms"`, "miimon"),
		faulty("miimon negative", `,"miimon":"-1"`, "miimon"),
		faulty("miimon too large", `,"miimon":"2147483648"`, "miimon"),
		faulty("mode of another spelling", `,"mode":"Active-Backup"`, "mode"),
		faulty("mode by number", `,"mode":"1"`, "mode"),
		faulty("one link", `,"links":[{"name":"a"}]`, "links"),
		faulty("names without objects", `,"links":["a","b"]`, "links"),
		faulty("a link twice", `,"links":[{"name":"a"},{"name":"b"},{"name":"a"}]`, "links[2].name"),
		faulty("the name of no interface", `,"links":[{"name":"a"},{"name":"sixteen-bytes-if"}]`, "links[1].name"),
		faulty("failOverMac 3", `,"failOverMac":3`, "failOverMac"),
		faulty("failOverMac a name", `,"failOverMac":"active"`, "failOverMac"),
		faulty("tlbDynamicLb in another mode", `,"tlbDynamicLb":0`, "tlbDynamicLb"),
		faulty("allSlavesActive true", `,"allSlavesActive":true`, "allSlavesActive"),
		faulty("xmitHashPolicy", `,"xmitHashPolicy":"layer2+3+4"`, "xmitHashPolicy"),
		faulty("ipam bond", `,"ipam":{"type":"bond"}`, "ipam.type"),
	})
}

// FuzzConf: no configuration makes ADD or CHECK panic.
func FuzzConf(f *testing.F) {
	links := []link{{Name: "net1", MAC: "02:00:00:00:00:01", MTU: 1 << 30}, {Name: "net2", MAC: "02:00:00:00:00:01", MTU: 1 << 30}}
	rolestest.FuzzBuild(f, Role(), links, `{"mode":"balance-alb","miimon":"100","mtu":1400,"links":[{"name":"net1"},{"name":"net2"}],"tlbDynamicLb":1,"ipam":{"type":"host-local"}}`,
		`{"mode":"","miimon":"x","links":[{}]}`)
}
