package ovs_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/ovs"
)

// rig is a node with Open vSwitch and containers.
type rig struct {
	*rolestest.Env
	*ovs.Switch
	t      *testing.T
	spaces map[string]*netopstest.NS
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Env: rolestest.NewEnv(t, all.Table()), Switch: start(t), t: t, spaces: map[string]*netopstest.NS{}}
	r.Beyond = func() string { return r.Ports(t, bridge) }
	return r
}

// call is a call for eth0 of a container, which is created with its first call.
func (r *rig) call(verb, id, keys string) rolestest.Call {
	r.t.Helper()
	if r.spaces[id] == nil {
		r.spaces[id] = netopstest.New(r.t)
	}
	return rolestest.Call{
		Type: "ovs", Verb: verb, ID: id, Netns: r.spaces[id].Path(), IfName: "eth0",
		Conf: rolestest.WithKeys(r.t, conf(r.Switch, "net", keys), map[string]any{"cniVersion": "1.1.0"}),
	}
}

// add attaches a container and returns ADD's result.
func (r *rig) add(id, keys string) *roles.Result {
	r.t.Helper()
	var res roles.Result
	must(r.t, json.Unmarshal([]byte(r.OK(r.call("ADD", id, keys)).Stdout), &res))
	return &res
}

// collect returns a GC call without valid containers.
func (r *rig) collect(keys string) rolestest.Call {
	r.t.Helper()
	gc := r.call("GC", "gc", keys)
	gc.ID, gc.Netns, gc.IfName = "", "", ""
	gc.Conf = rolestest.WithKeys(r.t, gc.Conf, map[string]any{"cni.dev/valid-attachments": []roles.AttachmentID{}})
	return gc
}

// same fails the test if the host's state has changed.
func (r *rig) same(want, when string) {
	r.t.Helper()
	if have := r.State(nil); have != want {
		r.t.Errorf("%s: state differs\nwant:\n%s\nhave:\n%s", when, want, have)
	}
}

