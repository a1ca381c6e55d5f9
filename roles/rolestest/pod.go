package rolestest

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

// Pod is a node with one container, for tests of one attachment.
type Pod struct {
	*Env
	NS  *netopstest.NS
	typ string
}

// NewPod makes a node and a container for calls of one CNI type.
func NewPod(t *testing.T, table roles.Table, typ string) *Pod {
	t.Helper()
	return &Pod{NewEnv(t, table), netopstest.New(t), typ}
}

// Call returns a call for eth0 of the container. more has further keys of the
// configuration: `,"master":"lan0"`.
func (p *Pod) Call(verb, keys string) Call {
	return Call{
		Type: p.typ, Verb: verb, ID: "c1", Netns: p.NS.Path(), IfName: "eth0",
		Conf: `{"cniVersion":"1.1.0","name":"pods","type":"` + p.typ + `"` + keys + `}`,
	}
}

// State returns the state of the node and of the container.
func (p *Pod) State() string { p.t.Helper(); return p.Env.State(nil, p.NS) }

// Refused makes a call that must fail with a code and a text, and change nothing.
func (p *Pod) Refused(c Call, code int, text string) {
	p.t.Helper()
	before := p.State()
	if a := p.Fail(c, code); !strings.Contains(a.Stdout, text) {
		p.t.Errorf("%s: %s\nwant %q in it", c.Conf, a.Stdout, text)
	}
	if after := p.State(); after != before {
		p.t.Errorf("%s: changed the state from\n%s\nto\n%s", c.Conf, before, after)
	}
}
