package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

func TestGCList(t *testing.T) {
	tests := []struct {
		name, keys string
		called     bool
		want       []roles.AttachmentID
		code       uint
	}{
		{name: "absent"},
		{name: "null", keys: `,"cni.dev/valid-attachments":null,"cni.dev/attachments":null`, called: true, want: []roles.AttachmentID{}},
		{name: "null beside a list", keys: `,"cni.dev/valid-attachments":null,"cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}]`, called: true, want: []roles.AttachmentID{{ContainerID: "a", IfName: "eth0"}}},
		{name: "empty", keys: `,"cni.dev/valid-attachments":[]`, called: true, want: []roles.AttachmentID{}},
		{name: "one", keys: `,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]`, called: true, want: []roles.AttachmentID{{ContainerID: "a", IfName: "eth0"}}},
		{name: "early name", keys: `,"cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}]`, called: true, want: []roles.AttachmentID{{ContainerID: "a", IfName: "eth0"}}},
		{name: "both", keys: `,"cni.dev/attachments":[],"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]`, called: true, want: []roles.AttachmentID{{ContainerID: "a", IfName: "eth0"}}},
		{name: "no list", keys: `,"cni.dev/valid-attachments":{}`, code: 6},
		{name: "null entry", keys: `,"cni.dev/valid-attachments":[null]`, code: 6},
		{name: "entry without container", keys: `,"cni.dev/valid-attachments":[{"ifname":"eth0"}]`, code: 6},
		{name: "entry without ifname", keys: `,"cni.dev/valid-attachments":[{"containerID":"a"}]`, code: 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &actor{name: "one"}
			w := newWorld(a).set("CNI_COMMAND", "GC")
			w.stdin = `{"cniVersion":"1.1.0","name":"net"` + tt.keys + `}`
			ans := w.call(t)
			if tt.code != 0 {
				if o := ans.failure(t); o.Code != tt.code {
					t.Errorf("code %d, want %d", o.Code, tt.code)
				}
				return
			}
			ans.success(t)
			if ans.stdout != "" {
				t.Errorf("stdout %q, want none", ans.stdout)
			}
			if called := len(a.calls) == 1; called != tt.called {
				t.Fatalf("called: %v, want %v", called, tt.called)
			}
			if tt.called && (a.last.Valid == nil || !cmp.Equal(a.last.Valid, tt.want)) {
				t.Errorf("list %#v, want %#v", a.last.Valid, tt.want)
			}
		})
	}
}

func TestVersionEchoes(t *testing.T) {
	for stdin, want := range map[string]string{
		"": "1.1.0", "{}": "0.1.0", `{"cniVersion":"0.4.0"}`: "0.4.0", `{"cniVersion":"9.0.0"}`: "9.0.0",
	} {
		w := newWorld(&actor{name: "one"})
		w.env, w.stdin = []string{"CNI_COMMAND=VERSION"}, stdin
		for _, args := range [][]string{{"/opt/cni/bin/one"}, {"cnibox"}, {"cnibox", "one"}} {
			w.args = args
			a := w.call(t)
			a.success(t)
			got := strings.Join(strings.Fields(a.stdout), "")
			if want := `{"cniVersion":"` + want + `","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`; got != want {
				t.Errorf("stdin %q, args %q: %s, want %s", stdin, args, got, want)
			}
		}
	}
}

func TestAbout(t *testing.T) {
	one, two := &actor{name: "one", reference: true}, &actor{name: "two"}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"/opt/cni/bin/one"}, "CNI one plugin v1.9.1\ncnibox v0.0.1\n"},
		{[]string{"cnibox", "one"}, "CNI one plugin v1.9.1\ncnibox v0.0.1\n"},
		{[]string{"two", "--help"}, "CNI two plugin v0.0.1\ncnibox v0.0.1\n"},
	} {
		w := newWorld(one, two).set("CNI_COMMAND", "")
		w.args = tt.args
		a := w.call(t)
		if a.exit != 0 || a.stdout != "" || a.stderr != tt.want {
			t.Errorf("%q: exit %d, stdout %q, stderr %q, want %q", tt.args, a.exit, a.stdout, a.stderr, tt.want)
		}
	}
}

