package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/command"
)

// The module of the real azure-vnet cannot be downloaded from the module proxy. azure stands for it: it makes the objects of the mode
// "transparent", and writes both state files with the names and types of the fields of azure-vnet v1.5.

type azureRoute struct {
	Dst                       net.IPNet
	Src, Gw                   net.IP
	Protocol                  int
	DevName                   string
	Scope, Priority, TableNum int `json:",omitempty"`
}

type azureEndpoint struct {
	Id, SandboxKey, IfName, HostIfName string //nolint:revive // as in the file
	MacAddress                         net.HardwareAddr
	InfraVnetIP                        net.IPNet
	LocalIP                            string
	IPAddresses                        []net.IPNet
	Gateways                           []net.IP
	DNS                                struct {
		Suffix           string
		Servers, Options []string
	}
	Routes                                                []azureRoute
	VlanID                                                int
	EnableSnatOnHost, EnableInfraVnet, EnableMultitenancy bool
	NetworkContainerID                                    string
	NetworkNameSpace, ContainerID, PODName, PODNameSpace  string
	SecondaryInterfaces                                   map[string]any
}

type azureNetwork struct {
	Id, Mode  string //nolint:revive // as in the file
	VlanId    int    //nolint:revive // as in the file
	Endpoints map[string]*azureEndpoint
}

type azureExternal struct {
	Name       string
	Networks   map[string]*azureNetwork
	Subnets    []string
	MacAddress net.HardwareAddr
}

type azureFile struct {
	Network struct {
		Version            string
		TimeStamp          time.Time
		ExternalInterfaces map[string]*azureExternal
	}
	// Cnibox is not nil in a file that cnibox wrote.
	Cnibox json.RawMessage `json:"cnibox,omitempty"`
}

type azureAddress struct {
	ID    string
	Addr  net.IP
	InUse bool
}

type azurePool struct {
	Id, IfName string //nolint:revive // as in the file
	Subnet     net.IPNet
	Gateway    net.IP
	Addresses  map[string]*azureAddress
	RefCount   int
}

type azureIPAMFile struct {
	IPAM struct {
		AddressSpaces map[string]struct{ Pools map[string]*azurePool }
	}
}

// azureNode is a node with azure-vnet and the reference's portmap, and three addresses for pods.
type azureNode struct {
	*node
	file    azureFile
	ipam    azureIPAMFile
	network *azureNetwork
	pool    *azurePool
}

