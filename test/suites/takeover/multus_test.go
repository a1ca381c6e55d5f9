package takeover

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestMultus: Multus attached a pod to two networks of the reference plugins and keeps their configurations and results. cnibox's
// multus checks and detaches the pod by these, also if the definitions are gone. The files of another pod stay.
func TestMultus(t *testing.T) {
	t.Run("with the namespace", func(t *testing.T) { detachMultus(t, true) })
	t.Run("without the namespace", func(t *testing.T) { detachMultus(t, false) })
}

func detachMultus(t *testing.T, withNetns bool) {
	t.Helper()
	n := newNode(t, object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true})
	n.list[0]["ipam"] = n.hostLocal("bridge")
	prepare(t, n)
	before := n.state()
	dir := filepath.Join(t.TempDir(), "multus")
	must(t, os.MkdirAll(filepath.Join(dir, "results"), 0o700))
	pod, other := n.container("pod-1"), n.container("pod-2")
	empty := pod.ns.Snapshot(t)
	result := pod.delegate(dir, "net1", "eth0", "br10")
	pod.delegate(dir, "net2", "net1", "br11")
	kept := listing(t, filepath.Join(dir, "results"))
	other.delegate(dir, "net1", "eth0", "br10")
	call := rolestest.Call{Verb: "CHECK", Type: "multus", ID: pod.id, Netns: pod.ns.Path(), IfName: "eth0"}
	conf := object{"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "cniDir": dir, "clusterNetwork": "/nothing", "prevResult": result}
	raw, err := json.Marshal(conf)
	must(t, err)
	call.Conf = string(raw)
	n.OK(call)
	pod.ns.Change(t, "net1", netopstest.DropAddress)
	n.Fail(call, 0)
	call.Verb = "DEL"
	if !withNetns {
		call.Netns = ""
	}
	n.OK(call)
	n.OK(call)
	if now := pod.ns.Snapshot(t); withNetns && now != empty {
		t.Errorf("the pod had\n%s\nand has\n%s", empty, now)
	}
	if now := listing(t, filepath.Join(dir, "results")); strings.Contains(now, "pod-1") || !strings.Contains(now, "pod-2") || now == kept {
		t.Errorf("Multus's files: %s", now)
	}
	if _, err := os.Stat(filepath.Join(dir, "pod-1")); err == nil {
		t.Error("Multus's list of the pod's networks is left")
	}
	call.ID, call.Netns = other.id, other.ns.Path()
	n.OK(call)
	for _, bridge := range []string{"br10", "br11"} { // shared with other containers
		l, err := netlink.LinkByName(bridge)
		must(t, err)
		must(t, netlink.LinkDel(l))
	}
	n.same(before, "at the end")
}

