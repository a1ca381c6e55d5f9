package overlay_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

func TestMain(m *testing.M) { rolestest.Main(m, all.Table()) }

// handOff writes the agent's file for a node of both families.
func handOff(t *testing.T) string {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "overlay.json")
	var o store.Overlay
	text := fmt.Sprintf(`{"bootId":%q,"ready":true,"ipMasq":true,"mtu":1430,
		"ipv4":{"networks":["10.244.0.0/16"],"subnet":"10.244.1.0/24","mtu":1450},
		"ipv6":{"networks":["fd00:244::/48"],"subnet":"fd00:244:0:1::/64","mtu":1430}}`, strings.TrimSpace(string(boot)))
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	if err := store.WriteOverlay(path, &o); err != nil {
		t.Fatal(err)
	}
	return path
}

// subnetEnv writes flanneld's file.
func subnetEnv(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(path, []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRole runs the suite with the agent's file and with flanneld's.
func TestRole(t *testing.T) {
	agent := fmt.Sprintf(`{"name":"agent","type":"vxlan","overlayFile":%q,"delegate":{"isDefaultGateway":true,"hairpinMode":true}}`, handOff(t))
	flanneld := fmt.Sprintf(`{"name":"cbr0","type":"flannel","subnetFile":%q,"delegate":{"isDefaultGateway":true}}`, subnetEnv(t))
	ptp := fmt.Sprintf(`{"name":"ptp","type":"vxlan","subnetFile":%q,"delegate":{"type":"ptp"}}`, subnetEnv(t))
	down := rolestest.Inside("link down", netlink.LinkSetDown)
	rolestest.Suite{Table: all.Table(), Type: "vxlan", Confs: []rolestest.Conf{
		{Name: "agent", JSON: agent, Tamper: []rolestest.Tamper{down}},
		{Name: "flanneld", NoSweeps: true, JSON: flanneld, Tamper: []rolestest.Tamper{down}, Refused: map[string]any{"delegate": map[string]any{"name": "x"}}},
		{Name: "ptp", NoSweeps: true, JSON: ptp, Tamper: []rolestest.Tamper{down}},
	}}.Run(t)
}

// TestNotReady: ADD returns "try again later", STATUS returns the reason, and DEL works.
func TestNotReady(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	call := rolestest.Call{
		Type: "flannel", Verb: "ADD", ID: "c1", Netns: netopstest.New(t).Path(), IfName: "eth0",
		Conf: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"cbr0","type":"flannel","subnetFile":%q}`, filepath.Join(t.TempDir(), "none")),
	}
	if a := e.Fail(call, 11); !strings.Contains(a.Stdout, "flanneld, or the agent, has not started") {
		t.Error(a.Stdout)
	}
	call.Verb = "DEL"
	if a := e.OK(call); a.Stderr != "" {
		t.Errorf("DEL: %s", a.Stderr)
	}
	call.Verb, call.ID, call.Netns, call.IfName = "STATUS", "", "", ""
	e.Fail(call, 50)
	call.Verb, call.Conf = "GC", strings.Replace(call.Conf, "{", `{"cni.dev/valid-attachments":[],`, 1)
	if a := e.OK(call); a.Stderr != "" {
		t.Errorf("GC: %s", a.Stderr)
	}
}

// TestSubnetChanged: ADD works after the node's subnet changed. flannel's bridge fails with "cni0
// already has an IP address different from" until an operator removes the address.
func TestSubnetChanged(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	path := subnetEnv(t)
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"cbr0","type":"flannel","subnetFile":%q}`, path)
	add := func(id string) string {
		return e.OK(rolestest.Call{Type: "flannel", Verb: "ADD", ID: id, Netns: netopstest.New(t).Path(), IfName: "eth0", Conf: conf}).Stdout
	}
	t.Cleanup(func() {
		e.Run(rolestest.Call{Type: "flannel", Verb: "GC", Conf: strings.Replace(conf, "{", `{"cni.dev/valid-attachments":[],`, 1)})
	})
	if out := add("old"); !strings.Contains(out, "10.244.1.2/24") {
		t.Fatal(out)
	}
	if err := os.WriteFile(path, []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := add("new"); !strings.Contains(out, "10.244.7.2/24") || !strings.Contains(out, "10.244.7.1") {
		t.Fatal(out)
	}
}

// bridgeAddresses returns cni0's global addresses.
func bridgeAddresses(t *testing.T) string {
	t.Helper()
	l, err := netlink.LinkByName("cni0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() {
			all = append(all, a.IPNet.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestSubnetsOfBothFamiliesChanged: the gateways of the former subnets go from the bridge, also if
// the cluster's network is another one.
func TestSubnetsOfBothFamiliesChanged(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	path := filepath.Join(t.TempDir(), "subnet.env")
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"cbr0","type":"flannel","subnetFile":%q}`, path)
	t.Cleanup(func() {
		e.Run(rolestest.Call{Type: "flannel", Verb: "GC", Conf: strings.Replace(conf, "{", `{"cni.dev/valid-attachments":[],`, 1)})
	})
	for i, v := range []struct{ net4, sub4, net6, sub6, want string }{
		{"10.244.0.0/16", "10.244.1.1/24", "fd00:244::/48", "fd00:244:0:1::1/64", "10.244.1.1/24 fd00:244:0:1::1/64"},
		{"10.244.0.0/16", "10.244.7.1/24", "fd00:244::/48", "fd00:244:0:7::1/64", "10.244.7.1/24 fd00:244:0:7::1/64"},
		{"10.99.0.0/16", "10.99.3.1/24", "fd00:99::/48", "fd00:99:0:3::1/64", "10.99.3.1/24 fd00:99:0:3::1/64"},
	} {
		env := fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s\nFLANNEL_IPV6_NETWORK=%s\nFLANNEL_IPV6_SUBNET=%s\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n", v.net4, v.sub4, v.net6, v.sub6)
		if err := os.WriteFile(path, []byte(env), 0o644); err != nil {
			t.Fatal(err)
		}
		e.OK(rolestest.Call{Type: "flannel", Verb: "ADD", ID: fmt.Sprint(i), Netns: netopstest.New(t).Path(), IfName: "eth0", Conf: conf})
		if have := bridgeAddresses(t); have != v.want {
			t.Errorf("cni0 has %s, want %s", have, v.want)
		}
	}
}

// TestBridgeOfAnotherNetwork: ADD fails if the bridge has the gateway of another network. The
// containers of that network keep their gateway.
func TestBridgeOfAnotherNetwork(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	other := `{"cniVersion":"1.1.0","name":"other","type":"bridge","bridge":"cni0","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.22.0.0/16"}]]}}`
	overlay := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"overlay","type":"vxlan","overlayFile":%q}`, handOff(t))
	for _, order := range [][2]string{{other, overlay}, {overlay, other}} {
		var calls []rolestest.Call
		for i, conf := range order {
			typ := "bridge"
			if conf == overlay {
				typ = "vxlan"
			}
			calls = append(calls, rolestest.Call{Type: typ, Verb: "ADD", ID: fmt.Sprint(i), Netns: netopstest.New(t).Path(), IfName: "eth0", Conf: conf})
		}
		e.OK(calls[0])
		before := bridgeAddresses(t)
		if a := e.Run(calls[1]); a.Code == 0 || !strings.Contains(a.Stdout, `bridge \"cni0\" already has an IP address different from`) {
			t.Errorf("%s after %s: code %d, %s", calls[1].Type, calls[0].Type, a.Code, a.Stdout)
		}
		if have := bridgeAddresses(t); have != before {
			t.Errorf("%s after %s: cni0 has %s, had %s", calls[1].Type, calls[0].Type, have, before)
		}
		for _, c := range calls {
			e.Run(rolestest.Call{Type: c.Type, Verb: "GC", Conf: strings.Replace(c.Conf, "{", `{"cni.dev/valid-attachments":[],`, 1)})
		}
	}
}

// links returns the host's interfaces and addresses only, because the reference plugin leaves its
// nftables table and the forwarding sysctls.
func links(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(netopstest.Snapshot(t)) {
		if strings.HasPrefix(line, "link ") || strings.HasPrefix(line, "address ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestFlannelsScratch: DEL of the flannel plugin's attachment uses the file that the plugin kept.
// Only that file names the delegate, the reference bridge plugin. The file of another network with
// the same container stays.
func TestFlannelsScratch(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	dir := t.TempDir()
	peers, err := filepath.Abs("../../../bin/peers")
	if err != nil {
		t.Fatal(err)
	}
	ns := netopstest.New(t)
	rendered := fmt.Sprintf(`{"cniVersion":"0.3.1","name":"cbr0","type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"mtu":1450,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}]}}`, t.TempDir())
	scratch := filepath.Join(dir, "c1")
	if err := os.WriteFile(scratch, []byte(rendered), 0o600); err != nil {
		t.Fatal(err)
	}
	before := links(t)
	call := rolestest.Call{Type: "bridge", Verb: "ADD", ID: "c1", Netns: ns.Path(), IfName: "eth0", Conf: rendered}
	add := e.Cmd(call)
	add.Path = filepath.Join(peers, "bridge")
	add.Env = append(add.Env, "CNI_PATH="+peers)
	result, err := add.Output()
	if err != nil {
		t.Fatalf("reference bridge: %v: %s", err, result)
	}
	conf := func(name string) string {
		return fmt.Sprintf(`{"cniVersion":"0.3.1","name":%q,"type":"flannel","dataDir":%q,"subnetFile":"/none","prevResult":%s}`, name, dir, result)
	}
	call.Type, call.Verb, call.Conf = "flannel", "DEL", conf("another")
	call.IfName = "net1"
	e.OK(call)
	if _, err := os.Stat(scratch); err != nil {
		t.Fatalf("another network's DEL removed the file: %v", err)
	}
	call.IfName, call.Conf = "eth0", conf("cbr0")
	e.OK(call)
	if _, err := os.Stat(scratch); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if _, err := netlink.LinkByName("cni0"); err == nil {
		if err := netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}); err != nil {
			t.Error(err)
		}
	}
	if after := links(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
	e.OK(call)
}

// TestThirdPartyDelegate: DEL calls a third-party delegate with the configuration of ADD, even
// after the configuration or the subnet changed, and after a reboot.
func TestThirdPartyDelegate(t *testing.T) {
	e := rolestest.NewEnv(t, all.Table())
	peers, err := filepath.Abs("../../../bin/peers")
	if err != nil {
		t.Fatal(err)
	}
	dataDir, before := t.TempDir(), links(t)
	containers := map[string]*netopstest.NS{"c1": netopstest.New(t), "c2": netopstest.New(t)}
	// CNI_PATH has the reference plugins before cnibox's.
	run := func(verb, id, conf string) rolestest.Answer {
		t.Helper()
		call := rolestest.Call{Type: "vxlan", Verb: verb, ID: id, Conf: conf, IfName: "eth0"}
		if ns, ok := containers[id]; ok {
			call.Netns = ns.Path()
		} else {
			call.IfName = ""
		}
		e.Extra = []string{"CNI_PATH=" + peers + ":" + e.PluginDir()}
		return e.OK(call)
	}
	conf := func(more string) string {
		return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"vxlan",%s,"ipam":{"dataDir":%q}}`, more, dataDir)
	}
	made := conf(fmt.Sprintf(`"subnetFile":%q,"delegate":{"bridge":"foreign0"}`, subnetEnv(t)))
	changed := conf(`"subnetFile":"/none","delegate":{"type":"ptp"}`)
	leases := func() []string {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(dataDir, "n", "10.*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	run("ADD", "c1", made)
	run("ADD", "c2", made)
	if have := leases(); len(have) != 2 {
		t.Fatalf("leases of the reference: %v", have)
	}
	run("DEL", "c1", changed)
	if have := leases(); len(have) != 1 {
		t.Errorf("after DEL: %v", have)
	}
	run("DEL", "c1", changed)
	run("GC", "", strings.Replace(changed, "{", `{"cni.dev/valid-attachments":[],`, 1))
	if have := leases(); len(have) != 0 {
		t.Errorf("after GC: %v", have)
	}
	run("ADD", "c1", made)
	if err := os.WriteFile(filepath.Join(e.StateDir(), "keep.db"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("DEL", "c1", made)
	if have := leases(); len(have) != 0 {
		t.Errorf("after DEL without the configuration of ADD: %v", have)
	}
	if err := netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "foreign0"}}); err != nil {
		t.Error(err)
	}
	if after := links(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
}