func TestIsCall(t *testing.T) {
	for _, tt := range []struct {
		args []string
		env  []string
		want bool
	}{
		{[]string{"one"}, nil, true},
		{[]string{"/a/b/one", "x"}, nil, true},
		{[]string{"cnibox", "one"}, nil, true},
		{[]string{"cnibox", "one", "-x"}, nil, true},
		{[]string{"cnibox", "one", "sttus"}, nil, false},
		{[]string{"cnibox", "two", "x"}, nil, true},
		{[]string{"cnibox", "one", "status"}, nil, false},
		{[]string{"/a/b/one", "status"}, nil, true},
		{[]string{"cnibox"}, []string{"CNI_COMMAND=ADD"}, true},
		{[]string{"cnibox"}, []string{"CNI_COMMAND="}, false},
		{[]string{"cnibox"}, nil, false},
		{[]string{"cnibox", "list"}, []string{"CNI_COMMAND=ADD"}, false},
		{nil, nil, false},
	} {
		one := (&actor{name: "one"}).role()
		one.Verbs = func() []roles.CommandVerb { return []roles.CommandVerb{{Name: "one status"}} }
		p := Process{Table: tabletest.Of(one, (&actor{name: "two"}).role()), Args: tt.args, Env: tt.env}
		if got := p.IsCall(); got != tt.want {
			t.Errorf("args %q, env %q: %v, want %v", tt.args, tt.env, got, tt.want)
		}
	}
}

func TestTypeSelectsRole(t *testing.T) {
	one, two := &actor{name: "one"}, &actor{name: "two"}
	w := newWorld(one, two)
	w.args, w.stdin = []string{"/opt/cni/bin/cnibox"}, `{"cniVersion":"1.1.0","name":"net","type":"two"}`
	w.call(t).success(t)
	if len(one.calls) != 0 || len(two.calls) != 1 || two.host.Role != "two" {
		t.Errorf("calls %v and %v", one.calls, two.calls)
	}
	// The program's name has precedence over the type: an IPAM plugin gets the
	// configuration of its caller, with the caller's type.
	w.args = []string{"/opt/cni/bin/one"}
	w.call(t).success(t)
	if len(one.calls) != 1 {
		t.Errorf("calls %v and %v", one.calls, two.calls)
	}
}

func TestOptionalVerbs(t *testing.T) {
	for _, verb := range []string{"CHECK", "GC", "STATUS"} {
		a := &actor{name: "one", plain: true}
		w := newWorld(a).set("CNI_COMMAND", verb)
		w.stdin = `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`
		ans := w.call(t)
		ans.success(t)
		if ans.stdout != "" || len(a.calls) != 0 {
			t.Errorf("%s: stdout %q, calls %v", verb, ans.stdout, a.calls)
		}
	}
}

func TestConfFaultsAllAtOnce(t *testing.T) {
	a := &actor{name: "one", conf: func([]byte) error {
		var f roles.Faults
		f.Addf("ipam.type", "is missing")
		f.Addf("mtu", "is negative")
		return f.Err()
	}}
	o := newWorld(a).call(t).failure(t)
	want := errorObject{CNIVersion: "1.1.0", Code: 7, Msg: "one: ipam.type: is missing; mtu: is negative"}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Error(diff)
	}
	a.conf = func([]byte) error { return errors.New("no good") }
	if o := newWorld(a).call(t).failure(t); o.Code != 7 {
		t.Errorf("code %d of a plain error of New, want 7", o.Code)
	}
	a.conf = func([]byte) error { panic("oh") }
	if o := newWorld(a).call(t).failure(t); o.Code != 108 {
		t.Errorf("code %d of a panic in New, want 108", o.Code)
	}
}

