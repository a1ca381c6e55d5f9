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
	// Whole keeps every part of the suite for the first configuration in the tier `make test`, for the roles whose
	// writes stand for those of others.
	Whole bool
}

// Conf is one configuration of the role under test.
type Conf struct {
	Name string
	// JSON is a plugin configuration with "name", without "cniVersion".
	JSON string
	// Chain is the interface plugin before a chained role in the list, without "name" and
	// "cniVersion".
	Chain string
	// NoAddress marks configurations without IPAM, or with several addresses of a family.
	// Results before version 0.3.0 have one address of a family or of each, so ADD must fail
	// for these versions.
	NoAddress bool
	// Needs skips the test if the kernel lacks a feature. The kernel of the VM tests has
	// all of them.
	Needs func(testing.TB)
	// Host creates the host's objects that the configuration names. It is called again
	// after a namespace with virtual devices has ended, so the objects may exist.
	Host func(testing.TB)
	// Beyond is Env.Beyond.
	Beyond func() string
	// Flush deletes rules of cnibox as another program does. nil flushes nftables' ruleset.
	Flush func(testing.TB)
	// Tamper contains the changes after which CHECK must fail.
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
	// Repeatable means that a second ADD of the same attachment succeeds.
	Repeatable bool
	// NoSweeps skips the sweeps of this configuration, because those of another one make
	// the same writes. The sweeps of the first configuration probe every write. Those of
	// later configurations probe a part of the writes, because most writes are the same.
	NoSweeps bool
	// ContainerOnly means that the role's objects are in the container and only the
	// record lists them. If the record is lost, they are deleted with the container.
	ContainerOnly bool
	// Stateless means that the role keeps no records: it needs no prevResult for CHECK,
	// has only one interface, and GC finds nothing.
	Stateless bool
	// turn is the number of swept configurations before this one.
	turn int
	// few makes each sweep probe only a few writes, which the seed chooses.
	few bool
}

// Tamper is a change of the objects that ADD made, on the host or in the container.
type Tamper struct {
	Name string
	Do   func(t *testing.T, e *Env, ns *netopstest.NS, result *roles.Result)
}

// Inside is a change to eth0 in the container.
func Inside(name string, change netopstest.LinkChange) Tamper {
	return Tamper{Name: name, Do: func(t *testing.T, _ *Env, ns *netopstest.NS, _ *roles.Result) {
		t.Helper()
		ns.Change(t, "eth0", change)
	}}
}

// MTUs are changes of the MTU of eth0 and, with hostEnd, of the attachment's interface on
// the host.
func MTUs(hostEnd bool) []Tamper {
	all := []Tamper{Inside("MTU", netopstest.SmallerMTU)}
	if hostEnd {
		all = append(all, Outside("MTU of the host's end", netopstest.SmallerMTU))
	}
	return all
}

// Outside is a change to the attachment's interface on the host.
func Outside(name string, change netopstest.LinkChange) Tamper {
	return Tamper{Name: name, Do: func(t *testing.T, _ *Env, _ *netopstest.NS, r *roles.Result) {
		t.Helper()
		netopstest.ChangeHost(t, HostLink(r), change)
	}}
}

// HostLink returns the name of the last interface of the host that precedes the
// container's interface in a result. A bridge precedes this interface, and a VLAN's
// gateway follows the container's.
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
			t.Fatalf("%s: %v", name, err)
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
	for i, c := range s.Confs {
		c.turn, c.few = swept, testing.Short() && !s.Whole
		if !c.NoSweeps {
			swept++
		}
		t.Run(c.Name, func(t *testing.T) {
			if c.Needs != nil {
				c.Needs(t)
			}
			// The sweeps take most of the time, and say little about a role whose life or whose CHECK fails.
			if !t.Run("life", func(t *testing.T) { s.life(t, c) }) {
				return
			}
			for _, tamper := range c.Tamper {
				if !t.Run("tamper/"+tamper.Name, func(t *testing.T) { s.tamper(t, c, tamper) }) {
					return
				}
			}
			for _, sub := range []struct {
				name string
				run  func(*testing.T, Conf)
			}{
				{"del", s.del},
				{"del of another", s.delOfAnother},
				{"gc", s.gc},
				{"state lost", s.stateLost},
				{"status", s.status},
				{"restored", s.restored},
				{"versions", s.versions},
				{"old lists", s.oldLists},
				{"fault sweep", s.faultSweep},
				{"kill sweep", s.killSweep},
				{"again sweep", s.againSweep},
			} {
				if !s.leavesOut(i, c, sub.name) {
					t.Run(sub.name, func(t *testing.T) { sub.run(t, c) })
				}
			}
		})
	}
}

