package static_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

const (
	one = `{"name":"one","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
		"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}`
	dual = `{"name":"dual","type":"bridge","bridge":"br0","isGateway":true,
		"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd00:1::5/64","gateway":"fd00:1::1"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["10.1.0.1"]}}}`
	named = `{"name":"named","type":"bridge","bridge":"br0","ipam":{"type":"static"}}`
)

// TestUnderBridge runs the suite with static as the bridge's IPAM plugin.
func TestUnderBridge(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "bridge",
		Confs: []rolestest.Conf{
			{Name: "one", NoSweeps: true, JSON: one},
			{Name: "dual", JSON: dual},
			{Name: "CNI_ARGS", NoSweeps: true, JSON: named, Args: "IP=10.1.0.5/24;GATEWAY=10.1.0.1"},
		},
	}.Run(t)
}

// TestAlone runs the role as a process, as a third-party interface plugin does. It has the
// reference's scenarios "ADD/DEL" and "unknown DEL".
func TestAlone(t *testing.T) {
	rolestest.Suite{
		Table: all.Table(), Type: "static",
		Confs: []rolestest.Conf{
			{Name: "one", JSON: one, Repeatable: true, Stateless: true},
			{Name: "dual", JSON: dual, Repeatable: true, Stateless: true},
			{Name: "CNI_ARGS", JSON: named, Repeatable: true, Stateless: true, Args: "IP=10.1.0.5/24"},
		},
	}.Run(t)
}

// TestCheck: CHECK fails if prevResult differs from the result of ADD.
func TestCheck(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	call := rolestest.Call{Type: "static", Verb: "ADD", ID: "c1", Netns: netopstest.New(t).Path(), IfName: "eth0"}
	call.Conf = rolestest.WithKeys(t, dual, map[string]any{"cniVersion": "1.1.0"})
	good := e.OK(call).Stdout
	call.Verb = "CHECK"
	check := func(prev string) rolestest.Call {
		c := call
		c.Conf = rolestest.WithKeys(t, call.Conf, map[string]any{"prevResult": json.RawMessage(prev)})
		return c
	}
	e.OK(check(good))
	e.Fail(call, 7)
	for _, change := range []struct{ from, to string }{
		{"10.1.0.5/24", "10.1.0.6/24"},
		{"10.1.0.5/24", "10.1.0.5/25"},
		{"fd00:1::1", "fd00:1::2"},
	} {
		bad := strings.ReplaceAll(good, `"`+change.from+`"`, `"`+change.to+`"`)
		if bad == good {
			t.Fatalf("%s is not in %s", change.from, good)
		}
		e.Fail(check(bad), 106)
	}
}

// TestNoAddresses: without addresses ADD of an interface plugin fails with the missing key in the
// error, and leaves nothing, not even a bridge. DEL succeeds.
func TestNoAddresses(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	ns := netopstest.New(t)
	before := e.State(nil, ns)
	call := rolestest.Call{Type: "bridge", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0"}
	call.Conf = rolestest.WithKeys(t, named, map[string]any{"cniVersion": "1.1.0"})
	a := e.Fail(call, 7)
	var o struct{ Msg string }
	if err := json.Unmarshal([]byte(a.Stdout), &o); err != nil || !strings.Contains(o.Msg, "ipam.addresses: is required") {
		t.Errorf("the message is %q, %v", o.Msg, err)
	}
	call.Verb = "DEL"
	e.OK(call)
	if after := e.State(nil, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestTable checks the values that the command line and the generated documents use.
func TestTable(t *testing.T) {
	role, ok := all.Table().Lookup("static")
	if !ok || role.Kind != roles.IPAM || role.OverLink {
		t.Errorf("the table has %+v, %v", role, ok)
	}
}