func TestErrorEchoesVersion(t *testing.T) {
	for conf, want := range map[string]string{"0.3.1": "0.3.1", "": "0.1.0", "7.0.0": "1.1.0"} {
		a := &actor{name: "one", onAdd: func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
			return nil, errors.New("no")
		}}
		w := newWorld(a)
		w.stdin = `{"cniVersion":"` + conf + `","name":"net"}`
		if o := w.call(t).failure(t); o.CNIVersion != want {
			t.Errorf("configuration %q: error object %+v, want version %q", conf, o, want)
		}
	}
}

func TestDamagedPrevResult(t *testing.T) {
	for _, prev := range []string{
		`"x"`, `[]`, `{"interfaces":[null]}`, `{"ips":[null]}`, `{"routes":[null]}`, `{"ips":[{}]}`, `{"ips":[{"address":"x"}]}`,
		`{"cniVersion":"0.4.0"}`, `{"cniVersion":5}`, `{"cniVersion":"\"}"}`, `{"dns":[]}`,
	} {
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			a := &actor{name: "one"}
			w := newWorld(a).set("CNI_COMMAND", verb)
			w.stdin = `{"cniVersion":"1.0.0","name":"net","prevResult":` + prev + `}`
			ans := w.call(t)
			if verb == "DEL" {
				// The attachment still exists, so DEL runs without prevResult.
				if ans.exit != 0 || len(a.calls) != 1 || a.last.PrevResult != nil || !strings.Contains(ans.stderr, "prevResult") {
					t.Errorf("DEL with %s: exit %d, calls %v, stderr %s", prev, ans.exit, a.calls, ans.stderr)
				}
				continue
			}
			if o := ans.failure(t); o.Code != 6 || len(a.calls) != 0 {
				t.Errorf("%s with %s: %+v, calls %v", verb, prev, o, a.calls)
			}
		}
	}
}

func TestAddFailureIsTheRolesToClean(t *testing.T) {
	a := &actor{name: "one", onAdd: func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) {
		return nil, fmt.Errorf("link %q: %w", "eth0", roles.ErrAttached)
	}}
	o := newWorld(a).call(t).failure(t)
	if o.Code != 105 || o.Msg != `one: link "eth0": already attached` {
		t.Errorf("error object %+v", o)
	}
	if diff := cmp.Diff([]string{"ADD"}, a.calls); diff != "" {
		t.Error(diff)
	}
}

func TestAddCleansUpAfter(t *testing.T) {
	noAddress := &roles.Result{Interfaces: []*roles.ResultInterface{{Name: "eth0"}}}
	tests := []struct {
		name, version string
		add           func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error)
		code          uint
	}{
		{"a panic", "1.1.0", func(_ context.Context, _ *roles.Host, req *roles.Request) (*roles.Result, error) {
			req.ContainerID, req.Env[0] = "changed", "CHANGED=1"
			panic("oh")
		}, 108},
		{"no result", "1.1.0", func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) { return nil, nil }, 108},
		{"a result without form", "0.2.0", func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error) { return noAddress, nil }, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &actor{name: "one", onAdd: tt.add, onDel: func(ctx context.Context, _ *roles.Host, _ *roles.Request) error { return ctx.Err() }}
			w := newWorld(a)
			w.cancelled = true
			w.stdin = `{"cniVersion":"` + tt.version + `","name":"net"}`
			ans := w.call(t)
			if o := ans.failure(t); o.Code != tt.code || strings.Contains(o.Msg+o.Details, "goroutine") || o.Details != "" ||
				tt.code == 1 && !strings.Contains(o.Msg, "0.3.0 or newer") {
				t.Errorf("error object %+v, want code %d and no stack", o, tt.code)
			}
			if diff := cmp.Diff([]string{"ADD", "DEL"}, a.calls); diff != "" {
				t.Error(diff)
			}
			if a.last.ContainerID != "abc" || a.last.Env[0] != "CNI_COMMAND=ADD" {
				t.Errorf("DEL got what ADD changed: %+v", a.last)
			}
			if tt.name == "a panic" && !strings.Contains(ans.stderr, "goroutine") {
				t.Errorf("the log lacks the stack: %s", ans.stderr)
			}
		})
	}
}