// refused makes a call that must fail with a code and a text, and leave nothing.
func (r *rig) refused(c rolestest.Call, code int, text string) {
	r.t.Helper()
	before := r.State(nil)
	if a := r.Fail(c, code); !strings.Contains(a.Stdout, text) {
		r.t.Errorf("%s: %s\nlacks %q", c.Conf, a.Stdout, text)
	}
	r.same(before, "after a refused "+c.Verb)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func static(address string) string {
	return `"ipam":{"type":"static","addresses":[{"address":"` + address + `/24"}]}`
}

// TestTraffic: two VLANs of one bridge have the same addresses, so also the same MACs, and each datagram arrives in its own VLAN.
// A restart of ovs-vswitchd keeps the ports.
func TestTraffic(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	type pod struct{ id, keys string }
	pods := []pod{
		{"a100", `,"vlan":100,` + static("10.1.0.8")},
		{"b100", `,"vlan":100,` + static("10.1.0.9")},
		{"a200", `,"vlan":200,` + static("10.1.0.8")},
		{"b200", `,"vlan":200,` + static("10.1.0.9")},
	}
	for _, p := range pods {
		if mac := r.add(p.id, p.keys).Interfaces[1].Mac; mac != "0a:58:0a:01:00:08" && mac != "0a:58:0a:01:00:09" {
			t.Errorf("MAC of %s is %s", p.id, mac)
		}
	}
	to := map[string]*net.UDPConn{}
	for _, vlan := range []string{"100", "200"} {
		to[vlan] = netopstest.Listen(t, r.spaces["b"+vlan], "10.1.0.9:7000")
	}
	for _, when := range []string{"attached", "ovs-vswitchd restarted"} {
		for vlan, listener := range to {
			netopstest.CheckDatagram(t, when+" "+vlan, r.spaces["a"+vlan], listener, "10.1.0.8")
		}
		for _, p := range pods {
			r.OK(r.check(p.id, p.keys))
		}
		if when == "attached" {
			r.StopDaemon()
			if ovs.Datapath() == "system" { // the kernel keeps the flows
				for vlan, listener := range to {
					netopstest.CheckDatagram(t, "without ovs-vswitchd "+vlan, r.spaces["a"+vlan], listener, "10.1.0.8")
				}
			}
			r.StartDaemon(t)
			r.Vsctl(t, "set", "bridge", bridge, "external-ids:restarted=yes") // returns when ovs-vswitchd has applied it
		}
	}
	for _, p := range pods {
		r.OK(r.call("DEL", p.id, p.keys))
	}
	r.same(before, "after DEL")
}

// check returns a CHECK call with the result of a container that is attached.
func (r *rig) check(id, keys string) rolestest.Call {
	r.t.Helper()
	c := r.call("CHECK", id, keys)
	add := c
	add.Verb = "ADD"
	eth0 := r.spaces[id].Link(r.t, "eth0")
	var prev roles.Result
	must(r.t, json.Unmarshal([]byte(`{"cniVersion":"1.1.0","interfaces":[],"ips":[]}`), &prev))
	host, err := netlink.LinkByIndex(eth0.Attrs().ParentIndex)
	must(r.t, err)
	prev.Interfaces = []*roles.ResultInterface{
		{Name: host.Attrs().Name, Mac: host.Attrs().HardwareAddr.String()},
		{Name: "eth0", Mac: eth0.Attrs().HardwareAddr.String(), Sandbox: c.Netns},
	}
	var addrs []netlink.Addr
	r.spaces[id].Do(r.t, func() (err error) {
		addrs, err = netlink.AddrList(eth0, netlink.FAMILY_V4)
		return err
	})
	raw, err := json.Marshal(prev)
	must(r.t, err)
	var m map[string]any
	must(r.t, json.Unmarshal(raw, &m))
	for _, a := range addrs {
		m["ips"] = []map[string]any{{"address": a.IPNet.String(), "interface": 1}}
	}
	c.Conf = rolestest.WithKeys(r.t, c.Conf, map[string]any{"prevResult": m})
	return c
}

// TestTrunk: a container on a trunk reaches two VLANs by tagged interfaces, and a third one does not exist for it.
func TestTrunk(t *testing.T) {
	netopstest.NeedKind(t, "vlan")
	r := newRig(t)
	r.add("a", `,"vlan":100,`+static("10.1.0.2"))
	r.add("b", `,"vlan":200,`+static("10.2.0.2"))
	r.add("trunk", `,"trunk":[{"minID":100,"maxID":101},{"id":200}]`)
	r.spaces["trunk"].Do(t, func() error {
		parent, err := netlink.LinkByName("eth0")
		for _, vlan := range []int{100, 200} {
			if err == nil {
				err = netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("v", vlan), ParentIndex: parent.Attrs().Index}, VlanId: vlan})
			}
			if err == nil {
				err = netopstest.LinkUp(fmt.Sprint("v", vlan), fmt.Sprintf("10.%d.0.9/24", vlan/100))
			}
		}
		return err
	})
	netopstest.CheckDatagram(t, "tagged 100", r.spaces["trunk"], netopstest.Listen(t, r.spaces["a"], "10.1.0.2:7000"), "10.1.0.9")
	netopstest.CheckDatagram(t, "tagged 200", r.spaces["trunk"], netopstest.Listen(t, r.spaces["b"], "10.2.0.2:7000"), "10.2.0.9")
}

// TestReboot: a reboot ends the links and the records, and the database keeps the ports. ADD and GC remove those that are cnibox's,
// and DEL that of its container.
func TestReboot(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	for _, then := range []struct {
		name string
		do   func()
	}{
		{"ADD", func() {
			r.add("c2", `,`+dual)
			r.OK(r.call("DEL", "c2", `,`+dual))
		}},
		{"GC", func() { r.OK(r.collect(`,` + dual)) }},
		{"DEL", func() {
			del := r.call("DEL", "c1", `,`+dual)
			del.Netns = ""
			r.OK(del)
		}},
	} {
		t.Run(then.name, func(t *testing.T) {
			r.Vsctl(t, "--no-wait", "add-port", bridge, "others", "--", "set", "port", "others", "external_ids:owner=ovs-cni.network.kubevirt.io")
			others := r.State(nil)
			r.spaces["c1"] = netopstest.New(t)
			host := r.add("c1", `,`+dual).Interfaces[0].Name
			r.spaces["c1"].Remove(t)
			found, err := filepath.Glob(filepath.Join(r.RunDir(), "*"))
			must(t, err)
			for _, f := range found {
				must(t, os.RemoveAll(f))
			}
			await.Until(t, func() bool { return r.Vsctl(t, "get", "interface", host, "link_state") != "up" }, func() string { return "the port of no link is up" })
			then.do()
			r.same(others, "after a reboot and "+then.name)
			r.Vsctl(t, "del-port", "others")
			r.same(before, "without the port of another program")
		})
	}
}

