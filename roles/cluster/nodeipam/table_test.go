package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// testTable is a table with a version for each change.
type testTable struct {
	*table
	t       *testing.T
	version int
}

func newTestTable(t *testing.T, clusters string, mask4, mask6 int, services string) *testTable {
	t.Helper()
	n := networks{mask4: mask4, mask6: mask6}
	for list, to := range map[string]*[]netip.Prefix{clusters: &n.clusters, services: &n.services} {
		if list != "" {
			if err := prefixes(to)(list); err != nil {
				t.Fatal(err)
			}
		}
	}
	table, err := n.table()
	if err != nil {
		t.Fatal(err)
	}
	table.alone = true
	return &testTable{table: table, t: t}
}

// object returns a Node of a new version.
func (t *testTable) object(name, uid string, cidrs ...string) *nodeObject {
	t.version++
	var o nodeObject
	o.Metadata = rest.Metadata{Name: name, UID: uid, ResourceVersion: strconv.Itoa(t.version)}
	o.Spec.PodCIDRs = cidrs
	if len(cidrs) > 0 {
		o.Spec.PodCIDR = cidrs[0]
	}
	return &o
}

// give assigns pod networks to a new Node, and returns them as the server does.
func (t *testTable) give(name string) string {
	t.t.Helper()
	if waits, _ := t.put(t.object(name, name)); !waits {
		t.t.Fatalf("%s does not wait", name)
	}
	a, err := t.assign(name, nil)
	if err != nil {
		return err.Error()
	}
	var texts []string
	for _, p := range a.cidrs {
		texts = append(texts, p.String())
	}
	t.refresh(t.object(name, name, texts...))
	return strings.Join(texts, ",")
}