func TestAddressless(t *testing.T) {
	a := &actor{name: "one", noAddress: true}
	w := newWorld(a)
	w.stdin = `{"cniVersion":"0.2.0","name":"net"}`
	if o := w.call(t).failure(t); o.Code != 1 || len(a.calls) != 0 {
		t.Errorf("error object %+v, calls %v: want code 1 before anything is done", o, a.calls)
	}
	w.stdin = `{"cniVersion":"0.3.0","name":"net"}`
	w.call(t).success(t)
}

// brokenPipe is a writer that fails every write, as a pipe does after its reader closed
// it.
type brokenPipe struct{ writes int }

func (d *brokenPipe) Write([]byte) (int, error) { d.writes++; return 0, os.ErrClosed }

func TestUnreadResultIsUndone(t *testing.T) {
	a := &actor{name: "one"}
	w := newWorld(a)
	var stderr bytes.Buffer
	p := w.process(nil, &stderr)
	out := &brokenPipe{}
	p.Stdout = out
	if exit := Main(t.Context(), p); exit == 0 {
		t.Error("exit code 0")
	}
	if diff := cmp.Diff([]string{"ADD", "DEL"}, a.calls); diff != "" || out.writes != 1 {
		t.Errorf("%d writes, calls %s", out.writes, diff)
	}
	if !strings.Contains(stderr.String(), "write standard output") {
		t.Errorf("stderr %q", stderr.String())
	}
}

func TestDaemon(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		both bool
		want string
	}{
		{"by name", []string{"/usr/bin/agent", "--x"}, false, "--x"},
		{"by argument", []string{"cnibox", "agent", "--x"}, false, "--x"},
		{"plugin and daemon", []string{"agent", "daemon", "--x"}, true, "--x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			role := roles.Role{Names: []string{"agent"}, Kind: roles.Daemon, Summary: "a daemon"}
			role.Run = func(_ context.Context, h *roles.Host, args []string) error {
				got = args
				if h.Role != "agent" || h.Delegate == nil {
					t.Errorf("host %+v", h)
				}
				return errors.New("listen: no\nor that")
			}
			if tt.both {
				role.New = (&actor{}).role().New
			}
			w := newWorld().set("CNI_COMMAND", "")
			w.table, w.args = tabletest.Of(role), tt.args
			a := w.call(t)
			if a.exit != 1 || a.stdout != "" || a.stderr != "cnibox: agent: listen: no; or that\n" {
				t.Errorf("%+v", a)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("arguments %q, want %q", got, tt.want)
			}
		})
	}
}

// A daemon with wrong flags exits with 2: a restart does not help.
func TestDaemonFlags(t *testing.T) {
	w := newWorld().set("CNI_COMMAND", "")
	w.args = []string{"agent", "--nosuch"}
	w.table = tabletest.Of(roles.Role{Names: []string{"agent"}, Kind: roles.Daemon, Summary: "a daemon", Run: func(_ context.Context, _ *roles.Host, args []string) error {
		return fmt.Errorf("start: %w", roles.Usagef("%q is no flag", args[0]))
	}})
	if a := w.call(t); a.exit != 2 || a.stderr != "cnibox: agent: start: \"--nosuch\" is no flag\n" {
		t.Errorf("%+v", a)
	}
}