// TestMigrateTwice: a node is migrated from the reference plugins and then from Multus. It returns in reverse, and the return to Multus
// keeps cnibox's other plugins.
func TestMigrateTwice(t *testing.T) {
	n := newReferenceNode(t)
	multus := filepath.Join(n.PluginDir(), "multus")
	must(t, os.WriteFile(multus, []byte("#!/bin/sh\n"), 0o700))
	network := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"multus-cni-network","type":"multus","clusterNetwork":%q}`, n.confDir()+"/net1.conflist")
	must(t, os.WriteFile(filepath.Join(n.confDir(), "00-multus.conf"), []byte(network), 0o600))
	plugins := listing(t, n.PluginDir())
	for _, c := range []struct {
		args         []string
		want, target string
	}{
		{[]string{"reference"}, "replace bridge, firewall, host-local, loopback, portmap in", ""},
		{[]string{"multus"}, "replace multus in", "cnibox"},
		{[]string{"reference", "--back"}, "this node was then migrated from multus", "cnibox"},
		{[]string{"multus", "--back"}, "has returned to multus", ""},
		{[]string{"reference", "--back"}, "has returned to reference", ""},
	} {
		out := n.command(n.migrate(append([]string{"migrate"}, append(c.args, "--yes")...)...)...)
		if target, _ := os.Readlink(multus); !strings.Contains(out, c.want) || target != c.target {
			t.Fatalf("%q: %s: want %q; multus leads to %q, want %q", c.args, out, c.want, target, c.target)
		}
		if target, _ := os.Readlink(filepath.Join(n.PluginDir(), "bridge")); (target == "cnibox") == strings.Contains(c.want, "to reference") {
			t.Errorf("%q: bridge leads to %q", c.args, target)
		}
	}
	if now := listing(t, n.PluginDir()); now != plugins {
		t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
	}
}

// delegate attaches the container as Multus does: with the reference plugins, and files in Multus's directory.
func (c *container) delegate(dir, network, ifName, bridge string) json.RawMessage {
	c.t.Helper()
	plugin := object{"type": "bridge", "bridge": bridge, "isGateway": true, "ipam": object{
		"type": "host-local", "dataDir": filepath.Join(c.Dir(), "networks"), "ranges": [][]object{{{"subnet": "10." + bridge[2:] + ".0.0/24"}}},
	}}
	list, err := json.Marshal(object{"cniVersion": "1.0.0", "name": network, "plugins": []object{plugin}})
	must(c.t, err)
	plugin["cniVersion"], plugin["name"] = "1.0.0", network
	conf, err := json.Marshal(plugin)
	must(c.t, err)
	result := c.ask(theirs, rolestest.Call{Type: "bridge", Verb: "ADD", ID: c.id, Netns: c.ns.Path(), IfName: ifName, Conf: string(conf)})
	cached, err := json.Marshal(object{
		"kind": "cniCacheV1", "containerId": c.id, "config": list, "ifName": ifName, "networkName": network, "netns": c.ns.Path(), "result": json.RawMessage(result),
	})
	must(c.t, err)
	must(c.t, os.WriteFile(filepath.Join(dir, "results", network+"-"+c.id+"-"+ifName), cached, 0o600))
	must(c.t, os.WriteFile(filepath.Join(dir, c.id), []byte("[]"), 0o600))
	return json.RawMessage(result)
}

// TestMigrateMultus migrates a node with Multus's daemon, and returns: the network of multus-shim gets the type multus, without the
// paths of the daemon's container. A pod that Multus attached is checked and detached.
func TestMigrateMultus(t *testing.T) {
	n := newReferenceNode(t)
	before := n.state()
	dir, kubeconfig := filepath.Join(n.Dir(), "multus"), filepath.Join(n.confDir(), "multus.d", "multus.kubeconfig")
	must(t, os.MkdirAll(filepath.Join(dir, "results"), 0o700))
	pod := n.container("pod-1")
	result := pod.delegate(dir, "net10", "eth0", "br10")
	shim := fmt.Sprintf(`{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim","cniDir":%q,"clusterNetwork":%q,"capabilities":{"portMappings":true}}`,
		dir, "/host"+n.confDir()+"/net1.conflist")
	file := filepath.Join(n.confDir(), "00-multus.conf")
	must(t, os.WriteFile(file, []byte(shim), 0o600))
	for _, p := range []string{"multus", "multus-shim"} {
		must(t, os.WriteFile(filepath.Join(n.PluginDir(), p), []byte("#!/bin/sh\n"), 0o700))
	}
	plugins := listing(t, n.PluginDir())
	forth, back := n.migrate("migrate", "multus", "--yes"), n.migrate("migrate", "multus", "--yes", "--back")
	says := func(args []string, want string) {
		t.Helper()
		if out := n.command(args...); !strings.Contains(out, want) {
			t.Fatalf("%q: %s: want %q", args, out, want)
		}
	}
	says(forth, "it has no kubeconfig, and "+kubeconfig+" cannot be used")
	must(t, os.MkdirAll(filepath.Dir(kubeconfig), 0o700))
	must(t, os.WriteFile(kubeconfig, []byte("{}"), 0o600))
	daemon := exec.Command("sleep", "1000")
	daemon.Args[0] = "multus-daemon"
	must(t, daemon.Start())
	t.Cleanup(func() { _ = daemon.Process.Kill() })
	says(forth, "the next step is yours: stop multus-daemon, process "+strconv.Itoa(daemon.Process.Pid))
	must(t, daemon.Process.Kill())
	_ = daemon.Wait()
	says(forth, "wrote "+file)
	says(forth, "done    network 00-multus.conf: "+file+" has the type multus")
	raw, err := os.ReadFile(file)
	must(t, err)
	var conf object
	must(t, json.Unmarshal(raw, &conf))
	if conf["type"] != "multus" || conf["clusterNetwork"] != n.confDir()+"/net1.conflist" || conf["kubeconfig"] != kubeconfig || conf["cniDir"] != dir {
		t.Errorf("the network is %s", raw)
	}
	conf["cniVersion"], conf["prevResult"] = "1.0.0", result
	raw, err = json.Marshal(conf)
	must(t, err)
	call := rolestest.Call{Verb: "CHECK", Type: "multus", ID: pod.id, Netns: pod.ns.Path(), IfName: "eth0", Conf: string(raw)}
	n.OK(call)
	call.Verb = "DEL"
	n.OK(call)
	says(back, "the next step is yours: start multus-daemon")
	if raw, err = os.ReadFile(file); err != nil || string(raw) != shim {
		t.Errorf("the network is %s, %v", raw, err)
	}
	daemon = exec.Command("sleep", "1000")
	daemon.Args[0] = "multus-daemon"
	must(t, daemon.Start())
	says(back, "has returned to multus")
	if now := listing(t, n.PluginDir()); now != plugins {
		t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
	}
	l, err := netlink.LinkByName("br10")
	must(t, err)
	must(t, netlink.LinkDel(l))
	n.same(before, "at the end")
}