// TestStateLost: DEL of a container whose record was lost while it ran.
func TestStateLost(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	r.add("c1", `,`+dual)
	found, err := filepath.Glob(filepath.Join(r.RunDir(), "*"))
	must(t, err)
	for _, f := range found {
		must(t, os.RemoveAll(f))
	}
	r.OK(r.call("DEL", "c1", `,`+dual))
	r.same(before, "after DEL without the record")
}

// TestDatabaseDown: while no database server runs, ADD and DEL of an attached container fail, and DEL of another one does not. The
// next DEL or GC completes the first.
func TestDatabaseDown(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	for _, then := range []string{"DEL", "GC"} {
		r.add("c1", `,`+dual)
		r.StopDatabase()
		const down = "no ovsdb-server listens on"
		for _, c := range []struct {
			verb, id string
			code     int
		}{{"ADD", "c2", 101}, {"DEL", "c1", 11}, {"STATUS", "c1", 50}} {
			if a := r.Fail(r.call(c.verb, c.id, `,`+dual), c.code); !strings.Contains(a.Stdout, down) {
				t.Errorf("%s: %s\nlacks %q", c.verb, a.Stdout, down)
			}
		}
		r.OK(r.call("DEL", "c2", `,`+dual))
		r.Fail(r.collect(`,`+dual), 11)
		r.StartDatabase(t)
		if then == "GC" {
			r.OK(r.collect(`,` + dual))
		} else {
			r.OK(r.call("DEL", "c1", `,`+dual))
		}
		r.same(before, "after "+then+" with the database server back")
	}
	r.OK(r.call("STATUS", "c1", `,`+dual))
}

// TestDaemonDown: without ovs-vswitchd ADD of an interface with addresses fails, as with ovs-cni, and leaves nothing. Without addresses it
// does not wait.
func TestDaemonDown(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	r.StopDaemon()
	r.Beyond = nil
	soon := `,"link_state_check_retries":1,"link_state_check_interval":1,` + dual
	if a := r.Fail(r.call("ADD", "c1", soon), 11); !strings.Contains(a.Stdout, "ovs-vswitchd has not added it") {
		t.Errorf("without ovs-vswitchd: %s", a.Stdout)
	}
	r.OK(r.call("ADD", "c2", `,"vlan":7`))
	r.OK(r.call("DEL", "c2", `,"vlan":7`))
	r.StartDaemon(t)
	r.Vsctl(t, "set", "bridge", bridge, "external-ids:restarted=yes")
	r.Beyond = func() string { return r.Ports(t, bridge) }
	r.same(before, "after a failed ADD")
}

// TestRefused: what the database refuses and what is missing is reported with its cause, and nothing is left.
func TestRefused(t *testing.T) {
	r := newRig(t)
	absent := r.call("ADD", "c1", `,`+dual)
	absent.Conf = rolestest.WithKeys(t, absent.Conf, map[string]any{"bridge": "absent0"})
	r.refused(absent, 101, `open vswitch bridge \"absent0\": does not exist: run 'ovs-vsctl add-br absent0'`)
	absent.Verb = "STATUS"
	r.refused(absent, 50, "absent0")
	none := r.call("ADD", "c1", `,`+dual)
	none.Conf = rolestest.WithKeys(t, none.Conf, map[string]any{"bridge": ""})
	r.refused(none, 7, "bridge: is missing")
	none.Verb = "STATUS"
	r.refused(none, 50, "br-int") // the bridge of containers with an ovnPort
	closing, err := net.Listen("unix", filepath.Join(t.TempDir(), "db.sock"))
	must(t, err)
	defer closing.Close()
	go func() {
		for c, err := closing.Accept(); err == nil; c, err = closing.Accept() {
			c.Close()
		}
	}()
	gc := r.collect("")
	gc.Conf = rolestest.WithKeys(t, gc.Conf, map[string]any{"socket_file": closing.Addr().String()})
	r.Fail(gc, 11)
	r.refused(r.call("ADD", "c1", `,"interface_type":"patch",`+dual), 0, "ovs-vswitchd: ")
	r.refused(r.call("ADD", "c1", `,"deviceID":"0000:03:02.1"`), 7, "deviceID: hardware offload is not supported")
	r.OK(r.call("DEL", "c1", `,"deviceID":"0000:03:02.1"`))

	// A port of the name that is another program's stays.
	host := r.add("c1", `,`+dual).Interfaces[0].Name
	r.OK(r.call("DEL", "c1", `,`+dual))
	r.Vsctl(t, "add-port", bridge, host, "--", "set", "interface", host, "type=internal")
	await.Until(t, func() bool { _, err := netlink.LinkByName(host); return err == nil }, func() string { return "no interface " + host })
	r.refused(r.call("ADD", "c1", `,`+dual), 0, "exists already")
	r.OK(r.call("DEL", "c1", `,`+dual))
	if ports := r.Vsctl(t, "list-ports", bridge); ports != host {
		t.Errorf("ports are %q, want %q", ports, host)
	}
	r.Vsctl(t, "del-port", host)
}

