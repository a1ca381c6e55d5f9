package rolestest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

// Suite is the conformance suite of one role.
type Suite struct {
	Table roles.Table
	// Type is the CNI type under test.
	Type  string
	Confs []Conf
}

// Conf is one configuration with which a role is tested.
type Conf struct {
	Name string
	// JSON is a plugin configuration with "name", without "cniVersion".
	JSON string
	// Chain is the interface plugin before a chained role in the list, without "name" and
	// "cniVersion".
	Chain string
	// NoAddress marks layer 2 configurations: spec versions below 0.3.0 cannot
	// express their result, so ADD must fail there.
	NoAddress bool
	// Needs skips the test if the kernel lacks a feature. The kernel of the VM tests has
	// all of them.
	Needs func(testing.TB)
	// Host creates the host's objects that the configuration names. It is called again
	// after a namespace with virtual devices has ended, so the objects may exist.
	Host func(testing.TB)
	// Tamper has the changes after which CHECK must fail.
	Tamper []Tamper
	// Prepare creates the objects in a container's namespace that the configuration needs.
	Prepare func(*testing.T, *netopstest.NS)
	// Other is the configuration of a second attachment, if the kernel does not allow two
	// with the same configuration. Empty means the same configuration.
	Other string
	// Args is CNI_ARGS for every call.
	Args string
	// Refused are keys with values that ADD refuses; DEL accepts them.
	Refused map[string]any
	// Again says that a second ADD of the same attachment succeeds.
	Again bool
	// Swept means that this configuration is not swept, because the sweeps of another one
	// make the same writes. The first swept configuration is probed at every write, the
	// others, which mostly make the same writes, only at a part.
	Swept bool
	// Within means that the role's objects are in the container and only the record lists
	// them. If the record is lost, they end with the container.
	Within bool
	// Stateless means that the role keeps no records: it needs no prevResult for CHECK,
	// has only one interface, and GC finds nothing.
	Stateless bool
	// turn is the number of swept configurations before this one.
	turn int
}

// Tamper is a change of the objects that ADD made, on the host or in the container.
type Tamper struct {
	Name string
	Do   func(t *testing.T, e *Env, ns *netopstest.NS, result *roles.Result)
}

// Inside is a change to eth0 in the container, as a process there may make it.
func Inside(name string, change netopstest.LinkChange) Tamper {
	return Tamper{Name: name, Do: func(t *testing.T, _ *Env, ns *netopstest.NS, _ *roles.Result) {
		t.Helper()
		ns.Change(t, "eth0", change)
	}}
}

// Outside is a change to the attachment's interface on the host.
func Outside(name string, change netopstest.LinkChange) Tamper {
	return Tamper{Name: name, Do: func(t *testing.T, _ *Env, _ *netopstest.NS, r *roles.Result) {
		t.Helper()
		netopstest.ChangeHost(t, HostLink(r), change)
	}}
}

// HostLink is the name of the host's interface that comes before the container's in a
// result: a bridge comes before it, and a VLAN's gateway after both.
func HostLink(r *roles.Result) (name string) {
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			break
		}
		name = i.Name
	}
	return name
}

// OnHost is a change to something other than an interface.
func OnHost(name string, change func() error) Tamper {
	return Tamper{Name: name, Do: func(t *testing.T, _ *Env, _ *netopstest.NS, _ *roles.Result) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}}
}

// versions are the CNI versions that the binary supports.
var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// newest is the version with which most of the suite runs.
const newest = "1.1.0"

// Run runs the suite as subtests.
func (s Suite) Run(t *testing.T) {
	swept := 0
	for _, c := range s.Confs {
		c.turn = swept
		if !c.Swept {
			swept++
		}
		t.Run(c.Name, func(t *testing.T) {
			if c.Needs != nil {
				c.Needs(t)
			}
			for _, sub := range []struct {
				name string
				run  func(*testing.T, Conf)
			}{
				{"life", s.life},
				{"del", s.del},
				{"gc", s.gc},
				{"state lost", s.stateLost},
				{"status", s.status},
				{"versions", s.versions},
				{"fault sweep", s.faultSweep},
				{"kill sweep", s.killSweep},
				{"again sweep", s.againSweep},
			} {
				if !c.Swept || !strings.HasSuffix(sub.name, "sweep") {
					t.Run(sub.name, func(t *testing.T) { sub.run(t, c) })
				}
			}
			for _, tamper := range c.Tamper {
				t.Run("tamper/"+tamper.Name, func(t *testing.T) { s.tamper(t, c, tamper) })
			}
		})
	}
}

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
}

