package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
	"github.com/cnibox/cnibox/store"
)

// TestMain makes the test binary a multi-call binary, as cnibox is.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"cnibox": probeMain, "probe": probeMain, "probe-ipam": probeMain,
	})
}

func probeMain() {
	os.Exit(Main(context.Background(), Process{
		Table: tabletest.Of(probe("probe", roles.Interface), probe("probe-ipam", roles.IPAM)), Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: Stdout(1), Stderr: os.Stderr, Version: "v0.0.1", Executable: "/proc/self/exe",
		OpenHost: func(_ context.Context, role string, log *slog.Logger) (*roles.Host, func(), error) {
			return &roles.Host{Role: role, Log: log, Store: store.New(store.Options{})}, func() {}, nil
		},
	}))
}

// probeConf is the configuration of the probe.
type probeConf struct {
	roles.NetConf
	// Do is "panic" or "fail".
	Do string `json:"do"`
	// Calls is a file to which every call is appended.
	Calls string `json:"calls"`
}

// probe is a role that delegates to its IPAM plugin. It appends its calls to a file with
// the process that served them: "self" is the process that the runtime started.
func probe(name string, kind roles.Kind) roles.Role {
	return roles.Role{
		Names: []string{name}, Kind: kind, Summary: "a role of the tests", Reference: "v1.9.1",
		New: func(raw []byte) (roles.Handler, error) {
			h := &probeHandler{name: name}
			return h, roles.Decode(raw, &h.conf)
		},
		Run: func(_ context.Context, h *roles.Host, args []string) error {
			fmt.Fprintln(os.Stdout, h.Role, "daemon with", args)
			return nil
		},
	}
}

type probeHandler struct {
	name string
	conf probeConf
}

func (p *probeHandler) note(verb roles.Verb) error {
	if p.conf.Calls == "" {
		return nil
	}
	f, err := os.OpenFile(p.conf.Calls, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, filepath.Base(os.Args[0]), "plays", p.name, verb)
	return err
}

func (p *probeHandler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	if err := p.note(roles.Add); err != nil {
		return nil, err
	}
	if p.name == "probe-ipam" {
		r := sampleResult()
		r.Interfaces, r.IPs[0].Interface = nil, nil
		return r, nil
	}
	switch p.conf.Do {
	case "panic":
		panic("told to")
	case "fail":
		return nil, errors.New("told to fail")
	}
	if p.conf.IPAM.Type != "" {
		return h.Delegate.Add(ctx, p.conf.IPAM.Type, req)
	}
	return sampleResult(), nil
}

func (p *probeHandler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	err := p.note(roles.Del)
	if p.conf.IPAM.Type != "" && p.name != "probe-ipam" {
		err = errors.Join(err, h.Delegate.Del(ctx, p.conf.IPAM.Type, req))
	}
	return err
}

func (p *probeHandler) GC(context.Context, *roles.Host, *roles.Request) error {
	return p.note(roles.GC)
}

// TestScripts runs testdata/script/*.txtar. Each file tests one behaviour of the
// binary that a runtime or a user sees.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			bin, err := exec.LookPath("probe")
			if err != nil {
				return err
			}
			e.Setenv("BIN", filepath.Dir(bin))
			e.Setenv("CNI_PATH", filepath.Dir(bin)+":"+filepath.Join(e.WorkDir, "bin"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// document FILE asserts that a file is exactly one JSON document.
			"document": func(ts *testscript.TestScript, _ bool, args []string) {
				var v any
				ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
			},
		},
	})
}

// started is a probe process that waits.
type started struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	ready, calls   string
}

// start starts ADD. If script is not empty, it is the IPAM plugin, which is executed.
// $READY is a FIFO that await reads.
func start(t *testing.T, ipam string, stdout *os.File) *started {
	t.Helper()
	bin, err := exec.LookPath("probe")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &started{cmd: exec.CommandContext(t.Context(), bin), ready: filepath.Join(dir, "ready"), calls: filepath.Join(dir, "calls")}
	mkfifo(t, s.ready)
	c := map[string]any{"cniVersion": "1.1.0", "name": "net", "calls": s.calls}
	if ipam != "" {
		script(t, dir, "slow", ipam)
		c["ipam"] = map[string]any{"type": "slow"}
	}
	conf, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=a", "CNI_NETNS=/nonexistent", "CNI_IFNAME=eth0",
		"CNI_PATH=" + dir, "READY=" + s.ready, "PATH=" + os.Getenv("PATH"),
	}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = bytes.NewReader(conf), &s.stdout, &s.stderr
	if stdout != nil {
		s.cmd.Stdout = stdout
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The executed plugin may run longer than the process.
	t.Cleanup(func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	return s
}

// await reads what the process writes before it waits.
func (s *started) await(t *testing.T, want string) {
	t.Helper()
	if b, err := os.ReadFile(s.ready); err != nil || strings.TrimSpace(string(b)) != want {
		t.Fatalf("%q, %v, want %q", b, err, want)
	}
}

func (s *started) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// TestSignalCancels: while another program is executed a signal cancels it.
func TestSignalCancels(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s := start(t, `[ $CNI_COMMAND = ADD ] || exit 0; echo ready >$READY; exec sleep 60`, nil)
		s.await(t, "ready")
		s.signal(t, sig)
		if err := s.cmd.Wait(); err == nil {
			t.Error("exit code 0")
		}
		o := answer{exit: s.cmd.ProcessState.ExitCode(), stdout: s.stdout.String()}.failure(t)
		if o.Code != 11 || !strings.Contains(o.Msg, "signal received") {
			t.Errorf("%s: error object %+v", sig, o)
		}
	}
}

func TestSecondSignalKills(t *testing.T) {
	s := start(t, `trap 'echo cancelled >$READY' TERM; echo ready >$READY; while :; do read line <$READY; done`, nil)
	s.await(t, "ready")
	s.signal(t, syscall.SIGTERM)
	// The test cannot know when the handler of the first signal is removed, so it sends
	// the second signal repeatedly. It waits between them, because many nested signals
	// overflow the Go runtime's signal stack.
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-again.C:
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
		}
	}
	st, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !st.Signaled() || st.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %v, want SIGTERM", s.cmd.ProcessState)
	}
	if s.stdout.Len() != 0 {
		t.Errorf("stdout %q", s.stdout.String())
	}
}

// TestRuntimeGone: if the runtime does not read the result, the changes of ADD are
// undone. SIGPIPE does not end the process before that.
func TestRuntimeGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	s := start(t, "", w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err == nil || s.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended by %v, want exit code 1", s.cmd.ProcessState)
	}
	b, err := os.ReadFile(s.calls)
	if want := "probe plays probe ADD\nprobe plays probe DEL\n"; err != nil || string(b) != want {
		t.Errorf("calls %q, %v, want %q", b, err, want)
	}
}
