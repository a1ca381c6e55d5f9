package multi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
)

// TestWishes: the pod's requests take effect, executed plugins get the resolved configuration, and
// DEL needs neither annotations nor networks nor configuration.
func TestWishes(t *testing.T) {
	w := newWorld(t)
	w.wish(`[{"name":"b","ips":["10.2.0.77"],"mac":"02:00:00:00:00:77"},{"name":"s","interface":"extra"},{"name":"b"}]`)
	start := w.warm()
	a := w.OK(w.call("ADD"))
	var res roles.Result
	if err := json.Unmarshal([]byte(a.Stdout), &res); err != nil || len(res.IPs) != 1 || res.IPs[0].Address.IP.String() != "10.1.0.3" {
		t.Fatalf("result %s, %v", a.Stdout, err)
	}
	if l := w.ns.Link(t, "net1"); l.Attrs().HardwareAddr.String() != "02:00:00:00:00:77" {
		t.Errorf("net1 has MAC %s", l.Attrs().HardwareAddr)
	}
	if state := w.state(); !strings.Contains(state, "10.2.0.77/24 dev net1") || !strings.Contains(state, "dev net3") {
		t.Errorf("state\n%s", state)
	}
	if want := "net-a@eth0 web/b@net1 web/s@extra web/b@net3"; w.status() != want {
		t.Errorf("network-status %q, want %q", w.status(), want)
	}
	w.OK(w.check(a.Stdout))
	if err := os.RemoveAll(w.file("nets")); err != nil {
		t.Fatal(err)
	}
	w.OK(w.bare())
	w.same(start, "after DEL")
	if w.status() != "" {
		t.Errorf("network-status stays: %s", w.status())
	}
	calls, confs := w.calls()
	if want := []string{"ADD container1 extra", "CHECK container1 extra", "DEL container1 extra"}; !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	for i, c := range confs {
		if !strings.Contains(c, `"kept":{"big":123456789012345678901234567890,"z":1,"a":2}`) || i > 0 != strings.Contains(c, `"prevResult":{`) {
			t.Errorf("%s was given %s", calls[i], c)
		}
	}
	w.OK(w.bare())
}

