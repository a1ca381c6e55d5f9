package nodeipam

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
)

// cidr returns a ClusterCIDR that has the finalizer. The terms of its selector are JSON.
func cidr(t *testing.T, name, ipv4, ipv6 string, hostBits int, terms string) *clusterCIDR {
	t.Helper()
	o := &clusterCIDR{}
	o.Metadata = rest.Metadata{Name: name, ResourceVersion: "1", Finalizers: []string{rangeFinalizer}}
	o.Spec.IPv4, o.Spec.IPv6, o.Spec.PerNodeHostBits = ipv4, ipv6, hostBits
	if terms != "" {
		if err := json.Unmarshal([]byte(`{"nodeSelectorTerms":[`+terms+`]}`), &o.Spec.NodeSelector); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// term is a selector's term with the given requirements "KEY OPERATOR VALUE…".
func term(requirements ...string) string {
	var t selectorTerm
	for _, r := range requirements {
		w := strings.Fields(r)
		t.Expressions = append(t.Expressions, rest.Requirement{Key: w[0], Operator: w[1], Values: w[2:]})
	}
	raw, _ := json.Marshal(t)
	return string(raw)
}

// TestOrder: the rules by which node-ipam-controller chooses among ClusterCIDRs that select a node.
func TestOrder(t *testing.T) {
	labels := map[string]string{"a": "1", "b": "2", "zone": "x"}
	for _, c := range []struct {
		name string
		// better and worse select the node.
		better, worse *clusterCIDR
	}{
		{"more requirements match", cidr(t, "x", "10.0.0.0/8", "", 8, term("a Exists", "b In 2 3")), cidr(t, "y", "10.1.0.0/24", "", 8, term("a Exists"))},
		{"a selector before none", cidr(t, "x", "10.0.0.0/8", "", 8, term("zone NotIn y")), cidr(t, "y", "10.1.0.0/24", "", 8, "")},
		{"fewer blocks", cidr(t, "x", "10.1.0.0/20", "", 8, term("a Exists")), cidr(t, "y", "10.0.0.0/16", "", 8, term("a Exists"))},
		{"the family with fewer blocks counts", cidr(t, "x", "10.0.0.0/8", "fd00::/116", 8, term("a Exists")), cidr(t, "y", "10.0.0.0/19", "", 8, term("a Exists"))},
		{"smaller blocks", cidr(t, "x", "10.2.0.0/24", "", 5, term("b Exists")), cidr(t, "y", "10.0.0.0/22", "", 7, term("a Exists"))},
		{"selector", cidr(t, "x", "10.9.0.0/16", "", 8, term("a In 1")), cidr(t, "y", "10.0.0.0/16", "", 8, term("b In 2"))},
		{"network as text", cidr(t, "x", "10.10.0.0/16", "", 8, ""), cidr(t, "y", "10.9.0.0/16", "", 8, "")},
	} {
		for _, order := range [][]*clusterCIDR{{c.better, c.worse}, {c.worse, c.better}} {
			s := newTable(nil, nil)
			for _, o := range order {
				if r := s.putRange(o); r.fault != nil {
					t.Fatal(r.fault)
				}
			}
			got := s.ordered("node", labels)
			if len(got) != 2 || got[0].name != "x" {
				t.Errorf("%s: %d ranges, the first is %v", c.name, len(got), got[0].name)
			}
		}
	}
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"a": "1", "size": "10"}
	for text, want := range map[string]int{
		term("a In 1 2"): 1, term("a In 2"): 0, term("c In 1"): 0, term("a NotIn 2"): 1, term("a NotIn 1"): 0, term("c NotIn 1"): 1,
		term("a Exists"): 1, term("c Exists"): 0, term("c DoesNotExist"): 1, term("a DoesNotExist"): 0,
		term("size Gt 9"): 1, term("size Gt 10"): 0, term("size Lt 11"): 1, term("size Lt 10"): 0, term("c Gt 1"): 0,
		term("a Exists", "size Exists"): 2, term("a Exists", "c Exists"): 0, term(): 0,
		term("c Exists") + "," + term("a Exists", "size Exists"):                    2,
		`{"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}`: 1,
		`{"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}`: 0,
	} {
		r := newRange(cidr(t, "r", "10.0.0.0/16", "", 8, text))
		if n, ok := r.selects("n1", labels); r.fault != nil || n != want || ok != (want > 0) {
			t.Errorf("%s: %d, %v, %v; want %d", text, n, ok, r.fault, want)
		}
	}
}

func TestRangeFaults(t *testing.T) {
	for want, o := range map[string]*clusterCIDR{
		"ipv4 and ipv6 are missing":      cidr(t, "r", "", "", 8, ""),
		"perNodeHostBits: 3 is less":     cidr(t, "r", "10.0.0.0/16", "", 3, ""),
		"node mask /15":                  cidr(t, "r", "10.0.0.0/16", "", 17, ""),
		"spec.ipv6":                      cidr(t, "r", "10.0.0.0/16", "10.0.0.0/16", 8, ""),
		`spec.ipv4: "x" is not`:          cidr(t, "r", "x", "", 8, ""),
		"is not a requirement":           cidr(t, "r", "10.0.0.0/16", "", 8, term("a Equals 1")),
		`"a" "Exists" with 1 values`:     cidr(t, "r", "10.0.0.0/16", "", 8, term("a Exists 1")),
		`"a" "Gt" with 2 values`:         cidr(t, "r", "10.0.0.0/16", "", 8, term("a Gt 1 2")),
		"matchFields: use metadata.name": cidr(t, "r", "10.0.0.0/16", "", 8, `{"matchFields":[{"key":"x","operator":"In","values":["n1"]}]}`),
		"nodeSelectorTerms: is empty":    cidr(t, "r", "10.0.0.0/16", "", 8, " "),
	} {
		r := newRange(o)
		if r.fault == nil || !strings.Contains(r.fault.Error(), want) || r.sets != nil {
			t.Errorf("%v, %v; want %q", r.fault, r.sets, want)
		}
	}
}

// TestRangesDeletedNode: a Node that the server does not have gets no block, because its labels are unknown.
func TestRangesDeletedNode(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	client, err := rest.Open(rest.Server(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := &testTable{table: newTable(nil, nil), t: t}
	s.putRange(cidr(t, "all", "10.0.0.0/16", "", 8, ""))
	s.put(s.object("n1", "1"))
	c := newController(kubernetes(client), slog.New(slog.DiscardHandler), &election.Term{}, s.table, &networks{objects: true})
	if retry := c.assign(t.Context(), "n1"); !retry || s.nodes["n1"].held != nil {
		t.Errorf("retry %v, blocks %v", retry, s.nodes["n1"].held)
	}
	c.Remove("n1", false)
	if c.assign(t.Context(), "n1") {
		t.Error("a deleted Node is tried again")
	}
}

// TestRangesErrors: an error of one collection stays when the other can be followed. The text about a ClusterCIDR is
// bounded.
func TestRangesErrors(t *testing.T) {
	c := newController(nil, slog.New(slog.DiscardHandler), &election.Term{}, newTable(nil, nil), &networks{objects: true})
	c.Failed(errors.New("nodes"))
	rangeFollower{c}.Failed(errors.New("ranges"))
	c.Complete(nil)
	var s status
	if c.describe(&s); s.Error != "ranges" {
		t.Errorf("error %q", s.Error)
	}
	rangeFollower{c}.Recovered()
	s = status{}
	if c.describe(&s); s.Error != "" {
		t.Errorf("error %q", s.Error)
	}
	r := c.table.putRange(cidr(t, "bad", "10.0.0.0/16", "", 8, strings.Repeat(term("a Is")+",", 5000)+term("a Is")))
	if text := r.fault.Error(); len(text) > 2000 || !strings.Contains(text, "4991 further faults") {
		t.Errorf("%d bytes: %.3000s", len(text), text)
	}
}

// TestRangesListed: the ranges and the Nodes are read at the same time. A Node is not reported because its range is read after it.
func TestRangesListed(t *testing.T) {
	var log bytes.Buffer
	s := &testTable{t: t}
	c := newController(nil, slog.New(slog.NewTextHandler(&log, nil)), &election.Term{}, newTable(nil, nil), &networks{objects: true})
	c.Put(s.object("n1", "1", "10.0.1.0/24"), true)
	c.Put(s.object("n2", "2", "10.9.1.0/24"), true)
	c.Complete(map[string]bool{"n1": true, "n2": true})
	rangeFollower{c}.Put(cidr(t, "r", "10.0.0.0/16", "", 8, ""), true)
	if log.Len() > 0 {
		t.Errorf("before all ranges are known: %s", &log)
	}
	rangeFollower{c}.Complete(map[string]bool{"r": true})
	c.Put(s.object("n2", "2", "10.9.1.0/24"), false)
	if text := log.String(); strings.Count(text, "needs an operator") != 1 || !strings.Contains(text, "node=n2") {
		t.Errorf("log: %s", text)
	}
}

// TestManyRanges: the text about a node names the first ranges only.
func TestManyRanges(t *testing.T) {
	s := &testTable{table: newTable(nil, nil), t: t}
	const count = 2000
	for i := range count {
		name := strconv.Itoa(i)
		s.put(s.object(name, name, fmt.Sprintf("10.%d.%d.0/28", i/256, i%256)))
	}
	for i := range count {
		s.putRange(cidr(t, fmt.Sprintf("range-%d", i), fmt.Sprintf("11.%d.%d.0/20", i/256, i%256), "", 4, ""))
	}
	if f := s.faults(); len(f) != maxFaults || len(f[0].Error) > 1000 || !strings.Contains(f[0].Error, "1990 more") {
		t.Errorf("%d faults, the first has %d bytes: %.1200s", len(f), len(f[0].Error), f[0].Error)
	}
}

// TestRangesOverlap: no block is given twice by overlapping ranges, a full range is passed over, and one that is deleted is not used and
// stays until no node has a block of it.
func TestRangesOverlap(t *testing.T) {
	s := &testTable{table: newTable(nil, nil), t: t}
	small := cidr(t, "small", "10.0.0.0/23", "", 8, term("a Exists"))
	s.putRange(small)
	s.putRange(cidr(t, "large", "10.0.0.0/22", "", 7, ""))
	labels := map[string]string{"a": ""}
	give := func(name string, labels map[string]string) string {
		t.Helper()
		s.put(s.object(name, name))
		a, err := s.assign(name, labels)
		if err != nil {
			return err.Error()
		}
		o := s.object(name, name, fmt.Sprint(a.cidrs[0]))
		s.refresh(o)
		return a.cidrs[0].String()
	}
	var got []string
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		use := labels
		if name == "n2" {
			use = nil
		}
		got = append(got, give(name, use))
	}
	if want := []string{"10.0.0.0/24", "10.0.1.0/25", "10.0.1.128/25", "10.0.2.0/25"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if f := s.faults(); len(f) > 0 {
		t.Errorf("faults %v", f)
	}
	small.Metadata.DeletionTimestamp, small.Metadata.ResourceVersion = "now", "2"
	r := s.putRange(small)
	if s.isUsed(r) {
		t.Error("a range is kept whose blocks another range has, too")
	}
	large := s.rangeNamed("large")
	large.deleting = true
	if !s.isUsed(r) || !s.isUsed(large) || len(s.ordered("n", labels)) > 0 {
		t.Error("a deleted range with nodes is not kept, or is used")
	}
	if text := give("n5", labels); !strings.Contains(text, "no ClusterCIDR selects this node") {
		t.Error(text)
	}
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
		s.remove(name)
	}
	if s.isUsed(r) || s.isUsed(large) {
		t.Error("a range without nodes is kept")
	}
	s.put(s.object("n6", "n6", "10.0.3.0/24"))
	s.removeRange("large")
	s.removeRange("small")
	if f := s.faults(); len(f) != 1 || !strings.Contains(f[0].Error, "is outside of the cluster networks") {
		t.Errorf("faults %v", f)
	}
	if s.putRange(cidr(t, "new", "10.0.0.0/16", "", 8, "")); len(s.faults()) != 0 || s.sets[0].Used != 1 {
		t.Errorf("faults %v, %d blocks are used", s.faults(), s.sets[0].Used)
	}
}
