package attach_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestRenamedNetwork: DEL under another network name, as after a conflist was renamed while
// containers ran, returns the device of host-device, and undoes the chained role's part. It does not
// touch an attachment of the same names in another namespace, or of another role, or that prevResult does
// not describe.
func TestRenamedNetwork(t *testing.T) {
	netopstest.Master(t, "lan0")
	p := rolestest.NewPod(t, all.Table(), "host-device")
	start := p.State()
	keys := `,"device":"lan0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}`
	result := p.OK(p.Call("ADD", keys)).Stdout
	bare := keys
	keys += `,"prevResult":` + result
	add := p.Call("ADD", `,"mac":"02:00:00:00:00:07","prevResult":`+result)
	add.Type = "tuning"
	add.Conf = strings.Replace(add.Conf, `"host-device"`, `"tuning"`, 1)
	p.OK(add)
	tuned := p.State()
	renamed := func(typ, keys string) rolestest.Call {
		c := p.Call("DEL", keys)
		c.Type = typ
		c.Conf = strings.NewReplacer(`"host-device"`, `"`+typ+`"`, `"pods"`, `"renamed"`).Replace(c.Conf)
		return c
	}
	other := renamed("host-device", keys)
	other.Netns = netopstest.New(t).Path()
	p.OK(other)
	p.OK(renamed("macvlan", `,"master":"lan0","prevResult":`+result))
	p.OK(renamed("host-device", bare))
	p.OK(renamed("tuning", `,"mac":"02:00:00:00:00:07"`))
	p.OK(renamed("host-device", bare+`,"prevResult":`+strings.ReplaceAll(result, "10.7.0.", "10.8.0.")))
	if state := p.State(); state != tuned {
		t.Fatalf("have\n%s\nwant\n%s", state, tuned)
	}
	p.OK(renamed("tuning", `,"mac":"02:00:00:00:00:07","prevResult":`+result))
	p.OK(renamed("host-device", keys))
	if _, err := netlink.LinkByName("lan0"); err != nil {
		t.Errorf("the device: %v", err)
	}
	if state := p.State(); state != start {
		t.Errorf("after DEL\n%s\nwant\n%s", state, start)
	}
}