func newAzureNode(t *testing.T) *azureNode {
	t.Helper()
	ipam := object{"type": "azure-vnet-ipam", "environment": "fileIpam", "cooldown": "0s"}
	n := &azureNode{node: newNode(t, object{"type": "azure-vnet", "mode": "transparent", "ipam": ipam}, object{"type": "portmap", "backend": "iptables"})}
	t.Cleanup(func() { clear(t) })
	if _, err := netlink.LinkByName("eth0"); err != nil {
		must(t, netopstest.MakeMaster("eth0"))
	}
	must(t, netopstest.LinkUp("eth0", "10.240.0.4/16"))
	t.Cleanup(func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		must(t, netlink.LinkDel(l))
	})
	must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	// The host answers the pods' ARP requests for their gateway only if it has a route to it, as a node in Azure has.
	uplink, err := netlink.LinkByName("eth0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.IPv4(10, 240, 0, 1)}))
	addresses := []object{{"Address": "10.240.0.4", "IsPrimary": true}}
	n.pool = &azurePool{Id: "10.240.0.0/16", IfName: "eth0", Addresses: map[string]*azureAddress{}, RefCount: 1}
	for _, a := range []string{"10.240.0.36", "10.240.0.37", "10.240.0.38"} {
		addresses = append(addresses, object{"Address": a})
		n.pool.Addresses[a] = &azureAddress{Addr: net.ParseIP(a)}
	}
	raw, err := json.Marshal(object{"Interfaces": []object{{"MacAddress": "*", "IsPrimary": true, "IPSubnets": []object{{"Prefix": "10.240.0.0/16", "IPAddresses": addresses}}}}})
	must(t, err)
	ipam["file"] = filepath.Join(n.Dir(), "interfaces.json")
	must(t, os.WriteFile(filepath.Join(n.Dir(), "interfaces.json"), raw, 0o600))
	n.network = &azureNetwork{Id: "net1", Mode: "transparent", Endpoints: map[string]*azureEndpoint{}}
	n.file.Network.Version = "v1.5.32"
	n.file.Network.ExternalInterfaces = map[string]*azureExternal{"eth0": {Name: "eth0", Networks: map[string]*azureNetwork{"net1": n.network}, Subnets: []string{"10.240.0.0/16"}}}
	n.ipam.IPAM.AddressSpaces = map[string]struct{ Pools map[string]*azurePool }{"local": {map[string]*azurePool{"10.240.0.0/16": n.pool}}}
	must(t, os.RemoveAll(n.PluginDir()))
	must(t, os.MkdirAll(n.PluginDir(), 0o700))
	for _, p := range []string{"azure-vnet", "azure-vnet-ipam"} {
		must(t, os.WriteFile(filepath.Join(n.PluginDir(), p), []byte("#!/bin/sh\n# "+p+"\n"), 0o700))
	}
	must(t, exec.Command("cp", filepath.Join(n.peers, "portmap"), n.PluginDir()).Run())
	must(t, os.MkdirAll(n.confDir(), 0o700))
	list, err := json.Marshal(object{"cniVersion": n.version, "name": "net1", "plugins": n.list})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(n.confDir(), "10-azure.conflist"), list, 0o600))
	must(t, os.MkdirAll(filepath.Join(n.RunDir(), "azure-vnet"), 0o700))
	must(t, os.WriteFile(n.lockFile(), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(n.RunDir(), "cli"), 0o700))
	must(t, os.Symlink(n.CacheDir(), filepath.Join(n.RunDir(), "cli", "results")))
	n.detach(n.attach("first", 8079)) // the reference keeps its chains for ports
	return n
}

func (n *azureNode) lockFile() string {
	return filepath.Join(n.RunDir(), "azure-vnet", "azure-vnet.lock")
}

