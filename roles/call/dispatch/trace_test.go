package dispatch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// node is a world whose hosts have a store.
type node struct {
	*world
	store *store.Store
}

func newNode(t *testing.T, actors ...*actor) *node {
	t.Helper()
	s := store.New(store.Options{RunDir: t.TempDir(), BootID: "11111111-2222-3333-4444-555555555555", LockTimeout: time.Second})
	return &node{newWorld(actors...), s}
}

// traced makes the call and returns the trace.
func (n *node) traced(t *testing.T) []*store.TracedCall {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := n.process(&stdout, &stderr)
	open := p.OpenHost
	p.OpenHost = func(ctx context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
		h, done, err := open(ctx, role, log)
		h.Store, h.Program, h.Steps = n.store, "v9", &roles.Steps{}
		return h, done, err
	}
	Main(t.Context(), p)
	calls, damaged, err := n.store.Traced()
	if err != nil || damaged > 0 {
		t.Fatalf("%d damaged, %v", damaged, err)
	}
	return calls
}

// one makes the call and returns its record.
func (n *node) one(t *testing.T) *store.TracedCall {
	t.Helper()
	calls := n.traced(t)
	if len(calls) == 0 {
		t.Fatal("the call is not traced")
	}
	return calls[len(calls)-1]
}

func TestTrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a := &actor{name: "one", onAdd: func(_ context.Context, h *roles.Host, _ *roles.Request) (*roles.Result, error) {
		h.Steps.Lock.Add(5)
		h.Steps.Net.Nftables.Add(7)
		return sampleResult(), nil
	}}
	n := newNode(t, a)
	n.set("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;TOKEN=hunter2").set("TRACEPARENT", parent)
	n.stdin = `{"cniVersion":"1.1.0","name":"net","type":"one","password":"hunter2"}`
	c := n.one(t)
	if c.Role != "one" || c.Verb != "ADD" || c.Network != "net" || c.ContainerID != "abc" || c.IfName != "eth0" || c.Netns != "/nonexistent/netns" ||
		c.Path != "/nonexistent" || c.Pod != "ns/web" || c.TraceParent != parent || c.Program != "v9" || c.Caller == "" || c.Took <= 0 || time.Since(c.Time) > time.Hour {
		t.Errorf("%+v", c)
	}
	if c.Steps != (store.Steps{Lock: 5, Nftables: 7}) {
		t.Errorf("steps %+v", c.Steps)
	}
	if c.Args != "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;TOKEN=REDACTED" || c.Stdin != `{"cniVersion":"1.1.0","name":"net","password":"REDACTED","type":"one"}` {
		t.Errorf("secrets: %s, %s", c.Args, c.Stdin)
	}
	if !strings.Contains(c.Result, "10.0.0.2/24") || c.Code != 0 || c.Error != "" || c.Cut {
		t.Errorf("%+v", c)
	}
}

// TestTraceFails: failed calls are traced, also those that fail before the node is needed.
func TestTraceFails(t *testing.T) {
	a := &actor{name: "one"}
	for name, c := range map[string]struct {
		change func(*node)
		code   uint
		text   string
	}{
		"role": {func(*node) {
			a.onAdd = func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
				return nil, errors.Join(roles.ErrExhausted, errGiven)
			}
		}, 11, "one: "},
		"panic": {func(*node) {
			a.onAdd = func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) { panic("x") }
		}, 108, "one: "},
		"configuration": {func(*node) { a.conf = func([]byte) error { return errGiven } }, 7, "given"},
		"not JSON":      {func(n *node) { n.stdin = "{" }, 6, "configuration"},
		"environment":   {func(n *node) { n.set("CNI_IFNAME", "") }, 4, "CNI_IFNAME"},
	} {
		*a = actor{name: "one"}
		n := newNode(t, a)
		c.change(n)
		got := n.one(t)
		if got.Code != c.code || !strings.Contains(got.Error, c.text) || got.Role != "one" || got.ContainerID != "abc" || got.Result != "" {
			t.Errorf("%s: %+v", name, got)
		}
		if name == "role" && got.Details != errGiven.Error() {
			t.Errorf("details %q", got.Details)
		}
	}
}

// TestTraceErrorURL: the trace has no password of a URL in an error.
func TestTraceErrorURL(t *testing.T) {
	n := newNode(t, &actor{name: "one", onAdd: func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
		return nil, errors.New("get https://me:hunter2@10.0.0.1/v3: refused")
	}})
	if c := n.one(t); !strings.Contains(c.Error+c.Details, "https://REDACTED@10.0.0.1/v3") || strings.Contains(c.Error+c.Details, "hunter2") {
		t.Errorf("%+v", c)
	}
}

