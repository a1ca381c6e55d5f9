package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/test/command"
)

// traceNode is a node whose plugins are called as a runtime calls them.
type traceNode struct {
	t    *testing.T
	ns   *netopstest.NS
	dir  string
	conf string
}

func newTraceNode(t *testing.T, conf string) *traceNode {
	t.Helper()
	n := &traceNode{t, netopstest.New(t), t.TempDir(), conf}
	n.ns.Do(t, func() error { return netopstest.LinkUp("lo") })
	return n
}

func (n *traceNode) env(extra ...string) []string {
	return append([]string{
		"PATH=" + binDir + ":" + os.Getenv("PATH"), "TZ=UTC", "CNI_PATH=" + binDir,
		"CNIBOX_RUN_DIR=" + filepath.Join(n.dir, "run"), "CNIBOX_STATE_DIR=" + filepath.Join(n.dir, "state"),
	}, extra...)
}

// master makes the link that the network's configuration names.
func (n *traceNode) master(name string) {
	n.t.Helper()
	n.ns.Do(n.t, func() error {
		return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}), netopstest.LinkUp(name))
	})
}

// call calls the network's plugin for a pod, and reports whether it succeeded.
func (n *traceNode) call(verb, pod string, container *netopstest.NS, extra ...string) (out string, ok bool) {
	n.t.Helper()
	var conf struct{ Type string }
	if err := json.Unmarshal([]byte(n.conf), &conf); err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binDir, conf.Type))
	cmd.Stdin = strings.NewReader(n.conf)
	cmd.Env = n.env(append(extra, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+pod+"-id", "CNI_NETNS="+container.Path(), "CNI_IFNAME=eth0",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod)...)
	n.ns.Do(n.t, func() error {
		b, err := cmd.Output()
		out, ok = string(b), err == nil
		if errors.As(err, new(*exec.ExitError)) {
			return nil
		}
		return err
	})
	return out, ok
}

// shell runs a command line on the node and returns its output.
func (n *traceNode) shell(line string) string {
	n.t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Env = n.dir, n.env()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var out []byte
	n.ns.Do(n.t, func() (err error) {
		if out, err = cmd.Output(); err != nil {
			err = fmt.Errorf("%s: %w\n%s%s", line, err, out, &stderr)
		}
		return err
	})
	return string(out)
}

// TestTraceDocumented runs the commands of docs/trace.md on a node whose range is full.
func TestTraceDocumented(t *testing.T) {
	n := newTraceNode(t, `{"cniVersion":"1.0.0","name":"pods","type":"bridge","isGateway":true,"ipam":{"type":"host-local","subnet":"10.22.0.0/30"}}`)
	first, second, third := netopstest.New(t), netopstest.New(t), netopstest.New(t)
	for _, c := range []struct {
		verb, pod string
		container *netopstest.NS
		ok        bool
	}{{"ADD", "web-1", first, true}, {"ADD", "web-2", second, false}, {"DEL", "web-1", first, true}, {"ADD", "web-3", third, true}} {
		if out, ok := n.call(c.verb, c.pod, c.container); ok != c.ok {
			t.Fatalf("%s of %s: %s", c.verb, c.pod, out)
		}
	}
	stable := []struct {
		pattern *regexp.Regexp
		text    string
	}{
		{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}`), "2026-09-30 03:10:07.123"},
		{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\t`), "2026-09-30 03:10:07\t"},
		{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "2026-09-30T03:10:07Z"},
		{regexp.MustCompile(`\tprocess\.test\t`), "\tcontainerd\t"},
		{regexp.MustCompile(`\t\d+\.\d\t[^\t\n]*(lock|ipam|netlink|nftables) [^\t\n]*\t`), "\t3.1\tipam 0.4, netlink 1.2\t"},
		{regexp.MustCompile(`\t\d+\.\d\t-\t`), "\t3.1\tipam 0.4, netlink 1.2\t"},
		{regexp.MustCompile(`(\t\d+)\t\d+\.\d\t\d+\.\d`), "$1\t3.1\t4.5"},
	}
	for _, section := range []string{"Find a failed call", "Find out who had an address", "Report a problem"} {
		command.Documented(t, "../../../docs/trace.md", section, func(line string) string {
			out := n.shell(strings.Replace(line, "03:12", "0s", 1))
			for _, s := range stable {
				out = s.pattern.ReplaceAllString(out, s.text)
			}
			return out
		})
	}
	bundle, err := os.ReadFile(filepath.Join(n.dir, "calls.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web-", "-id", "default"} {
		if bytes.Contains(bundle, []byte(name)) {
			t.Errorf("the bundle has %q:\n%s", name, bundle)
		}
	}
}

