package attach_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestKindStatus: STATUS fails if the kernel lacks the role's kind of link. On any kernel
// it succeeds exactly if ADD does.
func TestKindStatus(t *testing.T) {
	for kind, keys := range map[string]string{
		"dummy": "", "macvlan": `,"master":"lan0"`, "ipvlan": `,"master":"lan0"`, "vlan": `,"master":"lan0","vlanId":7`,
	} {
		t.Run(kind, func(t *testing.T) {
			netopstest.Master(t, "lan0")
			p := rolestest.NewPod(t, all.Table(), kind)
			keys += `,"ipam":{"type":"static","addresses":[{"address":"10.7.0.2/24"}]}`
			status := p.Call("STATUS", keys)
			status.ID, status.Netns, status.IfName = "", "", ""
			add := p.Run(p.Call("ADD", keys))
			p.OK(p.Call("DEL", keys))
			switch {
			case add.Code == 0:
				p.OK(status)
			case !strings.Contains(add.Stdout, "not supported by this kernel"):
				t.Errorf("ADD: %s", add.Stdout)
			default:
				p.Refused(status, 50, `links of kind \"`+kind+`\": not supported by this kernel`)
			}
		})
	}
}
