package nodeipam

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store/cluster/dir"
	"github.com/cnibox/cnibox/store/cluster/kube/election"
	"github.com/cnibox/cnibox/store/cluster/kube/rest"
	"github.com/cnibox/cnibox/store/cluster/objects"
)

// conditionServer has Nodes with at most one condition, and counts the changes of conditions.
type conditionServer struct {
	t       *testing.T
	client  *rest.Client
	lease   *objects.Client
	log     bytes.Buffer
	nodes   map[string]*nodeObject
	version int
	patches int
	refuses bool
}

func newConditionServer(t *testing.T) *conditionServer {
	t.Helper()
	s := &conditionServer{t: t, nodes: map[string]*nodeObject{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	var err error
	if s.client, err = rest.Open(rest.Choose("", server.URL, func(string) string { return "" })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	at := t.TempDir()
	if err := os.WriteFile(filepath.Join(at, "config.json"), []byte(`{"Network":"10.244.0.0/16"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := dir.Open(dir.Options{Dir: at, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	s.lease = objects.New(r)
	return s
}

func (s *conditionServer) add(name string) {
	o := &nodeObject{}
	o.Metadata = rest.Metadata{Name: name, UID: "uid of " + name}
	s.nodes[name] = o
	s.changed(o)
}

func (s *conditionServer) changed(o *nodeObject) {
	s.version++
	o.Metadata.ResourceVersion = fmt.Sprint(s.version)
}

func (s *conditionServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, isStatus := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, nodesPath+"/"), "/status")
	o := s.nodes[name]
	switch {
	case r.Method == http.MethodPost:
		w.WriteHeader(http.StatusCreated)
		return
	case isStatus:
		s.patches++
		if s.refuses {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		s.patchCondition(r, o)
	default:
		if err := json.NewDecoder(r.Body).Decode(o); err != nil {
			s.t.Error(err)
		}
	}
	s.changed(o)
	if err := json.NewEncoder(w).Encode(o); err != nil {
		s.t.Error(err)
	}
}

func (s *conditionServer) patchCondition(r *http.Request, o *nodeObject) {
	var p struct {
		Metadata struct{ UID string }
		Status   struct {
			Conditions []struct {
				condition
				Patch   string `json:"$patch"`
				Message string
			}
		}
	}
	err := json.NewDecoder(r.Body).Decode(&p)
	if err != nil || r.Header.Get("Content-Type") != rest.StrategicMergePatch || p.Metadata.UID != o.Metadata.UID || len(p.Status.Conditions) != 1 {
		s.t.Errorf("%v: %s: %+v", err, r.Header.Get("Content-Type"), p)
		return
	}
	c := p.Status.Conditions[0]
	if c.Type != conditionType || (c.Patch == "delete") != (c.Message == "") {
		s.t.Errorf("%+v", c)
	}
	o.Status.Conditions = []condition{c.condition}
	if c.Patch != "" {
		o.Status.Conditions = nil
	}
}

// lead runs a term of a new process, which reads all Nodes of a cluster with one block.
func (s *conditionServer) lead(of *registry, term func(ctx context.Context, c *controller)) {
	s.t.Helper()
	log := slog.New(slog.NewTextHandler(&s.log, nil))
	ctx, stop := context.WithCancel(s.t.Context())
	seen := func(_ string, err error) {
		if err != nil {
			s.t.Error(err)
			stop()
		}
	}
	o := election.Options{
		Client: s.lease, Namespace: "kube-system", Name: lockName, Identity: "test", Log: log, Seen: seen, Now: time.Now,
		Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 10 * time.Millisecond,
	}
	n := networks{clusters: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}, mask4: 24}
	_ = election.Run(ctx, o, func(ctx context.Context, t *election.Term) bool {
		defer stop()
		table, err := n.table()
		if err != nil {
			s.t.Error(err)
			return true
		}
		c := newController(of, log, t, table, &n)
		names := map[string]bool{}
		for name, o := range s.nodes {
			names[name] = true
			c.Put(o, true)
		}
		c.Complete(names)
		c.assigning = true
		term(ctx, c)
		return true
	})
}

// pass tries all nodes that wait or have an outdated condition, and returns the number of changed conditions.
func (s *conditionServer) pass(ctx context.Context, c *controller) int {
	before := s.patches
	for _, name := range c.table.unfinished() {
		c.assign(ctx, name)
	}
	return s.patches - before
}

// TestConditionOnce: each Node without a block gets the condition once, also over terms and processes, and loses it with a block.
func TestConditionOnce(t *testing.T) {
	s := newConditionServer(t)
	const count = 747
	for i := range count + 1 {
		s.add(fmt.Sprintf("node-%03d", i))
	}
	wants := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d changes of conditions, want %d", what, got, want)
		}
	}
	s.lead(kubernetes(s.client), func(ctx context.Context, c *controller) {
		wants("first pass", s.pass(ctx, c), count)
		wants("second pass", s.pass(ctx, c), 0)
	})
	want := condition{conditionType, "False", notAvailable}
	if first, other := s.nodes["node-000"], s.nodes["node-001"]; len(first.Spec.PodCIDRs) != 1 || first.condition() != (condition{}) || other.condition() != want {
		t.Fatalf("%+v, %+v", first, other)
	}
	s.lead(kubernetes(s.client), func(ctx context.Context, c *controller) {
		wants("next leader", s.pass(ctx, c), 0)
		delete(s.nodes, "node-000")
		c.Remove("node-000", false)
		wants("released block", s.pass(ctx, c), 1)
		wants("pass after it", s.pass(ctx, c), 0)
		c.report(ctx, "node-002", assignmentFailed, context.Canceled)
		wants("another reason", s.pass(ctx, c), 1) // and back
	})
	got := s.nodes["node-001"]
	if len(got.Spec.PodCIDRs) != 1 || got.condition() != (condition{}) {
		t.Errorf("%+v", got)
	}
	// The leader ended between the assignment and the removal of the condition.
	got.Status.Conditions = []condition{{"Ready", "True", "KubeletReady"}, want}
	s.lead(kubernetes(s.client), func(ctx context.Context, c *controller) {
		wants("outdated condition", s.pass(ctx, c), 1)
		wants("pass after it", s.pass(ctx, c), 0)
	})
}

// TestConditionForbidden: without the right nodeipam logs that once, assigns pod networks, and does not ask for each Node.
func TestConditionForbidden(t *testing.T) {
	s := newConditionServer(t)
	s.refuses = true
	for i := range 10 {
		s.add(fmt.Sprint("node-", i))
	}
	reg := kubernetes(s.client)
	for range 2 {
		s.lead(reg, func(ctx context.Context, c *controller) { s.pass(ctx, c); s.pass(ctx, c) })
	}
	if n := strings.Count(s.log.String(), "cannot change the condition"); n != 1 || s.patches != 1 || len(s.nodes["node-0"].Spec.PodCIDRs) != 1 {
		t.Errorf("%d lines, %d requests, %+v: %s", n, s.patches, s.nodes["node-0"], &s.log)
	}
	// The right is granted later.
	s.refuses, reg.refused.until = false, time.Time{}
	s.lead(reg, func(ctx context.Context, c *controller) { s.pass(ctx, c) })
	if s.patches != 1+9 || s.nodes["node-9"].condition().Reason != notAvailable {
		t.Errorf("%d requests, %s has %+v", s.patches, "node-9", s.nodes["node-9"])
	}
}
