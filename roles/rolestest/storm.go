package rolestest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/seed"
)

const (
	// soakEnv is the duration of storms in seconds. Without it they run once.
	soakEnv = "CNIBOX_SOAK"
	// soaking is the minimum duration of a soak.
	soaking = 2 * time.Minute
	// fewContainers is the number of containers of a storm outside a soak: a list of five
	// plugins, of which a third is killed, makes 60 calls for each.
	fewContainers = 16
	// guardTime is the time after which a call is reported as hung. A call has no longer
	// timeout.
	guardTime = 2 * await.Patience
	// mostTries is the number of calls after which a storm fails. While Meanwhile damages
	// the node, nine in ten calls may fail, so sixty calls would all fail for one
	// container in five hundred.
	mostTries = 300
	// shortLife is the longest random time after which a process is killed. It is the
	// duration of a single call. With many parallel calls each takes up to 8 times as
	// long.
	shortLife = 15 * time.Millisecond
)

// Storm attaches many containers at once and detaches them. It kills a random third of
// the processes after a random time, and repeats their calls as a runtime does: DEL, then
// ADD.
type Storm struct {
	Table roles.Table
	Type  string
	// Confs are the configurations in JSON, with version. The containers use them in turn.
	Confs []string
	// Chain are the chained plugins, without "name" and "cniVersion".
	Chain []string
	// Runtime returns the runtimeConfig of the chained plugins for the n-th container. It
	// may be nil.
	Runtime func(n int) map[string]any
	// Containers is the number of containers, Parallel the number of calls at once.
	Containers, Parallel int
	// Whole makes the storm use all of CNIBOX_SOAK and all containers in every run. Most
	// storms test the same races in different roles, so outside a soak (CNIBOX_SOAK of at
	// least two minutes) each uses a quarter of the time and fewContainers.
	Whole bool
	// Short keeps the storm in the tier `make test`.
	Short bool
	// Beyond is Env.Beyond.
	Beyond func() string
	// Meanwhile is called every 16 calls and may disturb the node.
	Meanwhile func(*Env) error
}

// Run runs at least one round, and repeats rounds until its share of CNIBOX_SOAK seconds
// is over. After each round, GC with an empty list restores the first state of kernel and
// store. Two attached containers never have the same address.
func (s Storm) Run(t *testing.T) {
	t.Helper()
	if testing.Short() && !s.Short {
		t.Skip("make test-full runs this storm")
	}
	soak, err := soakTime()
	if err != nil {
		t.Fatal(err)
	}
	if soak < soaking && (!s.Whole || testing.Short()) {
		soak /= 4
		s.Containers = min(s.Containers, fewContainers)
	}
	r := &stormRun{
		Storm: s, Env: NewEnv(t, s.Table), random: rand.New(rand.NewPCG(seed.Of(t), 0)),
		owners: map[string]string{},
	}
	r.Env.Beyond = s.Beyond
	for range s.Containers {
		r.spaces = append(r.spaces, netopstest.New(t))
	}
	start := r.state()
	for until := time.Now().Add(soak); ; {
		r.each(r.attach)
		if len(r.owners) < s.Containers && !t.Failed() {
			t.Errorf("%d containers have %d addresses", s.Containers, len(r.owners))
		}
		r.each(r.detach)
		for line := range strings.Lines(r.state()) { // GC would remove them
			if last := line[strings.LastIndex(line, " ")+1:]; attachment.IsLabel(strings.Trim(last, "\"\n")) {
				t.Errorf("of a container that was detached: %s", line)
			}
		}
		for n := range s.Confs {
			for _, c := range r.list("GC", n) {
				r.OK(Call{Type: c.Type, Verb: c.Verb, Conf: WithKeys(t, c.Conf, map[string]any{"cni.dev/valid-attachments": []any{}})})
			}
		}
		if have := r.state(); have != start && !t.Failed() {
			t.Errorf("after all are detached: state differs\nwant:\n%s\nhave:\n%s", start, have)
		}
		if t.Failed() || time.Now().After(until) {
			return
		}
	}
}

// soakTime returns the duration of storms.
func soakTime() (time.Duration, error) {
	v := os.Getenv(soakEnv)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", soakEnv, err)
	}
	return time.Duration(n) * time.Second, nil
}

// stormRun is the state of a running Storm.
type stormRun struct {
	Storm
	*Env
	spaces []*netopstest.NS

	mu     sync.Mutex
	random *rand.Rand
	calls  int
	// owners maps an address to its container.
	owners map[string]string
}

// state omits the forwarding sysctls, which stay set after DEL.
func (s *stormRun) state() string { return s.State([]string{"sysctl net/"}) }

// each runs f for every container, Parallel of them at once.
func (s *stormRun) each(f func(n int) error) {
	todo := make(chan int)
	var workers sync.WaitGroup
	for range s.Parallel {
		workers.Go(func() {
			for n := range todo {
				if err := f(n); err != nil {
					s.t.Errorf("container %d: %v", n, err)
				}
			}
		})
	}
	for n := range s.Containers {
		todo <- n
	}
	close(todo)
	workers.Wait()
}