// TestLinkGone: DEL without a namespace removes the port of a container whose link is gone, and that of no other container. CHECK of
// another container does not find the fault.
func TestLinkGone(t *testing.T) {
	r := newRig(t)
	before := r.State(nil)
	first, second := r.add("c1", `,"vlan":100`).Interfaces[0].Name, r.add("c2", `,"vlan":100`).Interfaces[0].Name
	netopstest.ChangeHost(t, first, netlink.LinkDel)
	if ovs.Datapath() == "system" { // ovs-vswitchd tries to add it again
		await.Until(t, func() bool { return strings.Contains(r.Vsctl(t, "get", "interface", first, "error"), "could not open") }, func() string { return "no error" })
	}
	r.OK(r.check("c2", `,"vlan":100`))
	del := r.call("DEL", "c1", `,"vlan":100`)
	del.Netns = ""
	r.OK(del)
	if ports := r.Vsctl(t, "list-ports", bridge); ports != second {
		t.Errorf("ports are %q, want %q", ports, second)
	}
	r.OK(r.check("c2", `,"vlan":100`))
	r.OK(r.call("DEL", "c2", `,"vlan":100`))
	r.same(before, "after DEL")
}

// TestBridgeGone: DEL succeeds if the bridge or the port is gone.
func TestBridgeGone(t *testing.T) {
	r := newRig(t)
	r.Bridge(t, "ovs1", "02:00:00:00:0f:02") // the last bridge would take the datapath with it
	before := r.State(nil)
	r.add("c1", `,`+dual)
	r.Vsctl(t, "del-br", bridge)
	r.Fail(r.check("c1", `,`+dual), 0)
	r.OK(r.call("DEL", "c1", `,`+dual))
	r.Bridge(t, bridge, bridgeMAC)
	r.same(before, "after DEL without the bridge")
}

// TestRows: the rows have what ovs-cni writes, with another owner.
func TestRows(t *testing.T) {
	r := newRig(t)
	r.Bridge(t, "br-int", "02:00:00:00:0f:02")
	call := r.call("ADD", "c1", `,"vlan":5,"ofport_request":77,"interface_type":"system","link_state_check_retries":9`)
	call.Conf = rolestest.WithKeys(t, call.Conf, map[string]any{"bridge": ""})
	call.Args = "MAC=02:00:00:00:00:07;OvnPort=lsp \"1\";K8S_POD_UID=0b1f"
	var res roles.Result
	must(t, json.Unmarshal([]byte(r.OK(call).Stdout), &res))
	host := res.Interfaces[0].Name
	await.Until(t, func() bool { return r.Vsctl(t, "get", "interface", host, "ofport") == "77" }, func() string { return "another OpenFlow port" })
	for what, want := range map[string][2]string{
		"bridge of the port": {r.Vsctl(t, "port-to-br", host), "br-int"},
		"MAC":                {res.Interfaces[1].Mac, "02:00:00:00:00:07"},
		"port":               {r.Vsctl(t, "get", "port", host, "vlan_mode", "tag", "trunks"), "access\n5\n[]"},
		"container":          {r.Vsctl(t, "get", "port", host, "external_ids:contNetns", "external_ids:contIface", "external_ids:contPodUid"), "\"" + call.Netns + "\"\neth0\n\"0b1f\""},
		"interface":          {r.Vsctl(t, "get", "interface", host, "type", "external_ids:iface-id"), "system\n\"lsp \\\"1\\\"\""},
	} {
		if want[0] != want[1] {
			t.Errorf("%s: %q, want %q", what, want[0], want[1])
		}
	}
	if owner := r.Vsctl(t, "get", "port", host, "external_ids:owner"); !strings.HasPrefix(owner, `"cnibox:`) {
		t.Errorf("owner is %s", owner)
	}
	call.Verb = "DEL"
	r.OK(call)
}

