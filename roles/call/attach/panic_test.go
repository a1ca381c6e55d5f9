package attach_test

import (
	"context"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

// table has all roles, and the role "fragile".
func table() roles.Table {
	return append(all.Table(), tabletest.Of(attach.ChainedRole(roles.Role{Names: []string{"fragile"}, Summary: "panics"},
		func(c *fragile) attach.Chained { return c }))...)
}

// fragile is a chained role that sets the MTU, or panics before anything is recorded.
type fragile struct {
	roles.NetConf
	Panic bool `json:"panic,omitempty"`
}

func (*fragile) Validate() error  { return nil }
func (*fragile) Wants() bool      { return true }
func (*fragile) Shared() []string { return nil }

func (f *fragile) Observe(context.Context, *roles.Host, *attach.Input, *netops.Namespace) error {
	if f.Panic {
		panic("told to")
	}
	return nil
}

func (*fragile) Build(in *attach.Input) (*attach.Desired, error) {
	d := &attach.Desired{}
	d.Spec.Add(&netops.Link{In: netops.Container, Name: in.Key.IfName, MTU: 1400})
	return d, nil
}

// TestPanicOfSecond: if the second plugin of one type in a list panics before it records its part, the
// clean-up keeps the first one's part.
func TestPanicOfSecond(t *testing.T) {
	p := rolestest.NewPod(t, table(), "ptp")
	start := p.State()
	call := func(typ, verb, keys string) rolestest.Call {
		c := p.Call(verb, keys)
		c.Type = typ
		c.Conf = rolestest.WithKeys(t, c.Conf, map[string]any{"type": typ})
		return c
	}
	prev := `,"prevResult":` + p.OK(p.Call("ADD", "")).Stdout
	p.OK(call("fragile", "ADD", prev))
	first := p.State()
	p.Fail(call("fragile", "ADD", `,"panic":true`+prev), 108)
	if state := p.State(); state != first {
		t.Errorf("have\n%s\nwant\n%s", state, first)
	}
	p.OK(call("fragile", "DEL", ""))
	p.OK(p.Call("DEL", ""))
	if state := p.State(); state != start {
		t.Errorf("after DEL: have\n%s\nwant\n%s", state, start)
	}
}
