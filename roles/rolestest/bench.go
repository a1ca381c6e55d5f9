package rolestest

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

// bench is one test's node with one container.
type bench struct {
	*Env
	s    Suite
	conf Conf
	ns   *netopstest.NS
	// warmed means that the shared objects exist.
	warmed bool
	// sweeps is the number of sweeps that began.
	sweeps int
	// chosen are the numbers of the sweeps that probe a write, if the configuration's are few.
	chosen []int
	// random chooses sweeps and writes.
	random *rand.Rand
}

func (s Suite) bench(t *testing.T, c Conf) *bench {
	t.Helper()
	b := &bench{Env: NewEnv(t, s.Table), s: s, conf: c}
	b.Beyond = c.Beyond
	b.ns = b.container(t)
	// GC with an empty list removes all objects, so that the next test has the same host.
	t.Cleanup(func() { b.Run(b.gcCall(nil)) })
	b.host()
	if c.Stateless {
		b.warm() // the kernel adds lo's addresses when lo is first set up, and keeps them
	}
	return b
}

// container makes a namespace with the objects that the configuration needs.
func (b *bench) container(t *testing.T) *netopstest.NS {
	t.Helper()
	ns := netopstest.New(t)
	if b.conf.Prepare != nil {
		b.conf.Prepare(t, ns)
	}
	return ns
}

// host prepares the host. It may be called several times.
func (b *bench) host() {
	if b.conf.Host != nil {
		b.conf.Host(b.t)
	}
}

// call returns a call for the bench's container.
func (b *bench) call(verb string) Call {
	return Call{
		Type: b.s.Type, Verb: verb, ID: "c1", Netns: b.ns.Path(), IfName: "eth0",
		Args: b.conf.Args, Conf: b.with(newest, nil),
	}
}

// with returns the configuration with a version and further top-level keys.
func (b *bench) with(version string, more map[string]any) string {
	b.t.Helper()
	return WithKeys(b.t, WithKeys(b.t, b.conf.JSON, map[string]any{"cniVersion": version}), more)
}

// withPrev returns a call whose configuration has ADD's result as prevResult.
func (b *bench) withPrev(verb, result string) Call {
	c := b.call(verb)
	c.Conf = b.with(newest, map[string]any{"prevResult": json.RawMessage(result)})
	return c
}

// other returns a call for a second attachment.
func (b *bench) other(verb string) Call {
	c := b.call(verb)
	if b.conf.Other != "" {
		c.Conf = WithKeys(b.t, b.conf.Other, map[string]any{"cniVersion": newest})
	}
	return c
}

// gcCall returns a GC call with a list of valid attachments.
func (b *bench) gcCall(valid []roles.AttachmentID) Call {
	c := b.call("GC")
	if valid == nil {
		valid = []roles.AttachmentID{}
	}
	c.Conf = b.with(newest, map[string]any{"cni.dev/valid-attachments": valid})
	c.ID, c.Netns, c.IfName = "", "", ""
	return c
}

// warm makes the shared objects and returns the state without attachments.
func (b *bench) warm() string {
	b.t.Helper()
	b.OK(b.call("ADD"))
	b.OK(b.call("DEL"))
	b.warmed = true
	return b.state()
}

// state omits the forwarding sysctls: DEL does not reset them, because other programs may
// need them.
func (b *bench) state() string { b.t.Helper(); return b.State([]string{"sysctl net/"}, b.ns) }

// same fails the test if the state differs from the earlier one.
func (b *bench) same(want, when string) {
	b.t.Helper()
	if have := b.state(); have != want {
		b.t.Fatalf("%s: state differs\nwant:\n%s\nhave:\n%s", when, want, have)
	}
}

// faulty returns calls of DEL with configurations that were edited since ADD: one with
// keys that the role refuses, one with an invalid subnet.
func (b *bench) faulty() []Call {
	b.t.Helper()
	var calls []Call
	refused := []map[string]any{b.conf.Refused}
	if _, ok := b.conf.Refused["mtu"]; ok {
		refused = append(refused, map[string]any{"mtu": "many"})
	}
	for _, keys := range refused {
		if keys != nil {
			c := b.call("DEL")
			c.Conf = b.with(newest, keys)
			calls = append(calls, c)
		}
	}
	if c := b.call("DEL"); strings.Contains(c.Conf, `"subnet":"`) {
		c.Conf = strings.ReplaceAll(c.Conf, `"subnet":"`, `"subnet":"no `)
		calls = append(calls, c)
	}
	for _, c := range calls {
		c.Verb = "ADD"
		b.Fail(c, 7)
	}
	return calls
}

// network returns the configuration's name.
func (b *bench) network() string {
	var n struct{ Name string }
	if err := json.Unmarshal([]byte(b.conf.JSON), &n); err != nil {
		b.t.Fatal(err)
	}
	return n.Name
}
