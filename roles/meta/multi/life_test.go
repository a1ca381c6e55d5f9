package multi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/dispatch"
	"github.com/cnibox/cnibox/roles/call/migrate"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/roles/meta/multi"
	"github.com/cnibox/cnibox/store"
)

// host returns the world's node for a command of the command line.
func (w *world) host() *roles.Host {
	w.t.Helper()
	log := slog.New(slog.DiscardHandler)
	h, done, err := node.Open(w.t.Context(), node.Options{RunDir: w.RunDir(), StateDir: w.StateDir(), Role: "multi", Program: "test", Log: log, CacheDirs: []string{w.CacheDir()}, Reference: migrate.ReferencePlugins{}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(done)
	h.Delegate = dispatch.NewDelegator(dispatch.Process{Table: all.Table(), Executable: "/proc/self/exe", Stderr: io.Discard}, h, log)
	return h
}

// verb runs a command of the role.
func (w *world) verb(name string, args ...string) error {
	w.t.Helper()
	verbs := multi.Role().Verbs()
	i := slices.IndexFunc(verbs, func(v roles.CommandVerb) bool { return v.Name == name })
	_, err := verbs[i].Run(w.t.Context(), w.host(), nil, args)
	return err
}

// TestHotPlug: a running container gets one more network and loses it. DEL detaches the rest.
func TestHotPlug(t *testing.T) {
	w := newWorld(t)
	w.wish("b")
	start := w.warm()
	a := w.OK(w.call("ADD"))
	attached := w.state()
	for _, c := range []struct{ pod, network, want string }{
		{"web/pod", "c@net1", `"net1" is already the interface of network "web/b" (attached): set another one for network "web/c"`},
		{"web/pod", "nothing", "nothing"},
		{"web/nobody", "c", "no container or pod"},
	} {
		if err := w.verb("attach", c.pod, c.network); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("attach %s %s: %v", c.pod, c.network, err)
		}
	}
	w.write("fail-ADD", "")
	if err := w.verb("attach", "pod", "s"); err == nil {
		t.Error("attached by a plugin that failed")
	}
	w.same(attached, "after attach that failed")
	if err := errors.Join(os.Remove(w.file("fail-ADD")), w.verb("attach", "web/pod", "c@hot"), w.verb("attach", "container", "s")); err != nil {
		t.Fatal(err)
	}
	if want := "net-a@eth0 web/b@net1 web/c@hot web/s@net3"; w.status() != want {
		t.Errorf("network-status %q, want %q", w.status(), want)
	}
	w.OK(w.check(a.Stdout))
	if err := w.verb("detach", "web/pod", "net-a"); err == nil {
		t.Error("the default network was detached")
	}
	if err := w.verb("detach", "web/pod", "c"); err != nil {
		t.Fatal(err)
	}
	if want := "net-a@eth0 web/b@net1 web/s@net3"; w.status() != want {
		t.Errorf("network-status %q, want %q", w.status(), want)
	}
	w.OK(w.check(a.Stdout))
	w.OK(w.bare())
	w.same(start, "after DEL")
	if calls, _ := w.calls(); calls[len(calls)-1] != "DEL container1 net3" {
		t.Errorf("calls %q", calls)
	}
	if err := w.verb("attach", "web/pod", "c"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("attach after DEL: %v", err)
	}
}

// TestRoutes: a network requests the default route, and another one source-based routes. CHECK
// verifies both.
func TestRoutes(t *testing.T) {
	w := newWorld(t)
	w.wish(`[{"name":"b","default-route":["10.2.0.1"]},{"name":"c","io.github.cnibox":{"policyRoutes":[{"dst":"192.0.2.0/24","gw":"10.3.0.1"}]}},{"name":"b","interface":"l2","io.github.cnibox":{"ip":"none"}}]`)
	w.network("b", strings.Replace(netB, `"bridge":"br-b"`, `"bridge":"br-b","isGateway":true`, 1))
	start := w.warm()
	a := w.OK(w.call("ADD"))
	state := w.ns.Snapshot(t)
	for _, want := range []string{"route 0.0.0.0/0 via 10.2.0.1 dev net1 table 254", "route 192.0.2.0/24 via 10.3.0.1 dev net2 table 100", "from 10.3.0.3/32 to all table 100"} {
		if !strings.Contains(state, want) {
			t.Errorf("no %q in\n%s", want, state)
		}
	}
	if strings.Count(state, "route 0.0.0.0/0") != 1 || strings.Contains(state, "/24 dev l2") || strings.Contains(a.Stdout, "0.0.0.0/0") {
		t.Errorf("state\n%s\nresult %s", state, a.Stdout)
	}
	w.OK(w.check(a.Stdout))
	if err := w.verb("detach", "web/pod", "@net1"); err != nil {
		t.Fatal(err)
	}
	if state := w.ns.Snapshot(t); !strings.Contains(state, "route 0.0.0.0/0 via 10.1.0.1 dev eth0 table 254") || !strings.Contains(state, "table 100") {
		t.Errorf("after detach\n%s", state)
	}
	w.OK(w.check(a.Stdout))
	w.OK(w.bare())
	w.same(start, "after DEL")
}

// TestAgain: a killed call leaves a record. The next ADD undoes it and starts again. After a
// complete ADD the attachment exists, and another ADD is an error.
func TestAgain(t *testing.T) {
	w := newWorld(t)
	w.wish("b,s")
	start := w.warm()
	for _, kind := range []string{"net:kill-after", "store:kill"} {
		for n := 1; ; n++ {
			c := w.call("ADD")
			c.Probe = fmt.Sprintf("%s:%d", kind, n)
			if a := w.Run(c); strings.Contains(a.Stderr, "probe was not reached") {
				break
			}
			again := w.Run(w.call("ADD"))
			if again.Code != 0 && !strings.Contains(again.Stdout, "already attached") {
				t.Fatalf("%s: ADD again: %s", c.Probe, again.Stdout)
			}
			second := w.Fail(w.call("ADD"), 105)
			if !strings.Contains(second.Stdout, "multi: already attached") {
				t.Fatalf("a second ADD: %s", second.Stdout)
			}
			w.OK(w.bare())
			w.same(start, "after "+c.Probe+", ADD again and DEL")
		}
		w.OK(w.call("DEL"))
	}
}

// TestReboot: after a power failure the container is gone, but an executed plugin keeps its data. DEL and the next ADD of the same ID call the plugin.
func TestReboot(t *testing.T) {
	for _, verb := range []string{"DEL", "ADD", "GC"} {
		w := newWorld(t)
		w.wish("b,s")
		w.warm()
		w.OK(w.call("ADD"))
		w.OK(w.call("DEL")) // this removes the kernel's objects, as a reboot does
		w.OK(w.call("ADD"))
		w.reboot()
		w.ns.Reset(t)
		_ = os.Remove(w.file("calls"))
		switch verb {
		case "GC":
			w.OK(w.gc([]roles.AttachmentID{}))
		case "DEL":
			w.OK(w.bare())
		default:
			w.OK(w.call("ADD"))
		}
		calls, _ := w.calls()
		if len(calls) == 0 || calls[0] != "DEL container1 net2" {
			t.Errorf("%s after a reboot: calls %q", verb, calls)
		}
		w.OK(w.call("DEL"))
	}
}

// reboot removes what is lost at a reboot and changes the records' boot ID.
func (w *world) reboot() {
	w.t.Helper()
	h := w.host()
	err := h.Store.KeepUpdate(w.t.Context(), func(tx *store.KeepTx) error {
		all, err := tx.Delegations("")
		for i := range all {
			all[i].BootID = "another"
			err = errors.Join(err, tx.PutDelegation(&all[i]))
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	err = h.Store.View(w.t.Context(), func(tx *store.Tx) error {
		atts, err := tx.Attachments("")
		for i := range atts {
			_ = attachment.UndoParts(context.Background(), h, &atts[i], nil)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.dropBridges()
	w.Forget()
}

// dropBridges removes the bridges without a record.
func (w *world) dropBridges() {
	w.t.Helper()
	var links netops.Spec
	for _, name := range []string{"br-a", "br-b"} {
		links.Add(&netops.Link{In: netops.Host, Name: name, Kind: "bridge", Alias: attachment.SharedAlias})
	}
	if err := w.host().Net.Remove(w.t.Context(), links, nil); err != nil {
		w.t.Fatal(err)
	}
}

// TestStatus: STATUS calls the plugins of the networks of every pod and checks the readiness file.
func TestStatus(t *testing.T) {
	w := newWorld(t)
	call := w.call("STATUS")
	call.ID, call.Netns, call.IfName = "", "", ""
	w.OK(call)
	w.conf["delegates"] = []json.RawMessage{json.RawMessage(netA), json.RawMessage(`{"name":"s","type":"thirdparty"}`)}
	w.write("fail-STATUS", "")
	call.Conf = w.call("STATUS").Conf
	if a := w.Fail(call, 0); !strings.Contains(a.Stdout, `network \"s\"`) {
		t.Errorf("STATUS %s", a.Stdout)
	}
	if err := os.Remove(w.file("fail-STATUS")); err != nil {
		t.Fatal(err)
	}
	w.OK(call)
	w.conf["readinessindicatorfile"] = w.file("ready")
	call.Conf = w.call("STATUS").Conf
	w.Fail(call, 50)
	w.Fail(w.call("ADD"), 11)
	w.write("ready", "")
	w.OK(call)
	w.OK(w.call("ADD"))
	w.OK(w.call("DEL"))
}

// TestDefaults: the default network by name, additional networks except for system pods, the pod's
// own default network (Multus), and the selection of eligible networks (CNI-Genie).
func TestDefaults(t *testing.T) {
	w := newWorld(t)
	delete(w.conf, "delegates")
	w.conf["clusterNetwork"], w.conf["defaultNetworks"] = "net-a", []string{w.file("confs/20-b.conflist")}
	w.conf["eligibleNetworks"] = []string{"net-a", "net-b", "net-c"}
	w.write("confs/10-a.conflist", netA)
	w.write("confs/20-b.conflist", netB)
	w.write("confs/30-c.conf", netC)
	w.write("nets/kube-system/mine.json", netC)
	for _, c := range []struct{ key, value, namespace, want string }{
		{"", "", "web", "net-a@eth0 net-b@net1"},
		{"", "", "kube-system", "net-a@eth0"},
		{"v1.multus-cni.io/default-network", "mine", "web", "kube-system/mine@eth0 net-b@net1"},
		{"cni", "net-c,net-a@more", "kube-system", "net-c@eth0 net-a@more"},
		{"k8s.v1.cni.cncf.io/networks", "c", "web", "net-a@eth0 net-b@net1 web/c@net2"},
	} {
		w.annotations = map[string]string{c.key: c.value}
		call := w.call("ADD")
		call.Args = strings.Replace(call.Args, "NAMESPACE=web", "NAMESPACE="+c.namespace, 1)
		a := w.OK(call)
		if w.status() != c.want {
			t.Errorf("%s %s: %q, want %q", c.key, c.value, w.status(), c.want)
		}
		w.OK(w.check(a.Stdout))
		w.OK(w.bare())
	}
	if files, _ := filepath.Glob(filepath.Join(w.RunDir(), "*", "network-status", "*")); len(files) != 0 {
		t.Errorf("files stay: %q", files)
	}
}

// TestHostLink: a network uses a VXLAN or VLAN of the host (DANM). It is created for the first user
// and removed after the last one, for pods and for hot plug.
func TestHostLink(t *testing.T) {
	for _, tc := range []struct{ kind, key, link string }{
		{"vxlan", `"vxlan":4711`, "vxlan4711"},
		{"vlan", `"vlan":120`, "uplink.120"},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			if tc.kind == "vlan" {
				netopstest.NeedKind(t, tc.kind)
			}
			w := newWorld(t)
			netopstest.Master(t, "uplink")
			w.network("x", `{"name":"net-x","type":"macvlan","host_device":"uplink",`+tc.key+`,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}}`)
			stands := func(want bool, when string) {
				t.Helper()
				if state := w.state(); strings.Contains(state, "link "+tc.link+" "+tc.kind) != want {
					t.Fatalf("%s: the %s stands: %t, want %t\n%s", when, tc.kind, !want, want, state)
				}
			}
			w.wish("x,x")
			w.OK(w.call("ADD"))
			stands(true, "ADD")
			second := w.call("ADD")
			second.ID, second.Netns = "container2", netopstest.New(t).Path()
			second.Args = strings.Replace(second.Args, "K8S_POD_NAME=pod", "K8S_POD_NAME=pod2", 1)
			second.Conf = strings.Replace(second.Conf, "x,x", "b", 1)
			w.OK(second)
			plug := func(verb string) {
				t.Helper()
				if err := w.verb(verb, "web/pod2", "x"); err != nil {
					t.Fatalf("%s: %v", verb, err)
				}
			}
			plug("attach")
			w.OK(w.bare())
			stands(true, "DEL of one of two users")
			plug("detach")
			stands(false, "the last user's detach")
			plug("attach")
			stands(true, "a hot plug that is the first user")
			second.Verb = "DEL"
			w.OK(second)
			stands(false, "the last user's DEL")
		})
	}
}

// TestOtherProgramsHostLink: an existing interface with the name of a host link belongs to another
// program. It is used if it is the same VXLAN, is an error otherwise, and is never removed.
func TestOtherProgramsHostLink(t *testing.T) {
	for vni, serves := range map[int]bool{4711: true, 4712: false} {
		t.Run(fmt.Sprint(vni), func(t *testing.T) {
			w := newWorld(t)
			netopstest.Master(t, "uplink")
			parent, err := netlink.LinkByName("uplink")
			if err != nil {
				t.Fatal(err)
			}
			theirs := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan4711"}, VxlanId: vni, VtepDevIndex: parent.Attrs().Index, Group: net.IPv4(239, 0, 18, 103)}
			if err := netlink.LinkAdd(theirs); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = netlink.LinkDel(theirs) }()
			w.network("x", `{"name":"net-x","type":"macvlan","host_device":"uplink","vxlan":4711,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.0.0/24"}]]}}`)
			w.wish("x")
			if a := w.Run(w.call("ADD")); (a.Code == 0) != serves {
				t.Errorf("ADD %d %s", a.Code, a.Stdout)
			}
			w.OK(w.call("DEL"))
			if l, err := netlink.LinkByName("vxlan4711"); err != nil || l.Attrs().Index != theirs.Attrs().Index || l.Attrs().Alias != "" {
				t.Errorf("their VXLAN: %+v, %v", l, err)
			}
		})
	}
}