// TestRefused: an invalid request is reported before any change.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.write("nets/other/o.json", netC)
	w.conf["eligibleNetworks"] = []string{"net-a"}
	start := w.state()
	for _, c := range []struct{ name, key, value, want string }{
		{"capability", "k8s.v1.cni.cncf.io/networks", `[{"name":"c","mac":"02:00:00:00:00:77"}]`, `networks[0].mac: network "web/c" does not support this`},
		{"isolation", "k8s.v1.cni.cncf.io/networks", "b,other/o", `networks[1]: network "other/o" is not in the pod's namespace`},
		{"unknown", "k8s.v1.cni.cncf.io/networks", "b,nothing", `networks[1]: network "web/nothing"`},
		{"interface", "k8s.v1.cni.cncf.io/networks", "b@x,c@x", `networks[1].interface: "x" is already requested by network "b" (element 0): set another one for network "c"`},
		{"runtime's interface", "k8s.v1.cni.cncf.io/networks", "b@eth0", `networks[0].interface: "eth0" is already the interface of network "net-a" (delegates[0]): set another one for network "web/b", or none`},
		{"grammar", "k8s.v1.cni.cncf.io/networks", "B!", "networks[0]"},
		{"default", "v1.multus-cni.io/default-network", "web/b", "default-network"},
		{"choice", "cni", "net-b", `cni: a pod cannot select "net-b"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.conf["namespaceIsolation"] = true
			w.annotations = map[string]string{c.key: c.value}
			if a := w.Fail(w.call("ADD"), 0); !strings.Contains(strings.ReplaceAll(a.Stdout, `\"`, `"`), c.want) {
				t.Errorf("%s, want %s", a.Stdout, c.want)
			}
			w.same(start, "after a refused ADD")
		})
	}
	w.annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "other/o"}
	w.conf["globalNamespaces"] = "default,other"
	w.OK(w.call("ADD"))
	w.OK(w.call("DEL"))
}

// TestTakenBack: after one network fails, all are detached. With inOrder the newest is detached
// first.
func TestTakenBack(t *testing.T) {
	for _, inOrder := range []bool{false, true} {
		w := newWorld(t)
		w.conf["inOrder"] = inOrder
		w.wish("b,s@first,c,s@second")
		start := w.warm()
		w.write("fail-ADD", "")
		a := w.Fail(w.call("ADD"), 11)
		if !strings.Contains(a.Stdout, "told to fail") || !strings.Contains(a.Stdout, "web/s") {
			t.Errorf("error %s", a.Stdout)
		}
		w.same(start, "after a failed ADD")
		calls, _ := w.calls()
		want := []string{"ADD container1 first", "DEL container1 first"} // the second network's ADD did not begin
		if inOrder && !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
		if err := os.Remove(w.file("fail-ADD")); err != nil {
			t.Fatal(err)
		}
		w.OK(w.call("ADD"))
		w.OK(w.call("DEL"))
		w.same(start, "after ADD and DEL")
	}
}

// TestDelAgain: a DEL that fails for one network detaches the others. The next DEL detaches the
// rest and deletes the record.
func TestDelAgain(t *testing.T) {
	w := newWorld(t)
	w.wish("b,s@first,s@second")
	start := w.warm()
	w.OK(w.call("ADD"))
	w.write("fail-DEL", "")
	w.Fail(w.call("DEL"), 11)
	if state := w.state(); strings.Contains(state, "dev eth0") || strings.Contains(state, "dev net1") {
		t.Errorf("after a failed DEL:\n%s", state)
	}
	if err := errorsOf(os.Remove(w.file("fail-DEL")), os.Remove(w.file("calls"))); err != nil {
		t.Fatal(err)
	}
	w.OK(w.bare())
	w.same(start, "after the second DEL")
	if calls, _ := w.calls(); len(calls) != 2 {
		t.Errorf("calls %q", calls)
	}
	w.OK(w.bare())
	if calls, _ := w.calls(); len(calls) != 2 {
		t.Errorf("a DEL of nothing called %q", calls)
	}
}

// TestDelNamesNothing: DEL with a configuration without networks succeeds, because a runtime would
// repeat it forever.
func TestDelNamesNothing(t *testing.T) {
	w := newWorld(t)
	w.wish("b")
	for _, conf := range []string{`{"cniVersion":"1.0.0","name":"multi","type":"multus"}`, `{"cniVersion":"1.0.0","name":"multi","type":"multus","delegates":[],"clusterNetwork":""}`} {
		c := w.call("DEL")
		c.Conf = conf
		w.OK(c)
		c.Verb = "ADD"
		w.Fail(c, 7)
	}
}

// TestGC: the runtime's list has eth0 only. Every network gets its own list. Without a list nothing
// changes.
func TestGC(t *testing.T) {
	w := newWorld(t)
	w.wish("b,s@first")
	w.warm()
	w.OK(w.call("ADD"))
	keep := w.state()
	second := w.call("ADD")
	second.ID, second.IfName = "container2", "eth5"
	second.Conf = strings.ReplaceAll(strings.ReplaceAll(second.Conf, "s@first", "s@other"), `"name":"multi"`, `"interfacePrefix":"more","name":"multi"`)
	w.OK(second)
	both := w.state()
	none := w.call("GC")
	none.ID, none.Netns, none.IfName = "", "", ""
	_ = os.Remove(w.file("calls"))
	w.OK(none)
	w.same(both, "after GC without a list")
	w.OK(w.gc([]roles.AttachmentID{{ContainerID: "container1", IfName: "eth0"}}))
	w.same(keep, "after GC that lists one of two")
	calls, confs := w.calls()
	if want := []string{"DEL container2 other", "GC"}; !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	if list := `"cni.dev/valid-attachments":[{"containerID":"container1","ifname":"first"}]`; !strings.Contains(confs[len(confs)-1], list) {
		t.Errorf("GC was given %s, want %s", confs[len(confs)-1], list)
	}
	w.OK(w.gc([]roles.AttachmentID{}))
	if state := w.state(); strings.Contains(state, "container1") || strings.Contains(state, "br-a") || strings.Contains(state, "br-b") {
		t.Errorf("after GC with an empty list:\n%s", state)
	}
}

// waiting is an executed plugin. Its GC opens two FIFOs, so a test can act while GC runs.
const waiting = `#!/bin/sh
cat > /dev/null
if [ "$CNI_COMMAND" = GC ] && [ -e "%[1]s/begun" ]; then
	echo > "%[1]s/begun"
	cat "%[1]s/end"
fi
if [ "$CNI_COMMAND" = ADD ]; then
	echo '{"cniVersion":"1.1.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}]}'
fi
`

// TestGCDuringADD: a GC that began before a container's ADD and before a hot plug keeps all
// interfaces of the containers, of which the runtime's list names one each.
func TestGCDuringADD(t *testing.T) {
	w := newWorld(t)
	w.write("bin/waiting", fmt.Sprintf(waiting, w.Dir()))
	for _, fifo := range []string{"begun", "end"} {
		if err := unix.Mkfifo(w.file(fifo), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(w.file("begun")) })
	if err := os.Chmod(w.file("bin/waiting"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.network("w", `{"name":"net-w","cniVersion":"1.1.0","type":"waiting"}`)
	w.wish("w,b,s")
	w.OK(w.call("ADD"))
	second := w.call("ADD")
	second.ID, second.Netns = "container2", netopstest.New(t).Path()
	second.Conf = strings.Replace(second.Conf, `"w,b,s"`, `"b,s@extra"`, 1)
	second.Args = strings.Replace(second.Args, "K8S_POD_NAME=pod", "K8S_POD_NAME=pod2", 1)
	gc := w.Cmd(w.gc([]roles.AttachmentID{{ContainerID: "container1", IfName: "eth0"}, {ContainerID: "container2", IfName: "eth0"}}))
	if err := gc.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(w.file("begun")); err != nil {
		t.Fatal(err)
	}
	w.OK(second)
	if err := w.verb("attach", "web/pod", "b@hot"); err != nil {
		t.Fatal(err)
	}
	added := w.state()
	w.write("end", "")
	if err := gc.Wait(); err != nil {
		t.Errorf("GC: %v", err)
	}
	w.same(added, "after GC that began before ADD")
	_, confs := w.calls()
	if list := confs[len(confs)-1]; !strings.Contains(list, `{"containerID":"container2","ifname":"extra"}`) {
		t.Errorf("GC of the third-party plugin was given %s", list)
	}
	second.Verb = "DEL"
	w.OK(second)
	w.OK(w.call("DEL"))
}

// TestGCOfAnnotatedNetworks: GC with an empty list removes the shared objects of networks that
// only annotations named, after their last container is gone.
func TestGCOfAnnotatedNetworks(t *testing.T) {
	w := newWorld(t)
	w.network("b", strings.Replace(netB, `"bridge":"br-b"`, `"bridge":"br-b","isGateway":true,"ipMasq":true`, 1))
	start := w.state()
	w.wish("b,s")
	w.OK(w.call("ADD"))
	w.OK(w.bare())
	if state := w.state(); !strings.Contains(state, "link br-b") {
		t.Fatalf("DEL removed the shared bridge:\n%s", state)
	}
	_ = os.Remove(w.file("calls"))
	w.wish("")
	w.OK(w.gc([]roles.AttachmentID{}))
	w.same(start, "after GC with an empty list")
	w.OK(w.gc([]roles.AttachmentID{}))
	if calls, _ := w.calls(); !slices.Equal(calls, []string{"GC"}) {
		t.Errorf("calls %q", calls)
	}
}

// TestDamaged: DEL succeeds with damaged records. It finds the attachments of cnibox's own roles by
// the container ID.
func TestDamaged(t *testing.T) {
	for name, size := range map[string]int64{"empty": 0, "short": 100, "no page": 4096} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			start := w.warm()
			w.OK(w.call("ADD"))
			if err := os.Truncate(filepath.Join(w.StateDir(), "keep.db"), size); err != nil {
				t.Fatal(err)
			}
			w.OK(w.call("DEL"))
			w.same(start, "after DEL")
			w.dropBridges()
		})
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// meeting is an executed plugin. It notes when a call begins and ends. If a file requests it, the
// plugin waits until the networks "one" and "two" are both called.
const meeting = `#!/bin/sh
cat > /dev/null
echo "$CNI_COMMAND $CNI_IFNAME begins" >> "%[1]s/calls"
: > "%[1]s/$CNI_COMMAND-$CNI_IFNAME"
tries=0
while [ -e "%[1]s/meet" ] && ! { [ -e "%[1]s/$CNI_COMMAND-one" ] && [ -e "%[1]s/$CNI_COMMAND-two" ]; }; do
	tries=$((tries + 1))
	[ $tries -lt 1000000 ] || exit 1
done
echo "$CNI_COMMAND $CNI_IFNAME ends" >> "%[1]s/calls"
if [ "$CNI_COMMAND" = ADD ]; then
	echo '{"cniVersion":"1.1.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}]}'
fi
`

// TestOrder: networks with executed plugins are called at the same time: each waits for the other. With inOrder they are called one after the other, and in reverse at DEL.
func TestOrder(t *testing.T) {
	for _, inOrder := range []bool{false, true} {
		w := newWorld(t)
		w.conf["inOrder"] = inOrder
		w.write("bin/meeting", fmt.Sprintf(meeting, w.Dir()))
		if err := os.Chmod(w.file("bin/meeting"), 0o700); err != nil {
			t.Fatal(err)
		}
		w.network("m", `{"name":"net-m","cniVersion":"1.1.0","type":"meeting"}`)
		if !inOrder {
			w.write("meet", "")
		}
		w.wish("m@one,b,m@two,c")
		w.OK(w.call("ADD"))
		if want := "net-a@eth0 web/m@one web/b@net2 web/m@two web/c@net4"; w.status() != want {
			t.Errorf("network-status %q, want %q", w.status(), want)
		}
		w.OK(w.call("DEL"))
		calls, _ := w.calls()
		if len(calls) != 8 {
			t.Errorf("calls %q", calls)
		}
		want := []string{
			"ADD one begins", "ADD one ends", "ADD two begins", "ADD two ends",
			"DEL two begins", "DEL two ends", "DEL one begins", "DEL one ends",
		}
		if inOrder && !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
	}
}