// TestReplay replays with other plugins: differences are found, and the plugins cannot change the machine.
func TestReplay(t *testing.T) {
	n := newTraceNode(t, `{"cniVersion":"1.0.0","name":"pods","type":"bridge","isGateway":true,"token":"hunter2","ipam":{"type":"host-local","subnet":"10.22.0.0/24"}}`)
	pod := netopstest.New(t)
	for _, verb := range []string{"ADD", "DEL", "ADD"} {
		if out, ok := n.call(verb, "web", pod, "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"); !ok {
			t.Fatal(out)
		}
	}
	n.shell("cnibox trace --json >calls.json; ! grep hunter2 calls.json; grep -q traceparent calls.json")
	n.shell(`for step in ipam netlink; do grep -q "\"$step\": [1-9]" calls.json; done`)
	n.shell("mkdir other")
	plugin := "#!/bin/sh\n" +
		"touch " + n.dir + "/written /etc/written 2>/dev/null\n" +
		"ip link add written type bridge; sysctl -qw net.ipv4.ip_forward=0; touch /run/written\n" +
		"[ \"$TRACEPARENT\" ] && echo '{\"cniVersion\":\"1.0.0\",\"code\":7,\"msg\":\"no\"}'; exit 1\n"
	if err := os.WriteFile(filepath.Join(n.dir, "other", "bridge"), []byte(plugin), 0o700); err != nil {
		t.Fatal(err)
	}
	links := n.shell("ip -o link | cut -d: -f2; sysctl net.ipv4.ip_forward")
	out := n.shell("cnibox trace replay calls.json --bin other; [ $? = 3 ]")
	if strings.Count(out, "error 7: no") != 3 || !strings.Contains(out, "bridge\tADD\tweb-id\t3 interfaces, 1 IPv4 and 0 IPv6 addresses\terror 7: no") {
		t.Errorf("replay with a plugin that fails:\n%s", out)
	}
	if now := n.shell("ip -o link | cut -d: -f2; sysctl net.ipv4.ip_forward"); now != links {
		t.Errorf("the node's network was\n%s\nand is\n%s", links, now)
	}
	for _, path := range []string{filepath.Join(n.dir, "written"), "/etc/written", "/run/written"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("a plugin wrote %s", path)
		}
	}
	n.shell("cnibox trace replay calls.json")
	n.shell("cnibox trace replay inside <calls.json 2>err; [ $? = 1 ] && grep -q 'namespaces of its parent' err")
}

// TestReplayMaster: a replay has the links that the recorded configurations name.
func TestReplayMaster(t *testing.T) {
	netopstest.NeedKind(t, "macvlan")
	n := newTraceNode(t, `{"cniVersion":"1.0.0","name":"pods","type":"macvlan","master":"lan0","ipam":{"type":"host-local","subnet":"10.22.0.0/24"}}`)
	n.master("lan0")
	if out, ok := n.call("ADD", "web", netopstest.New(t)); !ok {
		t.Fatal(out)
	}
	n.shell("cnibox trace --json >calls.json; cnibox trace replay calls.json")
}

// TestReplayKilled: a replay that is killed while a plugin hangs leaves no process, and so none of its namespaces with what is mounted
// in them.
func TestReplayKilled(t *testing.T) {
	n := newTraceNode(t, `{"cniVersion":"1.0.0","name":"pods","type":"bridge","ipam":{"type":"host-local","subnet":"10.22.0.0/24"}}`)
	if out, ok := n.call("ADD", "web", netopstest.New(t)); !ok {
		t.Fatal(out)
	}
	n.shell("cnibox trace --json >calls.json; mkdir other; mkfifo other/alive")
	// The plugin and a child of it hold the pipe open until they end.
	plugin := "#!/bin/sh\nexec 8>" + n.dir + "/other/alive\nsleep infinity &\necho >&8\nwait\n"
	if err := os.WriteFile(filepath.Join(n.dir, "other", "bridge"), []byte(plugin), 0o700); err != nil {
		t.Fatal(err)
	}
	n.shell(`cnibox trace replay calls.json --bin other & p=$!
exec 9<other/alive
read line <&9
kill -9 $p
timeout 60 cat <&9`) // to the end of the last process
}

