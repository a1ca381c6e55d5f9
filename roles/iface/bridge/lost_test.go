package bridge_test

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestStateLost: /run/cnibox is deleted while containers run. A container's ID
// is in its link's alias; if it is too long for that it is in a runtime's
// cache, or it is unknown. The caches do not contain host-local's data
// directory.
func TestStateLost(t *testing.T) {
	for _, known := range []struct {
		name   string
		cached bool
		digits int
	}{{"by alias", false, 64}, {"by cache", true, 200}, {"unknown", false, 200}} {
		t.Run("known "+known.name, func(t *testing.T) {
			longID := func(n int) string { return strings.Repeat(strconv.Itoa(n), known.digits) }
			start := func(t *testing.T) (p *pods, pristine string) {
				t.Helper()
				p = newPods(t, strings.Replace(guarded, `"type":"host-local"`, `"type":"host-local","dataDir":"`+t.TempDir()+`"`, 1))
				pristine = p.state()
				for _, id := range []string{longID(1), longID(2), "short"} {
					p.add(id)
					if known.cached {
						p.Cache(p.call("ADD", id), p.results[id])
					}
				}
				p.Forget()
				return p, pristine
			}
			for _, c := range []struct {
				name string
				do   func(p *pods)
			}{
				{"ADD first", func(p *pods) {
					p.add("new")
					p.check(longID(1), longID(2), "short", "new")
					p.Fail(p.call("ADD", longID(1)), 105)
					p.check(longID(1))
					p.del(longID(1), longID(2))
					p.add(longID(1))
					p.check(longID(1), "short", "new")
					p.del(longID(1), "short", "new")
				}},
				{"CHECK first", func(p *pods) { p.check(longID(1), "short") }},
				{"DEL first", func(p *pods) {
					p.del(longID(1), "short")
					p.check(longID(2))
					p.add("new")
					p.del("new", longID(2))
				}},
				{"repeated ADD first", func(p *pods) {
					p.Fail(p.call("ADD", longID(1)), 0)
					p.check(longID(1), "short")
				}},
				{"GC that lists one first", func(p *pods) {
					p.OK(p.gc(longID(1)))
					p.check(longID(1))
					delete(p.results, longID(2))
					delete(p.results, "short")
					p.Run(p.call("DEL", longID(2)))
				}},
				{"GC that lists one after ADD", func(p *pods) {
					p.add("new")
					p.OK(p.gc(longID(1), "new"))
					p.check(longID(1), "new")
				}},
				{"GC first", func(*pods) {}},
			} {
				t.Run(c.name, func(t *testing.T) {
					p, pristine := start(t)
					c.do(p)
					p.OK(p.gc())
					p.same(pristine, "after GC with an empty list")
				})
			}
		})
	}
}

// TestStateDamaged: an unusable state file is reported clearly and nothing is
// changed. After the file is moved away the state is rebuilt.
func TestStateDamaged(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, file string)
		code   int
		texts  []string
	}{
		{"truncated", func(t *testing.T, file string) { t.Helper(); must(t, os.Truncate(file, 5000)) }, 113, []string{"cut short", "cnibox state repair"}},
		{"garbage", func(t *testing.T, file string) {
			t.Helper()
			must(t, os.WriteFile(file, []byte(strings.Repeat("garbage ", 8192)), 0o600))
		}, 113, []string{"0 valid meta pages", "cnibox state repair"}},
		{"garbage within", func(t *testing.T, file string) {
			t.Helper()
			raw, err := os.ReadFile(file)
			must(t, err)
			for i := 2 * os.Getpagesize(); i < len(raw); i++ {
				raw[i] = 0xff
			}
			must(t, os.WriteFile(file, raw, 0o600))
		}, 113, []string{"cnibox state repair"}},
		{"newer", newer, 114, []string{"schema 9", "cnibox state repair"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPods(t, guarded)
			pristine := p.state()
			p.add("a")
			p.add("b")
			file := p.storeFile()
			sound, err := os.ReadFile(file)
			must(t, err)
			before := p.state()
			c.damage(t, file)
			damaged, err := os.ReadFile(file)
			must(t, err)
			p.mentions(p.Fail(p.call("ADD", "c"), c.code), c.texts...)
			p.mentions(p.Fail(p.call("DEL", "a"), c.code), c.texts...)
			p.Fail(p.call("CHECK", "b"), 0)
			p.Fail(p.status(), 50)
			p.Fail(p.gc(), c.code)
			now, err := os.ReadFile(file)
			must(t, err)
			if string(now) != string(damaged) {
				t.Error("the damaged file was changed")
			}
			must(t, os.WriteFile(file, sound, 0o600))
			p.same(before, "after calls that could not use the state")
			p.check("a", "b")

			c.damage(t, file)
			must(t, os.Rename(file, file+".damaged"))
			p.add("c")
			p.check("a", "b", "c")
			p.del("a", "b", "c")
			p.OK(p.gc())
			p.same(pristine, "after the damaged file was set aside, DEL and GC")
		})
	}
}

// newer makes the file one that only newer versions of the program can read. It keeps
// the modification time, by which the program knows its own writes.
func newer(t *testing.T, file string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	must(t, err)
	st, err := os.Stat(file)
	must(t, err)
	must(t, os.WriteFile(file, bytes.ReplaceAll(raw, []byte(`"minReader":1,`), []byte(`"minReader":9,`)), 0o600))
	must(t, os.Chtimes(file, time.Time{}, st.ModTime()))
}

// TestStateEmpty: an empty state file is treated as a missing one.
func TestStateEmpty(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	p.add("a")
	must(t, os.Truncate(p.storeFile(), 0))
	p.add("b")
	p.check("a", "b")
	p.del("a", "b")
	p.OK(p.gc())
	p.same(pristine, "after DEL and GC")
}

// TestStateLocked: while a plugin is stopped within a transaction, other calls
// fail at the deadline. Their errors name the process, and they change nothing.
func TestStateLocked(t *testing.T) {
	p := newPods(t, guarded)
	pristine := p.state()
	p.add("a")
	c := p.call("ADD", "stopped")
	c.Probe = "commit:stop:1"
	holder := p.Stopped(c)
	p.Extra = append(p.Extra, "CNIBOX_TEST_LOCK_TIMEOUT=200ms")
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
		c := p.call(verb, "a")
		if verb == "ADD" {
			c = p.call(verb, "b")
		}
		if verb == "GC" {
			c = p.gc()
		}
		a, err := rolestest.RunFor(p.Cmd(c), 0)
		must(t, err)
		if a.Code == 0 || !strings.Contains(a.Stdout, `"code": 11,`) {
			t.Errorf("%s: exit %d, want code 11: %s", verb, a.Code, a.Stdout)
		}
		p.mentions(a, "held by process "+strconv.Itoa(holder.Process.Pid), "(bridge)")
	}
	p.mentions(p.Fail(p.status(), 50), "held by process "+strconv.Itoa(holder.Process.Pid))
	p.goOn(holder)
	p.check("a")
	p.del("stopped", "a")
	p.OK(p.gc())
	p.same(pristine, "after DEL and GC")
}

// goOn continues a stopped call and fails the test if the call fails.
func (p *pods) goOn(cmd *exec.Cmd) {
	p.t.Helper()
	must(p.t, cmd.Process.Signal(unix.SIGCONT))
	must(p.t, cmd.Wait())
}