// leavesOut reports whether a part of the suite is left out for a configuration: with a stride of more than 1, what proves little that
// the same part did not prove for an earlier configuration of the role. Short runs have life, DEL, GC and STATUS of each configuration
// and sweeps of the first one. Only whole suites have the rest, because it tests little of a role that is its own.
func (s Suite) leavesOut(i int, c Conf, part string) bool {
	sweep := strings.HasSuffix(part, "sweep")
	if c.NoSweeps && sweep {
		return true
	}
	if testing.Short() {
		switch part {
		case "life", "del", "gc", "status":
			return false
		}
		if sweep {
			return c.turn > 0
		}
		return i > 0 || !s.Whole
	}
	if v := os.Getenv(strideEnv); v == "" || v == "1" || i == 0 {
		return false
	}
	switch part {
	case "versions", "old lists":
		return !c.NoAddress
	case "restored", "del of another", "state lost":
		return true
	}
	return sweep && c.turn > 0
}

func (s Suite) life(t *testing.T, c Conf) {
	b := s.bench(t, c)
	start := b.warm()
	a := b.OK(b.call("ADD"))
	attached := b.state()
	if !c.Repeatable {
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
	b.ns.Reset(t) // loopback's DEL cannot find the namespace without CNI_NETNS
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
	b.delKeepDamaged(start)

	b.OK(b.call("ADD"))
	b.ns.Rename(t, "eth0", "moved0") // a process in the container may rename it; an IPAM role makes no interface
	b.OK(b.call("DEL"))
	b.same(start, "after DEL with the interface renamed")

	for _, faulty := range b.faulty() {
		b.OK(b.call("ADD"))
		b.OK(faulty)
		b.same(start, "after DEL with a configuration that ADD refuses")
	}

	b.OK(b.call("ADD"))
	odd := b.call("DEL")
	odd.Args = "nonsense;FOO=1;IP=999;MAC=xx;K8S_POD_NAME=../x"
	b.OK(odd)
	b.OK(odd)
	b.same(start, "after two DELs with invalid arguments")

	b.OK(b.call("ADD"))
	bare := b.call("DEL")
	bare.Conf = fmt.Sprintf(`{"cniVersion":%q,"name":%q,"type":%q}`, newest, b.network(), s.Type)
	b.Run(bare) // this DEL may fail; the next one finishes
	b.OK(b.call("DEL"))
	b.same(start, "after DEL with another configuration")
}

// delOfAnother runs ADD and DEL of another network, and of another container in the same namespace, for
// the interface that is attached. Such an ADD fails if the role makes the interface. DEL leaves the
// attachment as it is, because the record says whose it is.
func (s Suite) delOfAnother(t *testing.T, c Conf) {
	if c.Stateless {
		t.Skip("has no record")
	}
	b := s.bench(t, c)
	start := b.warm()
	result := b.OK(b.call("ADD")).Stdout
	attached := b.state()
	for _, another := range []struct{ name, network, id string }{
		{"another network", "another", "c1"},
		{"another container", b.network(), "c2"},
	} {
		for _, prev := range []map[string]any{nil, {"prevResult": json.RawMessage(result)}} {
			if prev != nil && another.id == "c1" {
				continue // the network was renamed
			}
			call := b.call("ADD")
			call.ID, call.Conf = another.id, WithKeys(t, call.Conf, map[string]any{"name": another.network})
			b.Run(call)
			call.Verb, call.Conf = "DEL", WithKeys(t, call.Conf, prev)
			b.OK(call)
			b.same(attached, "after ADD and DEL of "+another.name)
		}
	}
	b.OK(b.withPrev("CHECK", result))
	del := b.withPrev("DEL", result)
	if role, _ := s.Table.Lookup(s.Type); role.Kind == roles.Interface || role.Kind == roles.Chained {
		del.Conf = WithKeys(t, del.Conf, map[string]any{"name": "renamed"})
	}
	b.OK(del)
	b.same(start, "after DEL with the network's new name")
}

// delInDoubt runs DEL while the container's namespace exists and cannot be opened, for a
// reason other than that its path is missing. Such a DEL may fail. If it succeeds, it must
// have removed everything.
func (b *bench) delInDoubt(start string) {
	b.t.Helper()
	link := filepath.Join(b.t.TempDir(), "link")
	pointTo := func(to string) {
		b.t.Helper()
		if err := errors.Join(os.RemoveAll(link), os.Symlink(to, link)); err != nil {
			b.t.Fatal(err)
		}
	}
	dir, name := filepath.Split(b.ns.Path())
	call := b.call("ADD")
	call.Netns = filepath.Join(link, name)
	pointTo(dir)
	b.OK(call)
	call.Verb = "DEL"
	pointTo(link) // ELOOP
	first := b.Run(call)
	pointTo(dir)
	if first.Code != 0 {
		b.OK(call)
	}
	b.same(start, "after DEL with a namespace that cannot be opened")
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
	b.same(pristine, "after the change, DEL, another ADD and DEL, and GC")
}