// TestDaemonTerminal: a daemon that is started on a terminal logs what it does. A plugin there does not.
func TestDaemonTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	notes := func(w *world, stderr io.Writer) bool {
		var stdout, log bytes.Buffer
		p := w.process(&stdout, &log)
		open := p.OpenHost
		noted := false
		p.OpenHost = func(ctx context.Context, role string, l *slog.Logger) (*roles.Host, func(), error) {
			noted = l.Enabled(ctx, slog.LevelInfo)
			return open(ctx, role, l)
		}
		if stderr != nil {
			p.Stderr = stderr
		}
		if Main(t.Context(), p) != 0 {
			t.Errorf("%v fails: %s%s", p.Args, stdout.String(), log.String())
		}
		return noted
	}
	daemon := newWorld().set("CNI_COMMAND", "")
	daemon.args = []string{"agent"}
	daemon.table = tabletest.Of(roles.Role{Names: []string{"agent"}, Kind: roles.Daemon, Summary: "a daemon", Run: func(context.Context, *roles.Host, []string) error { return nil }})
	if !notes(daemon, terminal) || notes(daemon, nil) || notes(daemon.set("CNIBOX_LOG", "warn"), terminal) || notes(newWorld(&actor{name: "one"}), terminal) {
		t.Error("a daemon on a terminal, and only that, logs what it does")
	}
}

func TestLog(t *testing.T) {
	a := &actor{name: "one", onAdd: func(_ context.Context, h *roles.Host, _ *roles.Request) (*roles.Result, error) {
		h.Log.Info("note")
		return sampleResult(), nil
	}}
	for level, want := range map[string]string{"": "", "info": "msg=note role=one", "warn": "", "DEBUG": "msg=note role=one", "loud": "CNIBOX_LOG"} {
		ans := newWorld(a).set("CNIBOX_LOG", level).call(t)
		if ans.exit != 0 || (want == "") != (ans.stderr == "") || !strings.Contains(ans.stderr, want) {
			t.Errorf("level %q: %+v, want %q", level, ans, want)
		}
	}
}

func FuzzCall(f *testing.F) {
	w := newWorld()
	f.Add(strings.Join(w.env, "\x1f"), "/opt/cni/bin/one", w.stdin)
	f.Add("CNI_COMMAND=GC\x1fCNI_PATH=/", "cnibox", `{"cniVersion":"1.1.0","name":"n","type":"one","cni.dev/attachments":[{}]}`)
	f.Add("CNI_COMMAND=CHECK\x1fCNI_CONTAINERID=a\x1fCNI_NETNS=/proc/self/ns/net\x1fCNI_IFNAME=e", "one", `{"cniVersion":"0.4.0","name":"n","prevResult":{"ips":[{"address":"::/0"}],"routes":[{"dst":"0.0.0.0/0"}]}}`)
	f.Add("CNI_COMMAND=VERSION", "one", `{"cniVersion":"x"}`)
	f.Add("CNI_COMMAND=ADD\x1fCNI_CONTAINERID=a\x1fCNI_NETNS=x\x1fCNI_IFNAME=e\x1fCNI_ARGS=IP=;;=", "one", `{"cniVersion":"0.2.0","name":"n","prevResult":{"ip4":{}}}`)
	f.Fuzz(func(t *testing.T, env, arg0, stdin string) {
		a := &actor{name: "one", onAdd: func(_ context.Context, _ *roles.Host, req *roles.Request) (*roles.Result, error) {
			if req.PrevResult != nil {
				return req.PrevResult, nil
			}
			return sampleResult(), nil
		}}
		w := newWorld(a)
		w.env, w.args, w.stdin = strings.Split(env, "\x1f"), []string{arg0}, stdin
		if filepath.Base(arg0) != "one" {
			w.args = []string{"cnibox"}
		}
		ans := w.call(t)
		if ans.exit != 0 {
			if o := ans.failure(t); o.Code == 108 {
				t.Errorf("panic: %s", ans.stderr)
			}
			return
		}
		oneDocument(t, ans.stdout)
	})
}
