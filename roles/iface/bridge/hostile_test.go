package bridge_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/rolestest"
)

// huge is longer than any valid name.
var huge = strings.Repeat("x", 10_000)

// files lists the files in a node's directories.
func (p *pods) files() string {
	p.t.Helper()
	var b strings.Builder
	must(p.t, filepath.WalkDir(p.Dir(), func(path string, _ fs.DirEntry, err error) error {
		b.WriteString(path + "\n")
		return err
	}))
	return b.String()
}

// hostile is the configuration guarded with one key set to a hostile value. A
// key that begins with "ipam." is set in ipam.
func hostile(t *testing.T, key string, value any) string {
	t.Helper()
	var conf map[string]any
	must(t, json.Unmarshal([]byte(guarded), &conf))
	in := conf
	if rest, ok := strings.CutPrefix(key, "ipam."); ok {
		in, key = conf["ipam"].(map[string]any), rest
	}
	in[key] = value
	out, err := json.Marshal(conf)
	must(t, err)
	return string(out)
}

// TestHostileNames: every verb refuses names that are invalid or contain a
// path, before it changes anything. DEL accepts those that only the role
// checks. NUL cannot be in an environment variable.
func TestHostileNames(t *testing.T) {
	p := newPods(t, guarded)
	pristine, files := p.state(), p.files()
	victim := filepath.Join(p.Dir(), "victim")
	must(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	files += victim + "\n"
	refusedBy := func(what string, c rolestest.Call, code int, verbs ...string) {
		t.Helper()
		for _, verb := range verbs {
			c.Verb = verb
			a, err := rolestest.RunFor(p.Cmd(c), 0)
			must(t, err)
			var o struct{ Code int }
			must(t, json.Unmarshal([]byte(a.Stdout), &o))
			if a.Code == 0 || o.Code != code || len(a.Stdout) > 5000 {
				t.Errorf("%.99s: %s: exit %d, want code %d in 5 kB: %.999s", what, verb, a.Code, code, a.Stdout)
			}
		}
	}
	refused := func(what string, c rolestest.Call, code int) { t.Helper(); refusedBy(what, c, code, "ADD", "DEL") }
	for _, id := range []string{"..", "../victim", "a/b", "/etc/passwd", "-rf", ".a", "a b", "a\n", "é", "a\xff", "cnibox:0123456789abcdef"} {
		c := p.call("ADD", "a")
		c.ID = id
		refused("container "+id, c, 4)
	}
	for _, ifName := range []string{".", "..", "../a", "a/b", "a b", "a:b", "a\tb", strings.Repeat("x", 16), huge} {
		c := p.call("ADD", "a")
		c.IfName = ifName
		refused("interface "+ifName, c, 4)
	}
	for _, name := range []string{"..", "../victim", "a/b", "/etc", "a\x00b", "\x00", "é", "a b", "", "-a"} {
		c := p.call("ADD", "a")
		c.Conf = hostile(t, "name", name)
		refused("network "+name, c, 7)
	}
	for _, name := range []string{".", "..", "../a", "a/b", "a\x00b", "a b", strings.Repeat("x", 16), huge} {
		c := p.call("ADD", "a")
		c.Conf = hostile(t, "bridge", name)
		refusedBy("bridge "+name, c, 7, "ADD")
		c.Verb = "DEL"
		p.OK(c)
	}
	for _, args := range []string{"IP=" + huge, "MAC=" + huge, "K8S_POD_NAME", huge + "=a", "IP=../victim", "MAC=\xff", ";;=;"} {
		c := p.call("ADD", "a")
		c.Args = args
		refusedBy("arguments "+args, c, 4, "ADD")
		c.Verb = "DEL"
		p.OK(c)
	}
	p.same(pristine, "after refused calls")
	p.OK(p.gc())
	p.same(pristine, "after GC")
	raw, err := os.ReadFile(victim)
	must(t, err)
	if string(raw) != "untouched" {
		t.Errorf("a file was written: %q", raw)
	}
	if have := p.files(); !sameButState(have, files) {
		t.Errorf("files were made\nhave:\n%s\nwant:\n%s", have, files)
	}
}

// sameButState compares lists of files, ignoring the state files.
func sameButState(have, want string) bool {
	known := map[string]bool{}
	for line := range strings.Lines(want) {
		known[line] = true
	}
	for line := range strings.Lines(have) {
		if !known[line] && !strings.Contains(line, "/run/") && !strings.Contains(line, "/lib/") {
			return false
		}
	}
	return true
}

// TestHugeNames: a long but valid name works, or is refused with a short error
// and leaves nothing.
func TestHugeNames(t *testing.T) {
	for _, c := range []struct {
		name     string
		id, conf string
		code     int
	}{
		{name: "ID of 9 kB", id: huge[:9000], conf: guarded},
		{name: "network of 9 kB", id: "a", conf: hostile(t, "name", huge[:9000])},
		{name: "ID of 40 kB", id: strings.Repeat(huge, 4), conf: guarded, code: 115},
		{name: "network of 40 kB", id: "a", conf: hostile(t, "name", strings.Repeat(huge, 4)), code: 115},
		{name: "data directory of 9 kB", id: "a", conf: hostile(t, "ipam.dataDir", "/"+huge[:9000])},
		{name: "data directory with dots", id: "a", conf: hostile(t, "ipam.dataDir", "/proc/../../.."+t.TempDir()+"/nowhere/../nothing")},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPods(t, c.conf)
			pristine := p.state()
			add := p.call("ADD", "a")
			add.ID = c.id
			if c.code != 0 {
				a := p.Fail(add, c.code)
				if len(a.Stdout) > 5000 {
					t.Errorf("the error is %d bytes long", len(a.Stdout))
				}
				p.same(pristine, "after a refused ADD")
				return
			}
			p.results["a"] = p.OK(add).Stdout
			check := p.call("CHECK", "a")
			check.ID = c.id
			p.OK(check)
			p.Fail(add, 105)
			add.Verb = "DEL"
			p.OK(add)
			p.OK(p.gc())
			p.same(pristine, "after DEL and GC")
		})
	}
}