func (t *testTable) want(what, got, want string) {
	t.t.Helper()
	if got != want {
		t.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// Nodes get the next free blocks. Services' blocks are left out, existing nodes keep theirs, and a
// released block is used last.
func TestAssign(t *testing.T) {
	s := newTestTable(t, "10.244.0.0/21", 0, 0, "10.244.1.0/24,10.244.6.0/23")
	s.put(s.object("old", "old", "10.244.2.0/24"))
	s.want("a", s.give("a"), "10.244.0.0/24")
	s.want("b", s.give("b"), "10.244.3.0/24")
	s.remove("a")
	s.want("c", s.give("c"), "10.244.4.0/24")
	s.want("d", s.give("d"), "10.244.5.0/24")
	s.want("e", s.give("e"), "10.244.0.0/24")
	if got := s.give("f"); !strings.Contains(got, "every /24 of 10.244.0.0/21 is taken") {
		t.Errorf("f got %q", got)
	}
	s.remove("old")
	s.want("starved", fmt.Sprint(s.starved()), "[f]")
	a, err := s.assign("f", nil)
	if err != nil || a.cidrs[0].String() != "10.244.2.0/24" {
		t.Errorf("%+v, %v", a, err)
	}
}

// If one family is exhausted, no block of the other is taken.
func TestAllOrNothing(t *testing.T) {
	s := newTestTable(t, "fd00::/63,10.244.0.0/22", 24, 64, "")
	s.want("a", s.give("a"), "fd00::/64,10.244.0.0/24")
	s.want("b", s.give("b"), "fd00:0:0:1::/64,10.244.1.0/24")
	s.put(s.object("c", "c"))
	for range 10 {
		if a, err := s.assign("c", nil); !errors.Is(err, cluster.ErrFull) || a != nil {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if b := s.sets[1]; b.Used != 2 || b.next != 2 {
		t.Errorf("%+v", b)
	}
	s.remove("a")
	a, err := s.assign("c", nil)
	if err != nil || fmt.Sprint(a.cidrs) != "[fd00::/64 10.244.2.0/24]" {
		t.Errorf("%+v, %v", a, err)
	}
}

// Until the server's answer is known, a node keeps the blocks that were sent.
func TestUnanswered(t *testing.T) {
	s := newTestTable(t, "10.244.0.0/16", 0, 0, "")
	s.put(s.object("a", "1"))
	first, _ := s.assign("a", nil)
	s.refresh(s.object("a", "1")) // another change of the Node
	second, _ := s.assign("a", nil)
	if first.cidrs[0] != second.cidrs[0] || first.version == second.version {
		t.Errorf("%+v, then %+v", first, second)
	}
	s.want("another node", s.give("b"), "10.244.1.0/24")
	// The Node is replaced: the request cannot be executed any more.
	waits, released := s.put(s.object("a", "2"))
	if third, _ := s.assign("a", nil); !waits || !released || third.cidrs[0].String() != "10.244.2.0/24" || s.sets[0].Used != 2 {
		t.Errorf("%v %v %+v", waits, released, third)
	}
	// A reply about the first one comes late.
	s.refresh(s.object("a", "1", "10.244.0.0/24"))
	if s.nodes["a"].assigned {
		t.Error("the reply was stored for a later Node")
	}
	// Replies and watch events overtake each other.
	late := s.object("a", "2")
	s.refresh(s.object("a", "2", "10.244.2.0/24"))
	s.put(late)
	if a, err := s.assign("a", nil); a != nil || err != nil || s.nodes["a"].fault != nil {
		t.Errorf("%+v, %v, %v", a, err, s.nodes["a"].fault)
	}
	s.put(s.object("c", "c"))
	gone, _ := s.assign("c", nil)
	s.remove("c")
	s.refresh(s.object("c", "c", gone.cidrs[0].String()))
	if len(s.nodes) != 2 || s.sets[0].Used != 2 {
		t.Errorf("a deleted node is back: %v", s.nodes)
	}
}

// Nodes that this daemon cannot repair are reported, and their networks are not given again.
func TestFaults(t *testing.T) {
	s := newTestTable(t, "10.244.0.0/16,fd00::/48", 24, 64, "")
	for i, c := range []struct {
		cidrs []string
		want  string
	}{
		{[]string{"10.244.0.0/24", "fd00::/64"}, ""},
		{[]string{"10.9.0.0/24", "fd00:0:0:1::/64"}, "spec.podCIDRs: 10.9.0.0/24 is outside of the cluster networks 10.244.0.0/16,fd00::/48"},
		{[]string{"10.244.2.0/24"}, "has none in fd00::/48"},
		{[]string{"rubbish", "fd00:0:0:3::/64"}, `spec.podCIDRs[0]: "rubbish" is not a network`},
		{[]string{"10.0.0.0/8", "::ffff:10.0.0.0/104"}, `spec.podCIDRs: 10.0.0.0/8 is outside`},
		{[]string{"fd00:0:0:6::/64", "fd00:0:0:7::/64"}, "spec.podCIDRs[1]: fd00:0:0:7::/64 is a second network of its family"},
		{[]string{"10.244.0.0/25", "fd00:0:0:5::/64"}, "10.244.0.0/25 overlaps 10.0.0.0/8 of node 4"},
	} {
		name := strconv.Itoa(i)
		s.put(s.object(name, name, c.cidrs...))
		got := ""
		for _, f := range s.faults() {
			if f.Node == name {
				got = f.Error
			}
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v: got %q, want %q", c.cidrs, got, c.want)
		}
	}
	s.remove("4")
	s.want("free", s.give("new"), "10.244.1.0/24,fd00:0:0:2::/64")
	if got := fmt.Sprint(s.faults()); !strings.Contains(got, "10.244.0.0/25 overlaps 10.244.0.0/24 of node 0") {
		t.Errorf("faults %s", got)
	}
	// The old field alone counts.
	o := s.object("single", "single")
	o.Spec.PodCIDR = "10.244.3.0/24"
	s.put(o)
	s.want("after it", s.give("next"), "10.244.4.0/24,fd00:0:0:4::/64")
}

// A hostile object holds at most one block of each family, and the work for it does not depend on the number of blocks
// that it overlaps: neither beside another one, nor when it is removed.
func TestHostileNode(t *testing.T) {
	s := newTestTable(t, "10.0.0.0/8", 32, 0, "")
	many := slices.Repeat([]string{"10.0.0.0/9"}, 40)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range 40 {
		name := fmt.Sprint("hostile-", i)
		s.put(s.object(name, name, many...))
	}
	s.put(s.object("two", "two", "10.192.0.0/31", "10.192.0.2/31"))
	s.want("a good node", s.give("good"), "10.128.0.0/32")
	f := s.faults()
	if s.sets[0].Used != 1<<23+3 || len(f) != 41 || !strings.Contains(f[0].Error, "spec.podCIDRs: 40 networks") {
		t.Errorf("%d blocks are used, %d faults: %.200v", s.sets[0].Used, len(f), f)
	}
	for i := range 40 {
		s.remove(fmt.Sprint("hostile-", i))
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("allocated %d MB", got>>20)
	}
	s.remove("two")
	if s.sets[0].Used != 1 {
		t.Errorf("%d blocks are used", s.sets[0].Used)
	}
}

// A Node that an admission webhook's failure protects from every change does not hold up a new leader for longer than
// fenceTime. A server that is overloaded or does not answer does.
func TestIsRefusal(t *testing.T) {
	for code, want := range map[int]bool{500: true, 403: true, 422: true, 429: false, 503: false, 504: false} {
		if got := isRefusal(fmt.Errorf("patch: %w", &rest.StatusError{Code: code})); got != want {
			t.Errorf("%d: %v", code, got)
		}
	}
	if isRefusal(cluster.ErrUnavailable) {
		t.Error("no answer is a refusal")
	}
}

// A name that would change the path of a request gets nothing.
func TestName(t *testing.T) {
	s := newTestTable(t, "10.244.0.0/16", 0, 0, "")
	s.put(s.object("..", "a"))
	if a, err := s.assign("..", nil); a != nil || err != nil || len(s.faults()) != 1 || s.sets[0].Used != 0 {
		t.Errorf("%+v, %v, %v", a, err, s.faults())
	}
}

// Two programs that assign pod networks give the same network twice, so this is reported.
func TestOtherProgram(t *testing.T) {
	s := newTestTable(t, "10.244.0.0/16", 0, 0, "")
	s.put(s.object("a", "a"))
	s.put(s.object("a", "a", "10.244.9.0/24"))
	s.put(s.object("made with networks", "b", "10.244.8.0/24"))
	if f := s.faults(); len(f) != 1 || f[0].Node != "a" || !strings.Contains(f[0].Error, "--allocate-node-cidrs=false") {
		t.Errorf("%v", f)
	}
}

// FuzzTable: no node gets a block that overlaps another node's, and no block is lost. Nodes that were made with
// pod networks may overlap any node.
func FuzzTable(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "10.244.1.0/24")
	f.Add([]byte{3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 7, 6}, "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, ops []byte, cidr string) {
		s := newTestTable(t, "10.244.0.0/21,fd00::/60", 24, 64, "10.244.7.0/24")
		made := map[string]bool{}
		for _, op := range ops {
			name := string('a' + rune(op>>2%8))
			switch op % 4 {
			case 0:
				s.put(s.object(name, name))
			case 1:
				made[name] = true
				s.put(s.object(name, name, cidr))
			case 2:
				delete(made, name)
				s.remove(name)
			case 3:
				a, err := s.assign(name, nil)
				if err != nil || a == nil {
					continue
				}
				for other, n := range s.nodes {
					for _, p := range n.held {
						if other != name && !made[other] && (p.Overlaps(a.cidrs[0]) || p.Overlaps(a.cidrs[1])) {
							t.Fatalf("%s gets %v, and %s has %v", name, a.cidrs, other, n.held)
						}
					}
				}
				if op&128 == 0 {
					s.refresh(s.object(name, name, a.cidrs[0].String(), a.cidrs[1].String()))
				}
			}
		}
		for name := range s.nodes {
			s.remove(name)
		}
		if s.sets[0].Used != 1 || s.sets[1].Used != 0 || len(s.sets[0].holders) != 1 {
			t.Errorf("blocks are lost: %+v %+v", s.sets[0].metrics, s.sets[0].holders)
		}
	})
}