// attach attaches a container as azure-vnet does, and then with the installed portmap.
func (n *azureNode) attach(id string, port int) *container {
	n.t.Helper()
	c := n.container(id)
	c.port = port
	k := len(n.network.Endpoints)
	ip, name := fmt.Sprintf("10.240.0.%d", 36+k), fmt.Sprintf("azv%011x", k)
	mac, err := net.ParseMAC("aa:aa:aa:aa:aa:aa")
	must(n.t, err)
	must(n.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac}, PeerName: name + "2"}))
	end, err := netlink.LinkByName(name)
	must(n.t, err)
	peer, err := netlink.LinkByName(name + "2")
	must(n.t, err)
	f, err := os.Open(c.ns.Path())
	must(n.t, err)
	must(n.t, errors.Join(netlink.LinkSetNsFd(peer, int(f.Fd())), f.Close(), netlink.LinkSetUp(end)))
	address, subnet := net.IPNet{IP: net.ParseIP(ip).To4(), Mask: net.CIDRMask(16, 32)}, net.CIDRMask(32, 32)
	must(n.t, netlink.RouteAdd(&netlink.Route{LinkIndex: end.Attrs().Index, Dst: &net.IPNet{IP: address.IP, Mask: subnet}, Scope: netlink.SCOPE_LINK}))
	must(n.t, os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/proxy_arp", []byte("1"), 0))
	gw := net.IPv4(169, 254, 1, 1).To4()
	var own net.HardwareAddr
	c.ns.Do(n.t, func() error {
		l, err := netlink.LinkByName(name + "2")
		if err != nil {
			return err
		}
		own = l.Attrs().HardwareAddr
		index := l.Attrs().Index
		return errors.Join(netlink.LinkSetName(l, "eth0"), netlink.LinkSetUp(l),
			netlink.AddrAdd(l, &netlink.Addr{IPNet: &address}),
			netlink.RouteDel(&netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: address.IP.Mask(address.Mask), Mask: address.Mask}}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: gw, Mask: subnet}, Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gw}),
			netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: gw, HardwareAddr: mac, State: unix.NUD_PROBE}))
	})
	e := &azureEndpoint{
		Id: id + "-eth0", IfName: "eth0", HostIfName: name, MacAddress: own, IPAddresses: []net.IPNet{address}, Gateways: []net.IP{net.IPv4(10, 240, 0, 1)},
		Routes:           []azureRoute{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gw: net.IPv4(10, 240, 0, 1)}},
		NetworkNameSpace: c.ns.Path(), ContainerID: id, PODName: id, PODNameSpace: "default",
	}
	e.DNS.Servers = []string{"168.63.129.16"}
	n.network.Endpoints[e.Id] = e
	*n.pool.Addresses[ip] = azureAddress{ID: id, Addr: net.ParseIP(ip), InUse: true}
	n.writeState()
	c.result = json.RawMessage(fmt.Sprintf(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"%s/16","gateway":"10.240.0.1"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.240.0.1"}],"dns":{"nameservers":["168.63.129.16"]}}`, ip))
	c.result = json.RawMessage(c.ask(theirs, c.call("ADD", 1, c.prev())))
	n.keep(c)
	return c
}

// detach detaches a container as azure-vnet and the reference's portmap do.
func (n *azureNode) detach(c *container) {
	n.t.Helper()
	c.ask(theirs, c.call("DEL", 1, c.prev()))
	e := n.network.Endpoints[c.id+"-eth0"]
	n.pool.Addresses[e.IPAddresses[0].IP.String()].InUse = false
	delete(n.network.Endpoints, c.id+"-eth0")
	n.writeState()
	c.ns.Remove(n.t)
	must(n.t, os.Remove(filepath.Join(n.CacheDir(), "net1-"+c.id+"-eth0")))
}

// keep stores the container's result as a runtime does.
func (n *azureNode) keep(c *container) {
	n.t.Helper()
	add := c.call("ADD", 0, nil)
	list, err := json.Marshal(object{"cniVersion": n.version, "name": "net1", "plugins": c.list})
	must(n.t, err)
	add.Conf = string(list)
	n.Cache(add, string(c.result))
}

func (n *azureNode) writeState() {
	n.t.Helper()
	for name, v := range map[string]any{"azure-vnet.json": n.file, "azure-vnet-ipam.json": n.ipam} {
		raw, err := json.MarshalIndent(v, "", "\t")
		must(n.t, err)
		must(n.t, os.WriteFile(filepath.Join(n.RunDir(), name), raw, 0o600))
	}
}

// read reads a file as azure's plugin would.
func (n *azureNode) read(name string, into any) {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.RunDir(), name))
	must(n.t, err)
	must(n.t, json.Unmarshal(raw, into))
}

// TestMigrateAzure makes the documented migration of a node of azure-vnet with running pods, and returns. Pods of both sides reach each
// other, CHECK, DEL and GC know the pods of azure-vnet, and after the return its files do.
func TestMigrateAzure(t *testing.T) {
	n := newAzureNode(t)
	before, plugins := n.state(), listing(t, n.PluginDir())
	first, second := n.attach("web-1", 8080), n.attach("web-2", 8081)
	var third *container
	steps := map[string]func(){
		"cnibox check --all": func() {
			first.check(installed)
			second.del(installed, second.ns.Path())
			must(t, os.Remove(filepath.Join(n.CacheDir(), "net1-web-2-eth0")))
			third = n.run("web-3", 8082)
			if a := address(t, third.result); a != "10.240.0.37/16" && a != "10.240.0.38/16" {
				t.Errorf("the new pod has %s", a)
			}
			reaches(t, first, third)
			reaches(t, third, first)
		},
	}
	n.documented("azure-vnet", steps)
	back := n.migrate("migrate", "azure-vnet", "--back", "--yes")
	if out := n.command(back...); !strings.Contains(out, "return 1 container to azure-vnet") || !strings.Contains(out, "1 interfaces are still attached by cnibox") || !strings.Contains(out, "[exit code 3]") {
		t.Error(out)
	}
	var file azureFile
	n.read("azure-vnet.json", &file)
	network := file.Network.ExternalInterfaces["eth0"].Networks["net1"]
	if e := network.Endpoints["web-1-eth0"]; len(network.Endpoints) != 2 || file.Cnibox != nil || e == nil || e.HostIfName != "azv00000000000" || e.NetworkNameSpace != first.ns.Path() {
		t.Errorf("azure-vnet.json: %+v", file)
	}
	var ipam azureIPAMFile
	n.read("azure-vnet-ipam.json", &ipam)
	if a := ipam.IPAM.AddressSpaces["local"].Pools["10.240.0.0/16"].Addresses["10.240.0.36"]; a == nil || !a.InUse || a.ID != "web-1" {
		t.Errorf("azure-vnet-ipam.json: %+v", a)
	}
	third.ns.Remove(t)
	must(t, os.Remove(filepath.Join(n.CacheDir(), "net1-web-3-eth0")))
	if out := n.command(back...); !strings.Contains(out, "the node has returned to azure-vnet") {
		t.Error(out)
	}
	if now := listing(t, n.PluginDir()); now != plugins {
		t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
	}
	n.detach(first)
	n.same(before, "at the end")
}

