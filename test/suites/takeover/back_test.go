package takeover

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/migrate"
	hostnode "github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/cli"
)

// cnibox runs a command line on the node and returns its exit code and output.
func (n *node) cnibox(args ...string) (code int, said string) {
	n.t.Helper()
	var out, errs bytes.Buffer
	code = cli.Main(n.t.Context(), cli.Process{
		Table: all.Table(), Args: args, Env: os.Environ(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Executable: "/proc/self/exe",
		OpenHost: func(ctx context.Context, role string) (*roles.Host, func(), error) {
			return hostnode.Open(ctx, hostnode.Options{RunDir: n.RunDir(), StateDir: n.StateDir(), CacheDirs: []string{n.CacheDir()}, Role: role, Program: "test", Reference: migrate.ReferencePlugins{}})
		},
	})
	return code, out.String() + errs.String()
}

// install takes the node over: it replaces the reference plugins in a directory with links to cnibox.
func (n *node) install() (dir string) {
	n.t.Helper()
	dir = n.t.TempDir()
	plugins, err := os.ReadDir(n.peers)
	must(n.t, err)
	for _, p := range plugins {
		must(n.t, os.Symlink(filepath.Join(n.peers, p.Name()), filepath.Join(dir, p.Name())))
	}
	if code, out := n.cnibox("install", "--dir", dir, "--force"); code != cli.ExitOK {
		n.t.Fatalf("install: exit %d: %s", code, out)
	}
	return dir
}

// TestBack returns a node to the reference plugins while a container of cnibox runs. The reference does not assign the container's
// address again, and detaches the container, and nothing of cnibox remains.
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
		t.Fatalf("drain of a running container: exit %d: %s", code, out)
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
	if code, out := n.cnibox("uninstall", "--dir", dir, "--drain"); code != cli.ExitOK {
		t.Errorf("drain of an empty node: exit %d: %s", code, out)
	}
	dropTables()
	if before, now := withoutFilter(before), withoutFilter(n.state()); now != before {
		t.Errorf("at the end:\n%s", difference(before, now))
	}
	if rules, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || bytes.Contains(rules, []byte("cnibox")) {
		t.Errorf("at the end: %v, %s", err, rules)
	}
	if files, err := filepath.Glob(filepath.Join(n.RunDir(), "*")); err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
}

// withoutFilter leaves out iptables' filter table: the chain CNI-FORWARD, which the reference leaves empty, is removed with
// cnibox's last rule in it.
func withoutFilter(state string) string {
	var out strings.Builder
	for line := range strings.Lines(state) {
		if !strings.HasPrefix(line, "nft 2 filter") && !strings.HasPrefix(line, "nft 10 filter") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// address returns the first address of a result.
func address(t *testing.T, result json.RawMessage) string {
	t.Helper()
	var r struct{ IPs []struct{ Address string } }
	must(t, json.Unmarshal(result, &r))
	return r.IPs[0].Address
}

// TestForthAgain: the reference's binaries come back without `cnibox uninstall` and detach containers of cnibox, which then
// replaces them again. Neither files nor nftables elements of those containers stay.
func TestForthAgain(t *testing.T) {
	for name, list := range chains() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, known(list)...)
			n.list[0]["ipam"] = n.hostLocal("bridge")
			prepare(t, n)
			before := n.state()
			first := n.container(gone).add(ours)
			second := n.container("other")
			second.port = 8090
			second.add(theirs)
			if address(t, first.result) == address(t, second.result) {
				t.Fatalf("%s was given twice", address(t, first.result))
			}
			first.del(theirs, first.ns.Path())
			first.ns.Remove(t)
			n.install()
			second.del(ours, second.ns.Path())
			if code, out := n.cnibox("state"); code != cli.ExitOK || strings.Contains(out, gone) {
				t.Errorf("state: exit %d: %s", code, out)
			}
			second.gc()
			if before, now := withoutFilter(before), withoutFilter(n.state()); now != before {
				t.Errorf("at the end:\n%s", difference(before, now))
			}
			files, err := filepath.Glob(filepath.Join(n.Dir(), "networks", "net1", "[0-9]*"))
			if err != nil || len(files) > 0 {
				t.Errorf("left are %v, %v", files, err)
			}
		})
	}
}
