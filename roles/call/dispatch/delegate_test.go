package dispatch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

// errGiven is an error that fake roles return.
var errGiven = errors.New("given")

// setting is a role with the delegator and the request for a delegate.
type setting struct {
	d      roles.Delegator
	req    *roles.Request
	dir    string
	stderr bytes.Buffer
	log    bytes.Buffer
}

func newSetting(t *testing.T, actors ...*actor) *setting {
	t.Helper()
	s := &setting{dir: t.TempDir()}
	var table roles.Table
	for _, a := range actors {
		table = append(table, tabletest.Of(a.role())...)
	}
	log := slog.New(slog.NewTextHandler(&s.log, nil))
	p := Process{Table: table, Executable: "/proc/self/exe", Stderr: &s.stderr}
	s.d = NewDelegator(p, &roles.Host{Role: "bridge", Program: "v9", Log: log}, log)
	args, err := roles.ParseArgs("IP=10.0.0.9;IgnoreUnknown=1")
	if err != nil {
		t.Fatal(err)
	}
	s.req = &roles.Request{
		Verb: roles.Add, ContainerID: "abc", Netns: "/netns/a", IfName: "eth0", Args: args, Path: []string{"/nonexistent", s.dir},
		Network: "net", CNIVersion: "1.1.0", Conf: []byte(`{"cniVersion":"1.1.0","name":"net","type":"bridge","ipam":{"type":"x"}}`),
		PrevResult: sampleResult(), Valid: []roles.AttachmentID{},
		Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=other", "CNI_ARGS=A=B", "TRACEPARENT=00-1", "CNI_PATH=/x", "PATH=" + os.Getenv("PATH")},
	}
	return s
}

func TestDelegateInProcess(t *testing.T) {
	x := &actor{name: "x"}
	s := newSetting(t, x)
	linkSelf(t, s.dir, "x")
	x.onAdd = func(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
		}
		if h.Role != "x" || h.Program != "v9" || h.Delegate == nil || h.Delegate == s.d {
			t.Errorf("host %+v", h)
		}
		h.Log.Info("note")
		if req.Verb != roles.Add || req.Valid == nil || req.Network != "net" {
			t.Errorf("request %+v", req)
		}
		// These changes affect only the role's copy of the request.
		req.Conf[0], req.Env[0], req.Path[0], req.PrevResult.IPs[0].Address.IP[0] = 'X', "X", "X", 99
		req.PrevResult.Interfaces[0].Name, req.ContainerID = "X", "X"
		return sampleResult(), nil
	}
	before := newSetting(t, x).req
	before.Path = slices.Clone(s.req.Path)
	res, err := s.d.Add(t.Context(), "x", s.req)
	if err != nil || len(res.IPs) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	if diff := cmp.Diff(before, s.req, cmp.Comparer(func(a, b roles.Args) bool { return a.String() == b.String() })); diff != "" {
		t.Errorf("the delegate changed its caller's request: %s", diff)
	}
	if !strings.Contains(s.log.String(), "role=x") || strings.Contains(s.log.String(), "role=bridge") {
		t.Errorf("log %q", s.log.String())
	}
	if s.stderr.Len() != 0 {
		t.Errorf("stderr %q", s.stderr.String())
	}
	for verb, err := range map[string]error{
		"DEL": s.d.Del(t.Context(), "x", s.req), "CHECK": s.d.Check(t.Context(), "x", s.req),
		"GC": s.d.GC(t.Context(), "x", s.req), "STATUS": s.d.Status(t.Context(), "x", s.req),
	} {
		if err != nil || !slices.Contains(x.calls, verb) {
			t.Errorf("%s: %v, calls %v", verb, err, x.calls)
		}
	}
}

func TestDelegateInProcessFails(t *testing.T) {
	tests := []struct {
		name  string
		err   error
		panic bool
		calls []string
	}{
		{"no result", nil, false, []string{"ADD", "DEL"}},
		{"an error", errGiven, false, []string{"ADD", "DEL"}},
		{"a panic", roles.ErrPanic, true, []string{"ADD", "DEL"}},
		{"what was there before stays", roles.ErrAttached, false, []string{"ADD"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := &actor{name: "x", onAdd: func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
				if tt.panic {
					panic("oh")
				}
				return nil, tt.err
			}}
			s := newSetting(t, x)
			linkSelf(t, s.dir, "x")
			ctx, cancel := context.WithCancel(t.Context())
			x.onDel = func(ctx context.Context, _ *roles.Host, _ *roles.Request) error { return ctx.Err() }
			cancel()
			res, err := s.d.Add(ctx, "x", s.req)
			if tt.err == nil {
				tt.err = roles.ErrPanic
			}
			if res != nil || !errors.Is(err, tt.err) || !strings.HasPrefix(err.Error(), "x: ") || strings.Contains(err.Error(), "clean up") {
				t.Errorf("%v, %v", res, err)
			}
			if diff := cmp.Diff(tt.calls, x.calls); diff != "" {
				t.Error(diff)
			}
		})
	}
	x := &actor{name: "x", conf: func([]byte) error { return &roles.ConfError{Path: "ipam.y", Reason: "is bad"} }}
	s := newSetting(t, x)
	linkSelf(t, s.dir, "x")
	if _, err := s.d.Add(t.Context(), "x", s.req); !errors.Is(err, roles.ErrConf) || len(x.calls) != 0 {
		t.Errorf("error %v, calls %v", err, x.calls)
	}
}