func (s Suite) bench(t *testing.T, c Conf) *bench {
	t.Helper()
	b := &bench{Env: NewEnv(t, s.Table), s: s, conf: c}
	b.ns = b.container(t)
	// Everything that a test made is removed, so that the next test has the same host.
	t.Cleanup(func() { b.Run(b.gcCall(nil)) })
	b.host()
	if c.Stateless {
		b.warm() // the kernel gives lo its address with the first up, and leaves it there
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

// host prepares the host, for the first time or again.
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

// warm makes the shared objects and returns the state with nothing attached.
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

func (s Suite) life(t *testing.T, c Conf) {
	b := s.bench(t, c)
	start := b.warm()
	a := b.OK(b.call("ADD"))
	attached := b.state()
	if !c.Again {
		b.Fail(b.call("ADD"), 0)
		b.same(attached, "after a refused second ADD")
	}
	b.OK(b.withPrev("CHECK", a.Stdout))
	b.same(attached, "after CHECK")
	if !c.Stateless {
		b.Fail(b.call("CHECK"), 7)
	}
	b.OK(b.withPrev("DEL", a.Stdout))
	b.same(start, "after DEL")
	b.OK(b.withPrev("DEL", a.Stdout))
	b.same(start, "after a second DEL")
	second := b.other("ADD")
	second.IfName = "eth1"
	b.OK(b.call("ADD"))
	b.OK(second)
	b.OK(b.call("DEL"))
	second.Verb = "DEL"
	b.OK(second)
	b.same(start, "after two attachments of one container")
}

func (s Suite) del(t *testing.T, c Conf) {
	b := s.bench(t, c)
	pristine := b.state()
	b.OK(b.call("DEL"))
	b.same(pristine, "after DEL without ADD")
	start := b.warm()

	b.OK(b.call("ADD"))
	empty := b.call("DEL")
	empty.Netns = ""
	b.OK(empty)
	b.ns.Reset(t) // loopback's DEL cannot reach a namespace that is not named
	b.same(start, "after DEL with an empty CNI_NETNS")

	gone := b.container(t)
	call := b.call("ADD")
	call.Netns = gone.Path()
	b.OK(call)
	gone.Remove(t)
	call.Verb = "DEL"
	b.OK(call)
	b.host()
	b.same(start, "after DEL with the namespace gone")

	b.delInDoubt(start)

	b.OK(b.call("ADD"))
	b.ns.Rename(t, "eth0", "moved0") // as a process there may do; an IPAM role makes no interface
	b.OK(b.call("DEL"))
	b.same(start, "after DEL with the interface renamed")

	for _, faulty := range b.faulty() {
		b.OK(b.call("ADD"))
		b.OK(faulty)
		b.same(start, "after DEL with a configuration that ADD refuses")
	}

	b.OK(b.call("ADD"))
	bare := b.call("DEL")
	bare.Conf = fmt.Sprintf(`{"cniVersion":%q,"name":%q,"type":%q}`, newest, b.network(), s.Type)
	b.Run(bare) // whether it succeeds or not, the next DEL finishes
	b.OK(b.call("DEL"))
	b.same(start, "after DEL with another configuration")
}

// delInDoubt runs DEL while the container's namespace exists and cannot be opened, for a
// reason other than that its path is missing. Such a DEL may fail. If it succeeds, it must
// have removed everything.
func (b *bench) delInDoubt(start string) {
	b.t.Helper()
	way := filepath.Join(b.t.TempDir(), "way")
	lead := func(to string) {
		b.t.Helper()
		if err := errors.Join(os.RemoveAll(way), os.Symlink(to, way)); err != nil {
			b.t.Fatal(err)
		}
	}
	dir, name := filepath.Split(b.ns.Path())
	call := b.call("ADD")
	call.Netns = filepath.Join(way, name)
	lead(dir)
	b.OK(call)
	call.Verb = "DEL"
	lead(way) // ELOOP
	first := b.Run(call)
	lead(dir)
	if first.Code != 0 {
		b.OK(call)
	}
	b.same(start, "after DEL with a namespace that cannot be opened")
}

// faulty are calls of DEL whose configurations were edited since ADD: one with
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

// network is the configuration's name.
func (b *bench) network() string {
	var n struct{ Name string }
	if err := json.Unmarshal([]byte(b.conf.JSON), &n); err != nil {
		b.t.Fatal(err)
	}
	return n.Name
}

func (s Suite) gc(t *testing.T, c Conf) {
	b := s.bench(t, c)
	pristine := b.state()
	keep := b.other("ADD")
	keepNS := b.container(t)
	keep.ID, keep.Netns = "keep", keepNS.Path()
	kept := b.OK(keep)
	start := b.state()
	b.OK(b.call("ADD"))
	with := b.state()
	none := b.gcCall(nil)
	none.Conf = b.with(newest, nil)
	b.OK(none)
	b.same(with, "after GC without a list")
	b.OK(b.gcCall([]roles.AttachmentID{{ContainerID: "keep", IfName: "eth0"}}))
	b.ns.Reset(t)
	b.same(start, "after GC that lists one of two")
	check := keep
	check.Verb, check.Conf = "CHECK", WithKeys(t, keep.Conf, map[string]any{"prevResult": json.RawMessage(kept.Stdout)})
	b.OK(check)
	b.OK(b.gcCall(nil))
	b.same(pristine, "after GC with an empty list")
}

func (s Suite) status(t *testing.T, c Conf) {
	b := s.bench(t, c)
	before := b.state()
	call := b.call("STATUS")
	call.ID, call.Netns, call.IfName = "", "", ""
	b.OK(call)
	b.same(before, "after STATUS")
}

func (s Suite) versions(t *testing.T, c Conf) {
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			b := s.bench(t, c)
			call := b.call("ADD")
			call.Conf = b.with(v, nil)
			if c.Chain != "" && !c.NoAddress && v < "0.3.0" { // these versions have no lists
				b.Fail(call, 7)
				return
			}
			if c.NoAddress && v < "0.3.0" {
				pristine := b.state()
				b.Fail(call, 0)
				b.OK(b.gcCall(nil))
				b.same(pristine, "after an ADD whose result cannot be expressed")
				return
			}
			a := b.OK(call)
			checkShape(t, v, a.Stdout)
			call.Verb = "CHECK"
			call.Conf = b.with(v, map[string]any{"prevResult": json.RawMessage(a.Stdout)})
			if v < "0.4.0" {
				b.Fail(call, 1)
			} else {
				b.OK(call)
			}
			for _, verb := range []string{"GC", "STATUS"} {
				call.Verb, call.Conf = verb, b.with(v, nil)
				if v < "1.1.0" {
					b.Fail(call, 1)
				} else {
					b.OK(call)
				}
			}
			call.Verb = "DEL"
			b.OK(call)
		})
	}
}

func (s Suite) tamper(t *testing.T, c Conf, tamper Tamper) {
	b := s.bench(t, c)
	pristine := b.state()
	a := b.OK(b.call("ADD"))
	var res roles.Result
	if err := json.Unmarshal([]byte(a.Stdout), &res); err != nil {
		t.Fatal(err)
	}
	tamper.Do(t, b.Env, b.ns, &res)
	b.Fail(b.withPrev("CHECK", a.Stdout), 0)
	b.OK(b.withPrev("DEL", a.Stdout))
	b.OK(b.call("ADD"))
	b.OK(b.call("DEL"))
	b.OK(b.gcCall(nil))
	b.same(pristine, "after tampering, DEL, a clean turn and GC")
}