// TestSockets: the database server may listen on TCP, and a path needs no "unix:".
func TestSockets(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())
	_, port, _ := net.SplitHostPort(address)
	r.Vsctl(t, "set-manager", "ptcp:"+port+":127.0.0.1")
	await.Until(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, func() string { return "the database server does not listen on " + address })
	before := r.State(nil)
	for _, socket := range []string{"tcp:" + address, r.Socket} {
		for _, verb := range []string{"ADD", "DEL"} {
			c := r.call(verb, "c1", `,`+dual)
			c.Conf = rolestest.WithKeys(t, c.Conf, map[string]any{"socket_file": socket})
			r.OK(c)
		}
		r.same(before, "after DEL by "+socket)
	}
}

// TestFile: the file gives the keys that the configuration does not have. One that other users can write is refused, and DEL needs none.
func TestFile(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "ovs.conf")
	write := func(content string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(content), 0o600))
	}
	bare := func(verb string) rolestest.Call {
		c := r.call(verb, "c1", "")
		c.Conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"ovs","vlan":100,"configuration_path":%q}`, file)
		return c
	}
	before := r.State(nil)
	write(fmt.Sprintf(`{"bridge":%q,"socket_file":"unix:%s","vlan":200,"mtu":1400,"comment":"x"}`, bridge, r.Socket))
	r.OK(bare("STATUS"))
	var res roles.Result
	must(t, json.Unmarshal([]byte(r.OK(bare("ADD")).Stdout), &res))
	if tag := r.Vsctl(t, "get", "port", res.Interfaces[0].Name, "tag"); tag != "100" {
		t.Errorf("tag is %s, want the configuration's", tag)
	}
	if mtu := r.spaces["c1"].Link(t, "eth0").Attrs().MTU; mtu != 1400 {
		t.Errorf("MTU is %d, want the file's", mtu)
	}
	must(t, os.Remove(file))
	r.OK(bare("DEL"))
	r.same(before, "after DEL without the file")
	for content, want := range map[string]string{`{"vlan":`: "ovs.conf: ", `{"vlan":5000}`: "vlan: 5000 is out of range"} {
		write(content)
		r.refused(bare("ADD"), 7, want)
	}
	write("{}")
	must(t, os.Chmod(file, 0o666))
	r.refused(bare("ADD"), 7, "all users have write permission")
	must(t, os.Remove(file))
	must(t, os.Symlink("/etc/passwd", file))
	r.refused(bare("ADD"), 7, "configuration_path: ")
}

// TestOfReference: DEL and CHECK of a container that ovs-cni attached.
func TestOfReference(t *testing.T) {
	r := newRig(t)
	for _, netns := range []bool{true, false} {
		before := r.State(nil)
		r.spaces["c1"] = netopstest.New(t)
		ns := r.spaces["c1"]
		const host = "veth0a1b2c3d"
		ns.Do(t, func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 1500}, PeerName: host, PeerNamespace: netlink.NsPid(os.Getpid())})
		})
		ns.Change(t, "eth0", netlink.LinkSetUp)
		netopstest.ChangeHost(t, host, netlink.LinkSetUp)
		r.Vsctl(t, "add-port", bridge, host, "--", "set", "port", host, "vlan_mode=access", "tag=100",
			"external_ids:owner=ovs-cni.network.kubevirt.io", "external_ids:contIface=eth0", "external_ids:contNetns=\""+ns.Path()+"\"")
		keys := `,"vlan":100`
		r.OK(r.check("c1", keys))
		r.Fail(r.check("c1", `,"vlan":101`), 0)
		del := r.check("c1", keys)
		del.Verb = "DEL"
		another := del
		another.ID, another.Netns, another.IfName = "c2", "/run/netns/absent", "eth1"
		another.Conf = r.call("DEL", "c2", keys).Conf
		attached := r.State(nil)
		r.OK(another)
		r.same(attached, "after DEL of another container")
		if !netns {
			del.Netns = ""
		}
		r.OK(del)
		r.same(before, "after DEL")
	}
}

// TestStorm: 30 calls at once, with plugins that are killed.
func TestStorm(t *testing.T) {
	s := start(t)
	rolestest.Storm{
		Table: all.Table(), Type: "ovs", Containers: 30, Parallel: 30, Beyond: func() string { return s.Ports(t, bridge) },
		Confs: []string{rolestest.WithKeys(t, conf(s, "access", `,"vlan":100,`+dual), map[string]any{"cniVersion": "1.1.0"})},
	}.Run(t)
}