// spy is the beginning of a script for a third-party plugin: it appends each call to
// $dir/calls.
const spy = `dir=$(dirname "$0")
echo "$CNI_COMMAND $CNI_CONTAINERID ns=$CNI_NETNS $CNI_IFNAME $CNI_ARGS path=$CNI_PATH $TRACEPARENT" >>"$dir/calls"
cat >"$dir/stdin"
echo "a word on stderr" >&2
`

func calls(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func TestDelegateExecuted(t *testing.T) {
	x := &actor{name: "x"}
	s := newSetting(t, x)
	script(t, s.dir, "x", spy+`[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"}]}' || head -c 5000000 /dev/zero`) // other verbs have no result
	res, err := s.d.Add(t.Context(), "x", s.req)
	if err != nil || len(res.IPs) != 1 || res.IPs[0].Address.String() != "10.9.0.2/24" {
		t.Fatalf("%v, %v", res, err)
	}
	del := cloneRequest(s.req)
	del.Netns, del.ContainerID = "", "collected"
	err = errors.Join(s.d.Del(t.Context(), "x", del), s.d.Check(t.Context(), "x", s.req), s.d.GC(t.Context(), "x", s.req), s.d.Status(t.Context(), "x", s.req))
	if err != nil {
		t.Fatal(err)
	}
	rest := " eth0 IP=10.0.0.9;IgnoreUnknown=1 path=/nonexistent:" + s.dir + " 00-1"
	want := []string{
		"ADD abc ns=/netns/a" + rest, "DEL collected ns=" + rest, "CHECK abc ns=/netns/a" + rest, "GC abc ns=/netns/a" + rest, "STATUS abc ns=/netns/a" + rest,
	}
	if diff := cmp.Diff(want, calls(t, s.dir)); diff != "" {
		t.Error(diff)
	}
	if stdin, _ := os.ReadFile(filepath.Join(s.dir, "stdin")); string(stdin) != string(s.req.Conf) {
		t.Errorf("stdin %q", stdin)
	}
	if !strings.HasPrefix(s.stderr.String(), "a word on stderr\n") {
		t.Errorf("stderr %q", s.stderr.String())
	}
	if len(x.calls) != 0 {
		t.Errorf("our own role was called instead: %v", x.calls)
	}
}

func TestDelegateExecutedFails(t *testing.T) {
	tests := []struct {
		name, body string
		want       errorObject
	}{
		{
			"error object", `echo '{"cniVersion":"1.0.0","code":11,"msg":"pool is empty","details":"all of it"}'; exit 1`,
			errorObject{Code: 11, Msg: "pool is empty", Details: "execute \"FILE\" for ADD: pool is empty\nall of it"},
		},
		{
			"code of the library's", `echo '{"code":999,"msg":"no"}'; exit 1`,
			errorObject{Code: 999, Msg: "no", Details: `execute "FILE" for ADD: no`},
		},
		{
			"no object", `exit 3`,
			errorObject{Code: 100, Msg: `bridge: execute "FILE" for ADD: exit status 3: a word on stderr`},
		},
		{
			"killed", `kill -9 $$`,
			errorObject{Code: 100, Msg: `bridge: execute "FILE" for ADD: signal: killed: a word on stderr`},
		},
		{
			"no result", `exit 0`,
			errorObject{Code: 6, Msg: `bridge: execute "FILE" for ADD: result: cannot decode: unexpected end of JSON input`},
		},
		{
			"endless output", `exec cat /dev/zero`,
			errorObject{Code: 6, Msg: `bridge: execute "FILE" for ADD: cannot decode: it printed more than 4194304 bytes`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSetting(t)
			file := script(t, s.dir, "x", spy+`[ "$CNI_COMMAND" = DEL ] && exit 0
`+tt.body)
			res, err := s.d.Add(t.Context(), "x", s.req)
			if err == nil || res != nil {
				t.Fatalf("%v, %v", res, err)
			}
			o := newErrorObject("", "bridge", roles.Add, err)
			o.Msg, o.Details = strings.ReplaceAll(o.Msg, file, "FILE"), strings.ReplaceAll(o.Details, file, "FILE")
			if diff := cmp.Diff(tt.want, o); diff != "" {
				t.Error(diff)
			}
			got := calls(t, s.dir)
			if len(got) != 2 || !strings.HasPrefix(got[1], "DEL abc") {
				t.Errorf("calls %q, want ADD and DEL", got)
			}
		})
	}
}

func TestDelegateCleanUpFails(t *testing.T) {
	s := newSetting(t)
	script(t, s.dir, "x", `echo "{\"code\":7,\"msg\":\"$CNI_COMMAND failed\"}"; exit 1`)
	_, err := s.d.Add(t.Context(), "x", s.req)
	o := newErrorObject("", "bridge", roles.Add, err)
	if o.Code != 7 || o.Msg != "ADD failed" || !strings.Contains(o.Details, "DEL failed") || !errors.As(err, new(*roles.UndoError)) {
		t.Errorf("error object %+v", o)
	}
}

func TestDelegateIsStopped(t *testing.T) {
	s := newSetting(t)
	fifo := filepath.Join(s.dir, "ready")
	script(t, s.dir, "x", `[ "$CNI_COMMAND" = DEL ] && exit 0
trap 'echo stopped >`+s.dir+`/stopped; exit 0' TERM
echo x >`+fifo+`
while :; do read line <`+fifo+`; done`)
	mkfifo(t, fifo)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.d.Add(ctx, "x", s.req)
		done <- err
	}()
	if _, err := os.ReadFile(fifo); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "stopped")); err != nil {
		t.Errorf("the plugin was not asked to stop: %v", err)
	}
}

