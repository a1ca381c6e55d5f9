// Package takeover attaches containers with the reference plugins and runs CHECK, DEL and GC of cnibox on them, and the reverse, as
// on a node where one replaces the other. It needs root and the reference plugins in bin/peers.
package takeover

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/command"
)

func TestMain(m *testing.M) { command.Main(m, all.Table()) }

// object is a plugin's configuration, or a part of one.
type object = map[string]any

// node is a machine with plugins of the reference or of cnibox, and a runtime that keeps results as libcni does.
type node struct {
	*rolestest.Env
	t     *testing.T
	peers string
	list  []object
	// version is the list's cniVersion.
	version string
}

// newNode is a node for one list of plugins.
func newNode(t *testing.T, list ...object) *node {
	t.Helper()
	peers, err := filepath.Abs("../../../bin/peers")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(peers, "bridge")); err != nil {
		t.Skip("the reference's plugins are not built: run make bin/peers/bridge")
	}
	return &node{Env: rolestest.NewEnv(t, all.Table()), t: t, peers: peers, list: list, version: "1.0.0"}
}

// container is one container's interface.
type container struct {
	*node
	id     string
	ns     *netopstest.NS
	result json.RawMessage
	// forgotten means that the runtime has no result for DEL.
	forgotten bool
	// port is a host port of this container in place of the list's.
	port int
}

func (n *node) container(id string) *container {
	n.t.Helper()
	return &container{node: n, id: id, ns: netopstest.New(n.t)}
}

// side runs a plugin.
type side func(*node, rolestest.Call) (rolestest.Answer, error)

// ours runs cnibox.
func ours(n *node, c rolestest.Call) (rolestest.Answer, error) { return n.Run(c), nil }

// theirs runs the reference plugin.
func theirs(n *node, c rolestest.Call) (rolestest.Answer, error) {
	cmd := exec.Command(filepath.Join(n.peers, c.Type))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Netns, "CNI_IFNAME="+c.IfName, "CNI_PATH="+n.peers)
	cmd.Stdin = strings.NewReader(c.Conf)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return rolestest.Answer{}, err
	}
	return rolestest.Answer{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}, nil
}

// call is a call of the i-th plugin.
func (c *container) call(verb string, i int, keys object) rolestest.Call {
	c.t.Helper()
	conf := object{"cniVersion": c.version, "name": "net1"}
	for _, o := range []object{c.list[i], keys} {
		for k, v := range o {
			conf[k] = v
		}
	}
	typ, _ := c.list[i]["type"].(string)
	if typ == "portmap" && c.port != 0 {
		conf["runtimeConfig"] = object{"portMappings": []object{{"hostPort": c.port, "containerPort": 80, "protocol": "tcp"}}}
	}
	raw, err := json.Marshal(conf)
	if err != nil {
		c.t.Fatal(err)
	}
	return rolestest.Call{Type: typ, Verb: verb, ID: c.id, Netns: c.ns.Path(), IfName: "eth0", Conf: string(raw)}
}

// ask makes a call that must succeed.
func (c *container) ask(s side, call rolestest.Call) string {
	c.t.Helper()
	a, err := s(c.node, call)
	if err != nil {
		c.t.Fatal(err)
	}
	if a.Code != 0 {
		c.t.Fatalf("%s %s: exit %d: %s%s", call.Verb, call.Type, a.Code, a.Stdout, a.Stderr)
	}
	return a.Stdout
}

// prev is the prevResult, if there is one.
func (c *container) prev() object {
	if c.result == nil {
		return nil
	}
	return object{"prevResult": c.result}
}

func (c *container) add(s side) *container {
	c.t.Helper()
	for i := range c.list {
		c.result = json.RawMessage(c.ask(s, c.call("ADD", i, c.prev())))
	}
	return c
}

func (c *container) check(s side) {
	c.t.Helper()
	for i := range c.list {
		c.ask(s, c.call("CHECK", i, c.prev()))
	}
}

// del detaches the container.
func (c *container) del(s side, netns string) {
	c.t.Helper()
	keys := c.prev()
	if c.forgotten {
		keys = nil
	}
	for i := range slices.Backward(c.list) {
		call := c.call("DEL", i, keys)
		call.Netns = netns
		c.ask(s, call)
	}
}

// gc collects all containers except the valid ones.
func (c *container) gc(valid ...roles.AttachmentID) {
	c.t.Helper()
	if valid == nil {
		valid = []roles.AttachmentID{}
	}
	for i := range c.list {
		c.ask(ours, c.call("GC", i, object{"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}))
	}
}

// state is the host's network and the files that the reference's chained plugins keep. The files of host-local are left out: they
// stay for a way back.
func (n *node) state() string {
	n.t.Helper()
	text := netopstest.Snapshot(n.t)
	err := filepath.WalkDir("/run/cni", func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !e.IsDir() {
			text += "file " + path + "\n"
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return text
}

// same compares states.
func (n *node) same(want, when string) {
	n.t.Helper()
	now := n.state()
	if now == want {
		return
	}
	n.t.Errorf("%s:\n%s", when, difference(want, now))
}

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	var b strings.Builder
	for _, side := range []struct{ mark, of, other string }{{"- ", before, after}, {"+ ", after, before}} {
		lines := strings.Split(side.other, "\n")
		for line := range strings.Lines(side.of) {
			if !slices.Contains(lines, strings.TrimSuffix(line, "\n")) {
				b.WriteString(side.mark + line)
			}
		}
	}
	return b.String()
}
