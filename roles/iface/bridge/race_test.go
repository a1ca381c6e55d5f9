package bridge_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// together runs calls concurrently and returns their answers in order.
func (p *pods) together(calls ...rolestest.Call) []rolestest.Answer {
	p.t.Helper()
	answers := make([]rolestest.Answer, len(calls))
	errs := make([]error, len(calls))
	cmds := make([]*exec.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = p.Cmd(c)
	}
	var all sync.WaitGroup
	for i, cmd := range cmds {
		all.Go(func() { answers[i], errs[i] = rolestest.RunFor(cmd, 0) })
	}
	all.Wait()
	for _, err := range errs {
		must(p.t, err)
	}
	return answers
}

// TestRaceAdd: of eight concurrent ADDs of one attachment one succeeds, and the
// others do not damage it.
func TestRaceAdd(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	for range 5 {
		calls := make([]rolestest.Call, 8)
		for i := range calls {
			calls[i] = p.call("ADD", "a")
		}
		won := 0
		for _, a := range p.together(calls...) {
			if a.Code == 0 {
				won++
				p.added("a", a.Stdout)
				continue
			}
			if !strings.Contains(a.Stdout, `"code": 105,`) {
				t.Errorf("a failed ADD returns %s", a.Stdout)
			}
		}
		if won != 1 {
			t.Fatalf("%d of 8 ADDs of one attachment succeeded", won)
		}
		p.check("a")
		p.del("a")
	}
	p.OK(p.gc())
	p.same(pristine, "after DEL and GC")
}

// TestRaceDel: concurrent ADD and DEL leave a complete attachment or none.
func TestRaceDel(t *testing.T) {
	p := newPods(t, guarded)
	p.add("other")
	start := p.state()
	for range 10 {
		answers := p.together(p.call("ADD", "a"), p.call("DEL", "a"), p.call("DEL", "a"))
		for i, a := range answers {
			if a.Code != 0 {
				t.Fatalf("call %d: %s", i, a.Stdout)
			}
		}
		p.added("a", answers[0].Stdout)
		if p.state() != start {
			p.check("a")
		}
		p.check("other")
		p.del("a")
		p.same(start, "after DEL")
	}
}

// TestRaceGC: GC does not change a valid attachment, whether it is complete or
// still being created, or the shared objects that it uses.
func TestRaceGC(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	for i := range 10 {
		ids := []string{fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)}
		p.add("stale")
		answers := p.together(p.call("ADD", ids[0]), p.gc(ids...), p.call("ADD", ids[1]), p.gc(ids...))
		for i, a := range answers {
			if a.Code != 0 {
				t.Fatalf("call %d: %s", i, a.Stdout)
			}
		}
		delete(p.results, "stale")
		p.added(ids[0], answers[0].Stdout)
		p.added(ids[1], answers[2].Stdout)
		p.check(ids...)
		p.del(ids...)
		p.del("stale")
		p.OK(p.gc())
		p.same(pristine, "after DEL and GC")
	}
}

// ownBinary gives the node's plugins a copy of the test binary. It returns a
// function that replaces the copy with another one by rename, as an
// installation does. All copies are written in advance: a concurrent fork would
// inherit the open file and make a new copy busy.
func (p *pods) ownBinary() (replace func() error) {
	p.t.Helper()
	self, err := os.Executable()
	must(p.t, err)
	raw, err := os.ReadFile(self)
	must(p.t, err)
	var copies []string
	for _, name := range []string{"old", "new"} {
		file := filepath.Join(p.Dir(), name)
		must(p.t, os.WriteFile(file, raw, 0o700)) //nolint:gosec // a program
		copies = append(copies, file)
	}
	file := filepath.Join(p.Dir(), "cnibox")
	n := 0
	replace = func() error {
		n++
		return errors.Join(os.Link(copies[n%2], file+".new"), os.Rename(file+".new", file))
	}
	must(p.t, replace())
	for _, name := range []string{"bridge", "host-local"} {
		link := filepath.Join(p.PluginDir(), name)
		must(p.t, os.Remove(link))
		must(p.t, os.Symlink(file, link))
	}
	return replace
}

// TestReplaced: the plugin's file is replaced before a running ADD executes the
// IPAM plugin. The new file gives the address.
func TestReplaced(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	replace := p.ownBinary()
	c := p.call("ADD", "a")
	c.Probe = "lock:stop:1"
	running := p.Stopped(c)

	must(t, replace())
	called := filepath.Join(p.Dir(), "called")
	ipam := filepath.Join(p.PluginDir(), "host-local")
	must(t, os.Rename(ipam, filepath.Join(p.Dir(), "host-local")))
	script := fmt.Sprintf("#!/bin/sh\necho $CNI_COMMAND >>%s\nunset CNIBOX_ROLESTEST_PROBE\nexec %s/host-local\n", called, p.Dir())
	must(t, os.WriteFile(ipam, []byte(script), 0o700)) //nolint:gosec // a program
	p.goOn(running)
	raw, err := os.ReadFile(called)
	must(t, err)
	if string(raw) != "ADD\n" {
		t.Errorf("the new file was called for %q", raw)
	}
	p.Fail(p.call("ADD", "a"), 0)
	p.del("a")
	p.OK(p.gc())
	p.same(pristine, "after DEL and GC")
}

// TestReplacedOften: the plugin's file is replaced repeatedly while containers
// are attached.
func TestReplacedOften(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	replace := p.ownBinary()
	var ids []string
	for round := range 4 {
		var calls []rolestest.Call
		for n := range 8 {
			id := fmt.Sprintf("c%d-%d", round, n)
			ids = append(ids, id)
			calls = append(calls, p.call("ADD", id))
		}
		stop, stopped := make(chan struct{}), make(chan error)
		go func() { stopped <- until(stop, replace) }()
		answers := p.together(calls...)
		close(stop)
		must(t, <-stopped)
		for i, a := range answers {
			if a.Code != 0 {
				t.Fatalf("ADD of %q: %s%s", calls[i].ID, a.Stdout, a.Stderr)
			}
			p.added(calls[i].ID, a.Stdout)
		}
	}
	p.check(ids...)
	p.del(ids...)
	p.OK(p.gc())
	p.same(pristine, "after DEL and GC")
}

// until calls f repeatedly until stop is closed or f fails.
func until(stop <-chan struct{}, f func() error) error {
	for {
		select {
		case <-stop:
			return nil
		default:
			if err := f(); err != nil {
				return err
			}
		}
	}
}
