package rolestest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// CacheDir returns the directory of libcni's cache of the node's runtime.
func (e *Env) CacheDir() string { return filepath.Join(e.root, "results") }

// Cache writes libcni's cache file for an ADD, with the ADD's configuration and result.
func (e *Env) Cache(add Call, result string) {
	e.t.Helper()
	var conf struct{ Name string }
	if err := json.Unmarshal([]byte(add.Conf), &conf); err != nil {
		e.t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": add.ID, "ifName": add.IfName, "networkName": conf.Name,
		"netns": add.Netns, "config": []byte(add.Conf), "result": json.RawMessage(result),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.CacheDir(), conf.Name+"-"+add.ID+"-"+add.IfName), raw, 0o600); err != nil {
		e.t.Fatal(err)
	}
}

// Forget deletes the node's /run/cnibox.
func (e *Env) Forget() {
	e.t.Helper()
	if err := os.RemoveAll(e.RunDir()); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Mkdir(e.RunDir(), 0o700); err != nil {
		e.t.Fatal(err)
	}
}

// stateLost deletes the state of a running container that is in a runtime's cache. The
// container is still attached, and DEL and GC without its namespace remove all of its
// objects. A device of the host may lose attributes that only the record contained.
func (s Suite) stateLost(t *testing.T, c Conf) {
	if c.Stateless {
		t.Skip("keeps no state")
	}
	if c.ContainerOnly {
		t.Skip("what it makes in a container ends with that")
	}
	b := s.bench(t, c)
	before := b.ns.Snapshot(t)
	pristine := b.state()
	for _, way := range []struct {
		name string
		call Call
	}{{"DEL", b.call("DEL")}, {"GC", b.gcCall([]roles.AttachmentID{})}} {
		add := b.call("ADD")
		a := b.OK(add)
		b.Cache(b.list(add), a.Stdout)
		b.Forget()
		if !c.Repeatable {
			b.Fail(add, 0)
		}
		b.OK(b.withPrev("CHECK", a.Stdout))
		way.call.Netns = ""
		b.OK(way.call)
		if now := b.ns.Snapshot(t); now != before {
			t.Errorf("after %s: the container has\n%s\nwant\n%s", way.name, now, before)
		}
		b.OK(b.gcCall(nil))
		if c.Host == nil {
			b.same(pristine, "after "+way.name+" and GC with an empty list")
		} else if text := b.storeText(); strings.Contains(text, "c1") {
			t.Errorf("after %s and GC with an empty list: the store has\n%s", way.name, text)
		}
		b.host()
	}
}

// delKeepDamaged runs DEL while keep.db is damaged in several ways. It removes all that does
// not need the file.
func (b *bench) delKeepDamaged(start string) {
	b.t.Helper()
	file := filepath.Join(b.StateDir(), "keep.db")
	for name, content := range map[string]string{
		"empty": "", "short": strings.Repeat("\x00", 5000), "zeros": strings.Repeat("\x00", 32768), "text": strings.Repeat("damaged ", 4096),
	} {
		b.OK(b.call("ADD"))
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			b.t.Fatal(err)
		}
		b.OK(b.call("DEL"))
		b.OK(b.call("DEL"))
		if err := os.Remove(file); err != nil {
			b.t.Fatal(err)
		}
		b.same(start, "after two DEL with a keep.db that is damaged: "+name)
	}
}
