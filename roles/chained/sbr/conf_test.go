package sbr

import (
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate includes the reference's scenario "two v4 gws rejected".
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"table":4294967295,"gateways":["10.1.0.1","fd00::1"],"addSourceHints":true}`},
		{Name: "null is not asked", Conf: `{"table":null,"gateways":null}`},
		{Name: "link-local gateway", Conf: `{"gateways":["fe80::1"]}`},
		{Name: "table 0", Conf: `{"table":0}`, Paths: []string{"table"}},
		{Name: "table local", Conf: `{"table":255}`, Paths: []string{"table"}},
		{Name: "table too large", Conf: `{"table":4294967296}`, Paths: []string{"table"}},
		{Name: "two IPv4", Conf: `{"gateways":["10.1.0.1","10.1.0.2"]}`, Paths: []string{"gateways[1]"}},
		{Name: "two IPv6 among three", Conf: `{"gateways":["fd00::1","10.1.0.1","fd00::2"]}`, Paths: []string{"gateways[2]"}},
		{Name: "mapped is IPv4", Conf: `{"gateways":["10.1.0.1","::ffff:10.1.0.2"]}`, Paths: []string{"gateways[1]"}},
		{Name: "no routers", Conf: `{"gateways":["0.0.0.0","::1","224.0.0.1","fe80::1%eth0",""]}`, Paths: []string{"gateways[0]", "gateways[1]", "gateways[2]", "gateways[3]", "gateways[4]"}},
		{Name: "several at once", Conf: `{"table":-1,"gateways":["x"]}`, Paths: []string{"table", "gateways[0]"}},
		{Name: "wrong type", Conf: `{"gateways":"10.1.0.1"}`, Paths: []string{"gateways"}},
	})
}