// TestMigrateAzureGC: GC detaches a pod of azure-vnet that the runtime does not list, and frees its address. An endpoint whose pod has
// ended is left behind, and an address without an endpoint stays in use.
func TestMigrateAzureGC(t *testing.T) {
	n := newAzureNode(t)
	first, second := n.attach("web-1", 8080), n.attach("web-2", 8081)
	gone := *n.network.Endpoints["web-2-eth0"]
	gone.ContainerID, gone.NetworkNameSpace = "old", "/run/netns/none"
	n.network.Endpoints["old-eth0"] = &gone
	*n.pool.Addresses["10.240.0.38"] = azureAddress{ID: "other", InUse: true}
	n.writeState()
	if out := n.command(n.migrate("migrate", "azure-vnet", "--yes")...); !strings.Contains(out, "take over 2 containers") || !strings.Contains(out, "no differences found in 2 attachments") {
		t.Fatal(out)
	}
	third := n.container("web-3")
	n.Fail(third.call("ADD", 0, nil), 11)
	first.gc(roles.AttachmentID{ContainerID: "web-1", IfName: "eth0"})
	if _, err := netlink.LinkByName("azv00000000001"); err == nil {
		t.Error("GC left the pod's link")
	}
	first.check(installed)
	answer := n.OK(third.call("ADD", 0, nil))
	if !strings.Contains(answer.Stdout, "10.240.0.37") && !strings.Contains(answer.Stdout, "10.240.0.38") {
		t.Error(answer.Stdout)
	}
	n.OK(third.call("DEL", 0, nil))
	second.ns.Remove(t)
	first.del(installed, "")
}

// TestMigrateAzureRefused: a pod that cannot be taken over, and an azure-vnet that cannot be locked out, leave the node unchanged.
func TestMigrateAzureRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*azureNode) error
	}{
		{"mode bridge", `it is attached in the mode "bridge"`, func(n *azureNode) error { n.network.Mode = "bridge"; return nil }},
		{"other link", `the other end of its "eth0" is "azv00000000000", not "azv1"`, func(n *azureNode) error {
			n.network.Endpoints["web-1-eth0"].HostIfName = "azv1"
			return nil
		}},
		{"other address", `its "eth0" does not have 10.240.0.38/16`, func(n *azureNode) error {
			n.network.Endpoints["web-1-eth0"].IPAddresses[0].IP = net.IPv4(10, 240, 0, 38)
			return nil
		}},
		{"address of CNS", "10.240.0.36 has no entry in azure-vnet-ipam.json", func(n *azureNode) error {
			n.pool.Addresses["10.240.0.36"].InUse = false
			return nil
		}},
		{"address without owner", "10.240.0.38 in azure-vnet-ipam.json is in use by an unknown container", func(n *azureNode) error {
			n.pool.Addresses["10.240.0.38"].InUse = true
			return nil
		}},
		{"old version", "azure-vnet.lock", func(n *azureNode) error { return os.Remove(n.lockFile()) }},
		{"IPAM of CNS", "its ipam.type is not azure-vnet-ipam", func(n *azureNode) error {
			conf := `{"cniVersion":"1.0.0","name":"cns","plugins":[{"type":"azure-vnet","mode":"transparent","ipam":{"type":"azure-cns"}}]}`
			return os.WriteFile(filepath.Join(n.confDir(), "20-cns.conflist"), []byte(conf), 0o600)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newAzureNode(t)
			pod := n.attach("web-1", 8080)
			must(t, c.change(n))
			n.writeState()
			before, plugins := n.state(), listing(t, n.PluginDir())
			if out := n.command(n.migrate("migrate", "azure-vnet", "--yes")...); !strings.Contains(out, c.want) || !strings.Contains(out, "[exit code 1]") {
				t.Errorf("%s: want %q", out, c.want)
			}
			n.same(before, "afterwards")
			if now := listing(t, n.PluginDir()); now != plugins {
				t.Errorf("the plugins were\n%s\nand are\n%s", plugins, now)
			}
			pod.ask(theirs, pod.call("DEL", 1, pod.prev()))
			pod.ns.Remove(t)
		})
	}
}