// TestHistoryOfOthers: the history has what a third-party plugin attached, from the record of a chained plugin of cnibox or else from
// the calls of its IPAM.
func TestHistoryOfOthers(t *testing.T) {
	n := newTraceNode(t, `{"cniVersion":"1.0.0","name":"own","type":"bridge","ipam":{"type":"host-local","subnet":"10.24.0.0/24"}}`)
	if out, ok := n.call("ADD", "web", netopstest.New(t)); !ok {
		t.Fatal(out)
	}
	n.shell(`netns=` + netopstest.New(t).Path() + `
call() { # VERB CONTAINER PLUGIN
	CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=$netns CNI_IFNAME=eth0 CNI_ARGS="K8S_POD_NAMESPACE=default;K8S_POD_NAME=$2" ` + binDir + `/$3
}
ipam() {
	echo '{"cniVersion":"1.0.0","name":"other","type":"third","ipam":{"type":"host-local","subnet":"10.23.0.0/24"}}' | call $1 $2 host-local
}
passed() {
	echo '{"cniVersion":"1.0.0","name":"other","type":"firewall","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'$netns'"}],
"ips":[{"address":"10.25.0.9/24","interface":0}]}}' | call $1 $2 firewall
}
ipam ADD gone && ipam DEL gone && ipam ADD here && passed ADD chained && passed ADD chained`)
	out := n.shell("cnibox history | tail -n +2 | cut -f 2-")
	want := regexp.MustCompile(`^-\t10.24.0.2/24\tdefault/web\teth0\town
\d\S+ \S+\t10.23.0.2/24\tdefault/gone\teth0\tother
-\t10.23.0.\d/24\tdefault/here\teth0\tother
-\t10.25.0.9/24\tdefault/chained\teth0\tother
$`)
	if !want.MatchString(out) {
		t.Errorf("history:\n%s", out)
	}
	if out := n.shell("cnibox history default/here --json; cnibox history 10.24.0.2 --json"); strings.Count(out, `"traced": true`) != 1 {
		t.Errorf("history:\n%s", out)
	}
}

// TestTraceDamaged: damaged lines are left out, and the commands say so.
func TestTraceDamaged(t *testing.T) {
	n := newTraceNode(t, `{"cniVersion":"1.0.0","name":"pods","type":"bridge","ipam":{"type":"host-local","subnet":"10.22.0.0/24"}}`)
	pod := netopstest.New(t)
	for _, verb := range []string{"ADD", "DEL"} {
		if out, ok := n.call(verb, "web", pod); !ok {
			t.Fatal(out)
		}
	}
	n.shell("for f in run/*/trace run/*/history; do printf '{\"time\":\\n\\377\\n' >>$f; done")
	if out := n.shell("cnibox trace 2>&1; cnibox history 2>&1"); strings.Count(out, ": 2 damaged lines are left out") != 2 || strings.Count(out, "default/web") != 3 {
		t.Errorf("%s", out)
	}
	if out := n.shell("cnibox trace --last 1 --json"); strings.Count(out, `"verb"`) != 1 || !strings.Contains(out, `"DEL"`) {
		t.Errorf("the last call: %s", out)
	}
	if out := n.shell("cnibox history 10.22.0.2 --at 1h --json; cnibox history 10.22.0.9 --json; cnibox history --since 1h default/web --json"); strings.Count(out, "[]") != 2 ||
		strings.Count(out, `"added"`) != 1 || strings.Count(out, `"removed"`) != 1 {
		t.Errorf("%s", out)
	}
	n.shell("for wrong in 'history --at yesterday' 'history --at=' 'trace --last -3' 'trace --last 0'; do cnibox $wrong; [ $? = 2 ] || exit 1; done")
	n.shell("cnibox trace web 2>&1 | grep -q 'nothing is recorded of \"web\"' && cnibox history 10.99.0.1 2>&1 | grep -q 'nothing is recorded of \"10.99.0.1\"'")
	n.shell("cnibox history --at 03:12 --since 1h; [ $? = 2 ]")
	n.shell("cnibox trace export >calls.json; cnibox trace replay calls.json --max-pause -1s; [ $? = 2 ] && ! cnibox trace replay calls.json --bin none 2>err && grep -q '^cnibox: trace replay: --bin: stat .*/none: ' err")
	n.shell("echo '[null, {\"role\": \"bridge\"}]' >calls.json; cnibox trace replay calls.json 2>err; [ $? = 1 ] && grep -q 'no call can be played' err")
}