// list holds the calls for the n-th container, one for each plugin of the list.
func (s *stormRun) list(verb string, n int) []Call {
	s.t.Helper()
	conf := s.Confs[n%len(s.Confs)]
	c := Call{Type: s.Type, Verb: verb, ID: "storm" + strconv.Itoa(n), Netns: s.spaces[n].Path(), IfName: "eth0", Conf: conf}
	list := []Call{c}
	var network struct{ Name, CNIVersion string }
	err := json.Unmarshal([]byte(conf), &network)
	for _, chained := range s.Chain {
		var plugin struct{ Type string }
		err = errors.Join(err, json.Unmarshal([]byte(chained), &plugin))
		given := map[string]any{"name": network.Name, "cniVersion": network.CNIVersion}
		if s.Runtime != nil {
			given["runtimeConfig"] = s.Runtime(n)
		}
		c.Type, c.Conf = plugin.Type, WithKeys(s.t, chained, given)
		list = append(list, c)
	}
	if err != nil {
		s.t.Error(err)
	}
	return list
}

// attach tries ADD until it succeeds, with DEL after every failure.
func (s *stormRun) attach(n int) error {
	for range mostTries {
		result, err := s.add(n)
		if err != nil {
			return err
		}
		if result != "" {
			return s.own(n, result)
		}
		if err := s.detach(n); err != nil {
			return err
		}
	}
	return fmt.Errorf("ADD failed %d times", mostTries)
}

// add calls one plugin after the other. It returns the last one's result, or
// nothing when one fails.
func (s *stormRun) add(n int) (result string, err error) {
	for _, c := range s.list("ADD", n) {
		if result != "" {
			c.Conf = WithKeys(s.t, c.Conf, map[string]any{"prevResult": json.RawMessage(result)})
		}
		a, err := s.try(c)
		if err != nil || a.Code != 0 {
			return "", err
		}
		result = a.Stdout
	}
	return result, nil
}

// detach tries DEL until it succeeds. The addresses count as free from its start.
func (s *stormRun) detach(n int) error {
	s.disown(n)
	for range mostTries {
		done, err := s.del(n)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("DEL failed %d times", mostTries)
}

// del calls the plugins in reverse order, until one fails.
func (s *stormRun) del(n int) (done bool, err error) {
	list := s.list("DEL", n)
	slices.Reverse(list)
	for _, c := range list {
		a, err := s.try(c)
		if err != nil || a.Code != 0 {
			return false, err
		}
	}
	return true, nil
}

// own records the addresses of a result. An address of another container is an error.
func (s *stormRun) own(n int, stdout string) error {
	var r roles.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		return fmt.Errorf("result of ADD: %w: %s", err, stdout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ip := range r.IPs {
		addr, me := ip.Address.IP.String(), strconv.Itoa(n)
		if other, ok := s.owners[addr]; ok {
			return fmt.Errorf("address %s belongs to container %s", addr, other)
		}
		s.owners[addr] = me
	}
	return nil
}

func (s *stormRun) disown(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, owner := range s.owners {
		if owner == strconv.Itoa(n) {
			delete(s.owners, addr)
		}
	}
}

// try makes one call, and kills it sometimes. Only a hung call, or a failed call without
// an error message, is an error of try.
func (s *stormRun) try(c Call) (Answer, error) {
	life, harm := s.choose()
	if harm {
		if err := s.Meanwhile(s.Env); err != nil {
			return Answer{}, err
		}
	}
	a, err := RunFor(s.Cmd(c), life)
	if err != nil {
		return a, fmt.Errorf("%s: %w", c.Verb, err)
	}
	var o struct{ Msg string }
	if a.Code > 0 && (json.Unmarshal([]byte(a.Stdout), &o) != nil || o.Msg == "") {
		return a, fmt.Errorf("%s: exit %d without an error object: %s%s", c.Verb, a.Code, a.Stdout, a.Stderr)
	}
	return a, nil
}

// choose returns the time after which the next call is killed, 0 for never, and whether
// Meanwhile is called before it.
func (s *stormRun) choose() (life time.Duration, harm bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.random.IntN(3) == 0 {
		life = 1 + time.Duration(s.random.Int64N(int64(shortLife<<s.random.IntN(4))))
	}
	return life, s.Meanwhile != nil && s.calls%16 == 0
}

// errHung means that a call took guardTime.
var errHung = errors.New("the call did not end")

// RunFor runs a call and kills it after life. With life 0 it does not kill the call,
// but a call that takes guardTime is an error.
func RunFor(cmd *exec.Cmd, life time.Duration) (Answer, error) {
	limit := life
	if limit == 0 {
		limit = guardTime
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return Answer{}, err
	}
	ends := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	inTime := ends.Stop()
	a := Answer{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return a, err
	case !inTime && life == 0:
		return a, errHung
	}
	return a, nil
}

// Stopped starts a call with a probe that stops it, and returns when it has stopped. If
// the caller does not continue it, it is killed at the end of the test.
func (e *Env) Stopped(c Call) *exec.Cmd {
	e.t.Helper()
	cmd := e.Cmd(c)
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = cmd.Process.Kill() })
	var ws unix.WaitStatus
	_, err := unix.Wait4(cmd.Process.Pid, &ws, unix.WUNTRACED, nil)
	if err != nil || !ws.Stopped() {
		e.t.Fatalf("%s %s ended before it was to stop: %v, status %#x", c.Verb, c.Type, err, ws)
	}
	return cmd
}

// WithKeys returns a configuration with further top-level keys.
func WithKeys(t testing.TB, conf string, more map[string]any) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(conf), &m); err != nil {
		t.Fatal(err)
	}
	for k, v := range more {
		m[k] = v
	}
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