// TestMigrateAzureWaits: the migration waits for azure-vnet's lock, and releases it only after a call of azure-vnet that waited, too, has
// ended.
func TestMigrateAzureWaits(t *testing.T) {
	n := newAzureNode(t)
	pod := n.attach("web-1", 8080)
	waiting := exec.Command("/bin/sh", "-c", "read x")
	waiting.Args[0] = "/opt/cni/bin/azure-vnet"
	in, err := waiting.StdinPipe()
	must(t, err)
	must(t, waiting.Start())
	held, err := os.Open(n.lockFile())
	must(t, err)
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	cmd := command.Cmd(n.Env, n.migrate("migrate", "azure-vnet", "--yes")...)
	cmd.Env = append(cmd.Env, "PATH="+n.programs()+":/usr/sbin")
	must(t, cmd.Start())
	replaced := func() bool {
		target, err := os.Readlink(filepath.Join(n.PluginDir(), "azure-vnet"))
		return err == nil && target != ""
	}
	await.Until(t, func() bool {
		locks, err := os.ReadFile("/proc/locks")
		return err == nil && regexp.MustCompile(fmt.Sprintf(`-> FLOCK .* %d `, cmd.Process.Pid)).Match(locks)
	}, func() string { return "the command does not wait for the lock" })
	if replaced() {
		t.Error("azure-vnet was replaced during a call of it")
	}
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	await.Until(t, func() bool { return waitsFor(cmd.Process.Pid, waiting.Process.Pid) }, func() string { return "the command does not wait for the other azure-vnet" })
	if !replaced() {
		t.Error("azure-vnet was not replaced")
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the lock is free before the other azure-vnet has ended: %v", err)
	}
	must(t, errors.Join(in.Close(), ignoreExit(waiting.Wait())))
	must(t, errors.Join(cmd.Wait(), held.Close()))
	pod.del(installed, pod.ns.Path())
}

// TestMigrateAzureBackWaits: the return waits for a call of cnibox that began before, and azure-vnet's files then have its pod and all others.
func TestMigrateAzureBackWaits(t *testing.T) {
	n := newAzureNode(t)
	n.attach("web-1", 8080)
	n.writeState()
	n.command(n.migrate("migrate", "azure-vnet", "--yes")...)
	call := n.container("web-2").call("ADD", 0, nil)
	call.Probe = "net:stop:1"
	late := n.Stopped(call)
	back := command.Cmd(n.Env, n.migrate("migrate", "azure-vnet", "--back", "--yes")...)
	back.Env = append(back.Env, "PATH="+n.programs()+":/usr/sbin")
	must(t, back.Start())
	await.Until(t, func() bool { return waitsFor(back.Process.Pid, late.Process.Pid) }, func() string { return "the command does not wait for the call" })
	must(t, errors.Join(late.Process.Signal(unix.SIGCONT), late.Wait()))
	must(t, ignoreExit(back.Wait())) // web-2 is still attached by cnibox
	var file azureFile
	n.read("azure-vnet.json", &file)
	if e := file.Network.ExternalInterfaces["eth0"].Networks["net1"].Endpoints; len(e) != 2 || e["web-1-eth0"] == nil || file.Cnibox != nil {
		t.Errorf("azure-vnet.json: %+v", file)
	}
}

// waitsFor reports whether a process has a pidfd of another one.
func waitsFor(pid, other int) bool {
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, f := range infos {
		raw, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(raw), fmt.Sprintf("\nPid:\t%d\n", other)) {
			return true
		}
	}
	return false
}
