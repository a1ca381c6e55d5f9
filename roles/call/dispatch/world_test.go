package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// actor is a role of the tests. It records its requests and returns the configured
// answers.
type actor struct {
	name  string
	kind  roles.Kind
	calls []string
	last  *roles.Request
	host  *roles.Host
	// conf is the error of New, the others are the answers of the verbs.
	conf                           func([]byte) error
	onAdd                          func(context.Context, *roles.Host, *roles.Request) (*roles.Result, error)
	onDel, onCheck, onGC, onStatus func(context.Context, *roles.Host, *roles.Request) error
	noAddress, plain, reference    bool
}

func (a *actor) role() roles.Role {
	r := roles.Role{
		Names: []string{a.name}, Kind: a.kind, Summary: "a role of the tests", Args: []string{"IP", "MAC"},
		New: func(raw []byte) (roles.Handler, error) {
			if a.conf != nil {
				if err := a.conf(raw); err != nil {
					return nil, err
				}
			}
			if a.plain {
				return struct{ roles.Handler }{a}, nil
			}
			return a, nil
		},
	}
	if a.kind == "" {
		r.Kind = roles.Interface
	}
	if a.reference {
		r.Reference = "v1.9.1"
	}
	return r
}

func (a *actor) note(h *roles.Host, req *roles.Request) {
	a.calls, a.last, a.host = append(a.calls, string(req.Verb)), req, h
}

func (a *actor) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	a.note(h, req)
	if a.onAdd != nil {
		return a.onAdd(ctx, h, req)
	}
	return sampleResult(), nil
}

func (a *actor) Addressless() bool { return a.noAddress }

func (a *actor) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	a.note(h, req)
	return maybe(ctx, a.onDel, h, req)
}

func (a *actor) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	a.note(h, req)
	return maybe(ctx, a.onCheck, h, req)
}

func (a *actor) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	a.note(h, req)
	return maybe(ctx, a.onGC, h, req)
}

func (a *actor) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	a.note(h, req)
	return maybe(ctx, a.onStatus, h, req)
}

func maybe(ctx context.Context, fn func(context.Context, *roles.Host, *roles.Request) error, h *roles.Host, req *roles.Request) error {
	if fn == nil {
		return nil
	}
	return fn(ctx, h, req)
}

func sampleResult() *roles.Result {
	index := 0
	return &roles.Result{
		CNIVersion: roles.ResultVersion,
		Interfaces: []*roles.ResultInterface{{Name: "eth0", Sandbox: "/var/run/netns/a"}},
		IPs: []*types100.IPConfig{{
			Interface: &index,
			Address:   net.IPNet{IP: net.IPv4(10, 0, 0, 2).To4(), Mask: net.CIDRMask(24, 32)},
			Gateway:   net.IPv4(10, 0, 0, 1).To4(),
		}},
	}
}

// answer is the outcome of a call.
type answer struct {
	exit           int
	stdout, stderr string
}

// world holds the parameters of one call.
type world struct {
	args  []string
	env   []string
	stdin string
	table roles.Table
	// opened is the number of hosts that are open now.
	opened int
	// cancelled means that the call's context is already done.
	cancelled bool
}

// newWorld returns a valid ADD of role "one" whose namespace does not exist.
func newWorld(actors ...*actor) *world {
	w := &world{
		args: []string{"/opt/cni/bin/one"},
		env: []string{
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=abc", "CNI_NETNS=/nonexistent/netns", "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent",
		},
		stdin: `{"cniVersion":"1.1.0","name":"net","type":"one"}`,
	}
	for _, a := range actors {
		w.table = append(w.table, tabletest.Of(a.role())...)
	}
	return w
}

// set changes a variable; an empty value removes it.
func (w *world) set(key, value string) *world {
	w.env = slices.DeleteFunc(w.env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
	if value != "" {
		w.env = append(w.env, key+"="+value)
	}
	return w
}

func (w *world) process(stdout, stderr *bytes.Buffer) Process {
	return Process{
		Table: w.table, Args: w.args, Env: w.env, Stdin: strings.NewReader(w.stdin), Stdout: stdout, Stderr: stderr,
		Version: "v0.0.1", Executable: "/proc/self/exe",
		OpenHost: func(_ context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
			w.opened++
			return &roles.Host{Role: role, Log: log, Store: store.New(store.Options{})}, func() { w.opened-- }, nil
		},
	}
}

func (w *world) call(tb testing.TB) answer {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	if w.cancelled {
		cancel()
	}
	a := answer{exit: Main(ctx, w.process(&stdout, &stderr))}
	a.stdout, a.stderr = stdout.String(), stderr.String()
	if w.opened != 0 {
		tb.Errorf("%d hosts are still open", w.opened)
	}
	return a
}

// failure asserts that a call printed one error object and nothing else.
func (a answer) failure(tb testing.TB) errorObject {
	tb.Helper()
	if a.exit == 0 {
		tb.Errorf("exit code 0, want another; stdout %s", a.stdout)
	}
	d := json.NewDecoder(strings.NewReader(a.stdout))
	d.DisallowUnknownFields()
	var o errorObject
	if err := d.Decode(&o); err != nil {
		tb.Fatalf("stdout is not an error object: %v: %q", err, a.stdout)
	}
	if rest := strings.TrimSpace(a.stdout[d.InputOffset():]); rest != "" {
		tb.Errorf("a second document on stdout: %q", rest)
	}
	if o.Code == 0 || o.Code == 999 || o.Msg == "" || o.CNIVersion == "" {
		tb.Errorf("error object %+v: code, msg and cniVersion are required, 0 and 999 are no codes", o)
	}
	return o
}

// success asserts exit code 0 and no log lines.
func (a answer) success(tb testing.TB) {
	tb.Helper()
	if a.exit != 0 || a.stderr != "" {
		tb.Fatalf("exit code %d, stdout %s, stderr %s", a.exit, a.stdout, a.stderr)
	}
}

// script writes an executable shell script as a third-party plugin.
func script(tb testing.TB, dir, name, body string) string {
	tb.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		tb.Fatal(err)
	}
	return file
}

// linkSelf installs a link to this program under a role's name.
func linkSelf(tb testing.TB, dir, name string) {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
		tb.Fatal(err)
	}
}

func mkfifo(tb testing.TB, file string) {
	tb.Helper()
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		tb.Fatal(err)
	}
}
