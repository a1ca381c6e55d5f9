package takeover

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/cli"
	hostnode "github.com/cnibox/cnibox/roles/node"
)

// cnibox is the command line on the node; it returns the exit code.
func (n *node) cnibox(args ...string) (code int, stdout string) {
	n.t.Helper()
	var out, errs bytes.Buffer
	code = cli.Main(n.t.Context(), cli.Process{
		Table: all.Table(), Args: args, Env: os.Environ(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			return hostnode.Open(ctx, hostnode.Options{RunDir: n.RunDir(), StateDir: n.StateDir(), CacheDirs: []string{n.CacheDir()}, Role: role, Program: "test"})
		},
	})
	n.t.Logf("cnibox %s: exit %d\n%s%s", strings.Join(args, " "), code, out.String(), errs.String())
	return code, out.String()
}

// install takes the node over: a directory with the reference's plugins becomes ours.
func (n *node) install() (dir string) {
	n.t.Helper()
	dir = n.t.TempDir()
	plugins, err := os.ReadDir(n.peers)
	must(n.t, err)
	for _, p := range plugins {
		must(n.t, os.Symlink(filepath.Join(n.peers, p.Name()), filepath.Join(dir, p.Name())))
	}
	if code, _ := n.cnibox("install", "--dir", dir, "--force"); code != cli.ExitOK {
		n.t.Fatalf("install: exit %d", code)
	}
	return dir
}

// TestBack: a node goes back while a container runs that ours attached. The
// reference gives nobody its address, detaches it, and nothing of ours is left.
func TestBack(t *testing.T) {
	for _, a := range everyInterface() {
		if a.kind != "" {
			continue
		}
		t.Run(a.name, func(t *testing.T) { goBack(t, []object{a.conf}, a.alone) })
	}
	for name, list := range chains() {
		t.Run("chain, "+name, func(t *testing.T) { goBack(t, list, false) })
	}
}

func goBack(t *testing.T, list []object, alone bool) {
	n := newNode(t, known(list)...)
	n.list[0]["ipam"] = n.hostLocal(n.list[0]["type"])
	prepare(t, n)
	before := n.state()
	c := n.container(gone)
	empty := c.ns.Snapshot(t)
	dir := n.install()
	c.add(ours)
	c.check(ours)
	if code, out := n.cnibox("uninstall", "--dir", dir, "--drain"); code != cli.ExitDifferent || !strings.Contains(out, gone) {
		t.Fatalf("drain of a running container: exit %d", code)
	}
	for _, p := range []string{"bridge", "host-local"} {
		if to, err := os.Readlink(filepath.Join(dir, p)); err != nil || to != filepath.Join(n.peers, p) {
			t.Errorf("%s is %q, %v", p, to, err)
		}
	}
	if !alone {
		other := n.container(stays).add(theirs)
		if address(t, other.result) == address(t, c.result) {
			t.Errorf("%s was given twice", address(t, c.result))
		}
		other.del(theirs, other.ns.Path())
	}
	c.del(theirs, c.ns.Path())
	c.ns.Reset(t)
	if now := c.ns.Snapshot(t); now != empty {
		t.Errorf("in the container:\n%s", difference(empty, now))
	}
	c.ns.Remove(t)
	if code, _ := n.cnibox("uninstall", "--dir", dir, "--drain"); code != cli.ExitOK {
		t.Errorf("drain of an empty node: exit %d", code)
	}
	dropTables()
	n.same(before, "at the end")
	if files, err := filepath.Glob(filepath.Join(n.RunDir(), "*")); err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
}

// address is the first of a result.
func address(t *testing.T, result json.RawMessage) string {
	t.Helper()
	var r struct{ IPs []struct{ Address string } }
	must(t, json.Unmarshal(result, &r))
	return r.IPs[0].Address
}
