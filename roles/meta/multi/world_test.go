package multi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// world is a node with network definitions, a third-party plugin and one pod.
type world struct {
	*rolestest.Env
	t  *testing.T
	ns *netopstest.NS
	// conf are the keys of multi's configuration.
	conf map[string]any
	// annotations are the pod's annotations.
	annotations map[string]string
}

// thirdparty is an executed plugin. It notes each call and its input, and fails if a file requests
// it.
const thirdparty = `#!/bin/sh
conf=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $conf" >> "%[1]s/calls"
if [ -e "%[1]s/fail-$CNI_COMMAND" ]; then
	echo '{"cniVersion":"1.1.0","code":11,"msg":"told to fail"}'
	exit 1
fi
if [ "$CNI_COMMAND" = ADD ]; then
	echo '{"cniVersion":"1.1.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.9.0.9/24","interface":0}]}'
fi
`

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		Env: rolestest.NewEnv(t, all.Table()), t: t, ns: netopstest.New(t), annotations: map[string]string{},
	}
	w.conf = map[string]any{
		"cniVersion": "1.1.0", "name": "multi", "type": "multi", "delegates": []json.RawMessage{json.RawMessage(netA)},
		"networksDir": w.file("nets"), "confDir": w.file("confs"),
		"capabilities": map[string]bool{"io.kubernetes.cri.pod-annotations": true},
	}
	w.write("bin/thirdparty", fmt.Sprintf(thirdparty, w.Dir()))
	if err := os.Chmod(w.file("bin/thirdparty"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.network("b", netB)
	w.network("c", netC)
	w.network("s", `{"name":"net-s","cniVersion":"1.1.0","plugins":[{"type":"thirdparty","kept":{"big":123456789012345678901234567890,"z":1,"a":2}}]}`)
	t.Cleanup(func() { // remove the shared objects of the networks in annotations
		for _, key := range []string{"clusterNetwork", "defaultNetworks", "readinessindicatorfile"} {
			delete(w.conf, key)
		}
		w.conf["delegates"] = []json.RawMessage{json.RawMessage(netA), json.RawMessage(netB), json.RawMessage(netC)}
		w.Run(w.gc([]roles.AttachmentID{}))
	})
	return w
}

func (w *world) file(name string) string { return filepath.Join(w.Dir(), name) }

func (w *world) write(name, content string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(w.file(name)), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.file(name), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// network defines a network in the pod's namespace.
func (w *world) network(name, conf string) { w.t.Helper(); w.write("nets/web/"+name+".json", conf) }

// wish sets the pod's networks.
func (w *world) wish(networks string) { w.annotations["k8s.v1.cni.cncf.io/networks"] = networks }

// call returns a call for the pod's container.
func (w *world) call(verb string) rolestest.Call {
	w.t.Helper()
	conf := map[string]any{"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": w.annotations}}
	for k, v := range w.conf {
		conf[k] = v
	}
	raw, err := json.Marshal(conf)
	if err != nil {
		w.t.Fatal(err)
	}
	return rolestest.Call{
		Type: "multi", Verb: verb, ID: "container1", Netns: w.ns.Path(), IfName: "eth0", Conf: string(raw),
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME=pod;K8S_POD_UID=u",
	}
}

// with returns a call with additional keys in its configuration.
func (w *world) with(verb string, keys map[string]any) rolestest.Call {
	w.t.Helper()
	c := w.call(verb)
	c.Conf = rolestest.WithKeys(w.t, c.Conf, keys)
	return c
}

func (w *world) check(result string) rolestest.Call {
	w.t.Helper()
	return w.with("CHECK", map[string]any{"prevResult": json.RawMessage(result)})
}

func (w *world) gc(valid []roles.AttachmentID) rolestest.Call {
	w.t.Helper()
	c := w.with("GC", map[string]any{"cni.dev/valid-attachments": valid})
	c.ID, c.Netns, c.IfName = "", "", ""
	return c
}

// bare returns a DEL with the network's name only, as after the configuration was lost and the
// namespace removed.
func (w *world) bare() rolestest.Call {
	c := w.call("DEL")
	c.Netns, c.Args = "", "IgnoreUnknown=1"
	c.Conf = `{"cniVersion":"1.1.0","name":"multi","type":"multi","clusterNetwork":"nothing"}`
	return c
}

// state returns the state of the kernel and the store without permanent parts.
func (w *world) state() string { w.t.Helper(); return w.State([]string{"sysctl net/"}, w.ns) }

// same fails the test if the state differs.
func (w *world) same(want, when string) {
	w.t.Helper()
	if have := w.state(); have != want {
		w.t.Fatalf("%s: state differs\nwant:\n%s\nhave:\n%s", when, want, have)
	}
}

// warm creates what attachments share and returns the state without attachments.
func (w *world) warm() string {
	w.t.Helper()
	w.OK(w.call("ADD"))
	w.OK(w.call("DEL"))
	_ = os.Remove(w.file("calls"))
	return w.state()
}

// calls returns the executed plugin's calls so far, "VERB CONTAINER IFNAME", and their
// configurations.
func (w *world) calls() (calls, confs []string) {
	w.t.Helper()
	raw, _ := os.ReadFile(w.file("calls"))
	for line := range strings.Lines(string(raw)) {
		call, conf, _ := strings.Cut(strings.TrimSpace(line), " {")
		calls, confs = append(calls, strings.TrimSpace(call)), append(confs, "{"+conf)
	}
	return calls, confs
}

// status returns the container's network-status.
func (w *world) status() string {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.RunDir(), "*", "network-status", "container1-eth0.json"))
	if err != nil || len(files) != 1 {
		return ""
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		w.t.Fatal(err)
	}
	var list []struct{ Name, Interface string }
	if err := json.Unmarshal(raw, &list); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, n := range list {
		out = append(out, n.Name+"@"+n.Interface)
	}
	return strings.Join(out, " ")
}