// TestDelegateHangs calls a plugin that ends neither ADD nor DEL.
func TestDelegateHangs(t *testing.T) {
	s := newSetting(t)
	script(t, s.dir, "x", spy+`exec sleep 1000`)
	d := s.d.(*delegator)
	d.timeout, d.undoTimeout = time.Hour, 10*time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.d.Add(ctx, "x", s.req)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, new(*roles.UndoError)) {
		t.Errorf("error %v, want a deadline for ADD and for the DEL after it", err)
	}
}

// TestIPAMHangs: the deadline of an IPAM plugin leaves its parent the time to stop it, to call its
// DEL and to report it, before a process that called the parent gives up.
func TestIPAMHangs(t *testing.T) {
	var parent, ipam time.Time
	bridge, static := &actor{name: "bridge"}, &actor{name: "static", kind: roles.IPAM}
	static.onAdd = func(ctx context.Context, _ *roles.Host, _ *roles.Request) (*roles.Result, error) {
		ipam, _ = ctx.Deadline()
		return sampleResult(), nil
	}
	bridge.onAdd = func(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
		parent, _ = ctx.Deadline()
		return h.Delegate.Add(ctx, "static", req)
	}
	s := newSetting(t, &actor{name: "chain", kind: roles.Meta}, bridge, static)
	d := s.d.(*delegator)
	d.host.Role, d.callers = "chain", []string{"chain"}
	linkSelf(t, s.dir, "bridge")
	linkSelf(t, s.dir, "static")
	if _, err := s.d.Add(t.Context(), "bridge", s.req); err != nil {
		t.Fatal(err)
	}
	if left := parent.Sub(ipam); left <= delegateUndoTimeout+2*stopTimeout {
		t.Errorf("the parent has %v after its IPAM plugin", left)
	}
}

// TestDelegateIsNoIPAM calls roles of other kinds as the IPAM plugin of an interface role.
func TestDelegateIsNoIPAM(t *testing.T) {
	other := &actor{name: "ptp", kind: roles.Interface}
	s := newSetting(t, other, &actor{name: "bridge", kind: roles.Interface}, &actor{name: "static", kind: roles.IPAM})
	linkSelf(t, s.dir, "static")
	for _, install := range []func(){func() { linkSelf(t, s.dir, "ptp") }, func() { script(t, s.dir, "ptp", spy) }} {
		install()
		_, err := s.d.Add(t.Context(), "ptp", s.req)
		if !errors.Is(err, roles.ErrConf) || !strings.Contains(err.Error(), `ipam.type: "ptp"`) || len(other.calls) != 0 {
			t.Errorf("error %v, calls %v, want ErrConf and none", err, other.calls)
		}
		// The attachment must be removable.
		err = errors.Join(s.d.Del(t.Context(), "ptp", s.req), s.d.GC(t.Context(), "ptp", s.req), os.Remove(filepath.Join(s.dir, "ptp")))
		if err != nil || len(other.calls) != 0 {
			t.Fatal(err, other.calls)
		}
	}
	if _, err := s.d.Add(t.Context(), "static", s.req); err != nil {
		t.Error(err)
	}
}

