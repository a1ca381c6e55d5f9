package loopback_test

import (
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestArgs: the role reads no argument, so CNI_ARGS of another form is not an error, as with
// the reference. It is one for a role that reads arguments, also behind one that does not.
func TestArgs(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	c := rolestest.Call{
		Type: "loopback", ID: "c", Netns: netopstest.New(t).Path(), IfName: "lo", Args: "none",
		Conf: `{"cniVersion":"0.4.0","name":"lo","type":"loopback"}`,
	}
	for _, c.Verb = range []string{"ADD", "DEL"} {
		e.OK(c)
	}
	for typ, keys := range map[string]string{
		"bridge": `,"bridge":"br0"`,
		"ptp":    `,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`,
	} {
		c.Type, c.IfName, c.Conf = typ, "eth0", `{"cniVersion":"0.4.0","name":"n","type":"`+typ+`"`+keys+`}`
		c.Verb = "ADD"
		e.Fail(c, 4)
	}
	c.Verb, c.Type, c.Conf = "DEL", "ptp", `{"cniVersion":"0.4.0","name":"n","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	e.OK(c)
}