// TestTraceBounded: long inputs are cut, and what is not traced is neither STATUS nor a call without a trace.
func TestTraceBounded(t *testing.T) {
	n := newNode(t, &actor{name: "one"})
	n.stdin = `{"cniVersion":"1.1.0","name":"net","type":"one","x":"` + strings.Repeat("x", 1<<20) + `"}`
	n.set("CNI_PATH", strings.Repeat("p", 1<<16)).set("CNI_ARGS", "IgnoreUnknown=1;A="+strings.Repeat("a", 1<<16))
	if c := n.one(t); !c.Cut || len(c.Stdin) != maxTraceText || len(c.Path) > maxTraceName+4 || len(c.Args) > maxTraceName+4 {
		t.Errorf("cut %v: %d, %d, %d bytes", c.Cut, len(c.Stdin), len(c.Path), len(c.Args))
	}
	n.stdin = strings.Replace(n.stdin, `"x"`, `"token"`, 1)
	if c := n.one(t); c.Stdin != "REDACTED" {
		t.Errorf("a cut text with a secret: %.80s", c.Stdin)
	}
	for name, change := range map[string]func(*node){
		"off":    func(n *node) { n.set("CNIBOX_TRACE", "0") },
		"status": func(n *node) { n.set("CNI_COMMAND", "STATUS") },
	} {
		n := newNode(t, &actor{name: "one"})
		change(n)
		if calls := n.traced(t); len(calls) > 0 {
			t.Errorf("%s: %+v", name, calls)
		}
	}
	n = newNode(t, &actor{name: "one"})
	n.set("CNIBOX_TRACE", "1")
	var calls []*store.TracedCall
	for range 20 {
		calls = n.traced(t)
	}
	if len(calls) < 2 || len(calls) > 15 {
		t.Errorf("%d calls in a trace of 1", len(calls))
	}
}

func TestTraceParent(t *testing.T) {
	const ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
	for in, want := range map[string]string{
		"00-" + ids + "-01":   "00-" + ids + "-01",
		"01-" + ids + "-01-x": "01-" + ids + "-01",
		"00-" + ids + "-01-x": "", "ff-" + ids + "-01": "", "00-" + ids: "", "00-" + ids + "-0g": "", "": "",
		"00-" + strings.ToUpper(ids) + "-01":                            "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":       "",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":       "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\x1b": "",
	} {
		if got := traceParent(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// TestTraceCommandLine: ADD and DEL of the command line are traced, and the durations of delegates are steps.
func TestTraceCommandLine(t *testing.T) {
	ipam := &actor{name: "ipam", kind: roles.IPAM}
	one := &actor{name: "one", kind: roles.Meta, onAdd: func(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
		if _, err := h.Delegate.Add(ctx, "ipam", req); err != nil {
			return nil, err
		}
		return h.Delegate.Add(ctx, "x", req)
	}}
	n, dir := newNode(t, one, ipam), t.TempDir()
	linkSelf(t, dir, "one")
	linkSelf(t, dir, "ipam")
	script(t, dir, "x", `[ "$TRACEPARENT" = t ] && cat >/dev/null && echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.5/24"}]}'`)
	h := &roles.Host{Program: "v9", Store: n.store, Steps: &roles.Steps{}}
	p := Process{Table: n.table, Executable: "/proc/self/exe", Stderr: &bytes.Buffer{}}
	d := NewDelegator(p, h, slog.New(slog.DiscardHandler))
	req := &roles.Request{ContainerID: "abc", IfName: "eth0", Path: []string{dir}, Network: "net", CNIVersion: "1.1.0", Conf: []byte(`{"type":"x"}`), Env: []string{"TRACEPARENT=t"}}
	if _, err := d.Add(t.Context(), "one", req); err != nil {
		t.Fatal(err)
	}
	if err := d.Check(t.Context(), "one", req); err != nil {
		t.Fatal(err)
	}
	calls, _, err := n.store.Traced()
	if err != nil || len(calls) != 1 {
		t.Fatalf("%+v, %v", calls, err)
	}
	c := calls[0]
	if c.Caller != "cnibox" || c.Role != "one" || c.Network != "net" || !strings.Contains(c.Result, "10.0.0.5") {
		t.Errorf("%+v", c)
	}
	if s := c.Steps; s.Delegate <= 0 || s.IPAM <= 0 || s.Delegate+s.IPAM > c.Took {
		t.Errorf("steps %+v of %v", s, c.Took)
	}
}