type previewer struct{ *actor }

func (previewer) Preview(_ context.Context, _ *roles.Host, req *roles.Request) (*roles.Result, error) {
	if req.Network == "panic" {
		panic("oh")
	}
	return sampleResult(), nil
}

func TestPreview(t *testing.T) {
	x, y := &actor{name: "x"}, &actor{name: "y"}
	s := newSetting(t, x)
	role := y.role()
	role.New = func([]byte) (roles.Handler, error) { return previewer{y}, nil }
	d := s.d.(*delegator)
	d.table = append(d.table, tabletest.Of(role)...)
	for _, n := range []string{"x", "y"} {
		linkSelf(t, s.dir, n)
	}
	marker := filepath.Join(s.dir, "executed")
	script(t, s.dir, "z", "echo >"+marker)
	// The role answers although its file is not installed.
	uninstalled := role
	uninstalled.Names = []string{"w"}
	d.table = append(d.table, tabletest.Of(uninstalled)...)
	// The role answers although a third-party plugin is installed under its name.
	foreign := role
	foreign.Names = []string{"v"}
	d.table = append(d.table, tabletest.Of(foreign)...)
	script(t, s.dir, "v", "echo >"+marker)
	for typ, want := range map[string]string{"x": "192.0.2.2/24", "y": "10.0.0.2/24", "z": "192.0.2.2/24", "w": "10.0.0.2/24", "v": "10.0.0.2/24"} {
		res, err := s.d.Preview(t.Context(), typ, s.req)
		if unknown := want == "192.0.2.2/24"; errors.Is(err, roles.ErrUnplanned) != unknown || err != nil && !unknown {
			t.Errorf("%s: error %v", typ, err)
		}
		if len(res.IPs) != 1 || res.IPs[0].Address.String() != want {
			t.Errorf("%s: %v, want %s", typ, res, want)
		}
	}
	if _, err := os.Stat(marker); err == nil || len(x.calls)+len(y.calls) != 0 {
		t.Errorf("something was done: %v %v %v", err, x.calls, y.calls)
	}
	s.req.Network = "panic"
	if _, err := s.d.Preview(t.Context(), "y", s.req); !errors.Is(err, roles.ErrPanic) {
		t.Errorf("error %v, want ErrPanic", err)
	}
	if _, err := s.d.Preview(t.Context(), "none", s.req); !errors.Is(err, roles.ErrNoPlugin) {
		t.Errorf("error %v, want ErrNoPlugin", err)
	}
}

func TestBounded(t *testing.T) {
	b := &boundedBuffer{left: 4}
	for _, part := range []string{"ab", "cde", "f"} {
		if n, err := io.WriteString(b, part); n != len(part) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if b.buf.String() != "abcd" || !b.cut {
		t.Errorf("%q, cut %v", b.buf.String(), b.cut)
	}
}

// A plugin that is configured as its own IPAM plugin would call itself without end.
func TestDelegateToCaller(t *testing.T) {
	x, y := &actor{name: "x", kind: roles.Meta}, &actor{name: "y", kind: roles.Meta}
	s := newSetting(t, x, y)
	s.d.(*delegator).table = append(s.d.(*delegator).table, tabletest.Of(roles.Role{Names: []string{"bridge"}, New: x.role().New})...)
	for _, n := range []string{"x", "y", "bridge"} {
		linkSelf(t, s.dir, n)
	}
	if _, err := s.d.Add(t.Context(), "bridge", s.req); !errors.Is(err, roles.ErrConf) || len(x.calls) != 0 {
		t.Errorf("the caller itself: error %v, calls %v, want ErrConf and none", err, x.calls)
	}
	x.onAdd = func(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
		return h.Delegate.Add(ctx, "y", req)
	}
	y.onAdd = func(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
		return h.Delegate.Add(ctx, "x", req)
	}
	if _, err := s.d.Add(t.Context(), "x", s.req); !errors.Is(err, roles.ErrConf) || !strings.Contains(err.Error(), `"x" would call itself`) {
		t.Errorf("in a circle: error %v, want ErrConf", err)
	}
	y.onAdd = nil
	if _, err := s.d.Add(t.Context(), "x", s.req); err != nil {
		t.Errorf("one after the other: %v", err)
	}
}

// TestWithCopies: a delegator that calls copies of this program in process leaves the one that it was made from as it is.
func TestWithCopies(t *testing.T) {
	d := newSetting(t).d.(*delegator)
	with, is := d.WithCopies(func(file string) bool { return file == "/bin/copy" }).(*delegator)
	if !is || with.isCopy == nil || !with.isCopy("/bin/copy") || d.isCopy != nil || with.host != d.host {
		t.Errorf("%+v, made from %+v", with, d)
	}
}
