package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The node is that of an AKS cluster: an interface with an address of the VNet on a network that accepts frames of this interface's
// hardware address only, and a metadata service that lists the addresses for pods.
const (
	nodeMAC   = "00:0d:3a:51:c4:90"
	nodeIP    = "10.240.0.35"
	vnet      = "10.240.0.0/16"
	vnetOther = "10.240.5.5" // another machine of the VNet
	fabric    = "fabric"
	azurePods = 5
	azureFree = 8 // addresses for pods
)

// fabricFilter drops frames of other hardware addresses, as the cloud does.
const fabricFilter = `table netdev fabric {
	chain in {
		type filter hook ingress device "f0" priority 0
		ether saddr != ` + nodeMAC + ` counter drop
		arp saddr ether != ` + nodeMAC + ` counter drop
	}
}
`

// addFabric makes the cloud's network with the host's eth0 on it, and starts the cloud's metadata service from the program cloudSim.
func (h *host) addFabric(t *testing.T, cloudSim string) {
	t.Helper()
	h.run(t, "chmod", "755", "/run") // as it is on a node
	h.run(t, "ip", "netns", "add", fabric)
	h.run(t, "ip", "link", "add", "eth0", "address", nodeMAC, "type", "veth", "peer", "name", "f0", "netns", fabric)
	in := func(args ...string) { t.Helper(); h.run(t, append([]string{"ip", "-n", fabric}, args...)...) }
	in("link", "set", "lo", "up")
	in("link", "set", "f0", "up")
	in("addr", "add", "10.240.0.1/16", "dev", "f0")
	in("addr", "add", vnetOther+"/32", "dev", "f0")
	in("addr", "add", "168.63.129.16/32", "dev", "lo")
	for i := range azureFree { // the cloud knows which addresses the interface has
		in("neigh", "add", fmt.Sprintf("10.240.0.%d", 36+i), "lladdr", nodeMAC, "dev", "f0", "nud", "permanent")
	}
	rules := filepath.Join(h.dir, "fabric.nft")
	writeFile(t, rules, fabricFilter)
	h.run(t, "ip", "netns", "exec", fabric, "nft", "-f", rules)
	h.run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1") // a Kubernetes node forwards: host ports need it
	h.run(t, "ip", "addr", "add", nodeIP+"/16", "dev", "eth0")
	h.run(t, "ip", "link", "set", "eth0", "up")
	h.run(t, "sh", "-c", "until ip -br link show dev eth0 | grep -q ' UP '; do :; done")
	h.run(t, "ip", "route", "add", "default", "via", "10.240.0.1")
	h.start(t, "ip", "netns", "exec", fabric, cloudSim, "-mac", nodeMAC, "-own", nodeIP, "-subnet", vnet,
		"-addresses", fmt.Sprint(azureFree), "azure")
	h.run(t, "sh", "-c", "until "+cloudSim+" count; do :; done")
}

// uplinkState returns the state of eth0 that must be restored, without link-local addresses, which the kernel adds later.
func (h *host) uplinkState(t *testing.T) string {
	t.Helper()
	return h.run(t, "ip", "-br", "addr", "show", "dev", "eth0", "scope", "global") + h.run(t, "ip", "route", "show") + h.run(t, "ip", "-br", "link", "show", "dev", "eth0")
}

// azureFiles is the part of azure's two state files that readers use.
type azureFiles struct {
	Network struct {
		ExternalInterfaces map[string]struct {
			BridgeName string
			Networks   map[string]struct {
				Mode      string
				Endpoints map[string]struct {
					HostIfName, ContainerID, PODName, PODNameSpace string
					IPAddresses                                    []struct{ IP string }
				}
			}
		}
	}
	IPAM struct {
		AddressSpaces map[string]struct {
			Pools map[string]struct {
				IfName    string
				Addresses map[string]struct {
					ID    string
					InUse bool
				}
			}
		}
	}
}

// wantFiles checks that both files list exactly these pods.
func (h *host) wantFiles(t *testing.T, when string, pods []pod) (hostLinks []string) {
	t.Helper()
	var f azureFiles
	decode(t, h.run(t, "cat", "/run/azure-vnet.json"), &f)
	decode(t, h.run(t, "cat", "/run/azure-vnet-ipam.json"), &f)
	want, wired, leased := map[string]string{}, map[string]string{}, map[string]string{}
	for _, p := range pods {
		want[p.IPs[0]] = p.ID
	}
	for name, x := range f.Network.ExternalInterfaces {
		n := x.Networks["azure"]
		if name != "eth0" || x.BridgeName != "azure0" || n.Mode != "bridge" {
			t.Errorf("%s: azure-vnet.json tells of %q with bridge %q and mode %q", when, name, x.BridgeName, n.Mode)
		}
		for _, e := range n.Endpoints {
			wired[e.IPAddresses[0].IP] = e.ContainerID
			hostLinks = append(hostLinks, e.HostIfName)
			if !slices.ContainsFunc(pods, func(p pod) bool { return p.ID == e.ContainerID && p.Name == e.PODName }) || e.PODNameSpace == "" {
				t.Errorf("%s: endpoint of pod %q/%q is no pod's", when, e.PODNameSpace, e.PODName)
			}
		}
	}
	pool := f.IPAM.AddressSpaces["local"].Pools[vnet]
	for a, x := range pool.Addresses {
		if x.InUse {
			leased[a] = x.ID
		}
	}
	if len(pool.Addresses) != azureFree || pool.IfName != "eth0" {
		t.Errorf("%s: azure-vnet-ipam.json tells of %d addresses of %q", when, len(pool.Addresses), pool.IfName)
	}
	if fmt.Sprint(wired) != fmt.Sprint(want) || fmt.Sprint(leased) != fmt.Sprint(want) {
		t.Errorf("%s: the files tell of endpoints %v and addresses %v, want %v", when, wired, leased, want)
	}
	return hostLinks
}

// TestContainerdAzure runs pods on the article's conflist, unchanged, checks the node as the article does, and restores it.
func TestContainerdAzure(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	if otherPlugins() != "" {
		t.Skip("the reference plugins have no azure-vnet")
	}
	cnibox := filepath.Join(root(t), "bin", "cnibox")
	h := newHost(t)
	cloudSim := buildProgram(t, "cmd/cloud-sim")
	h.addFabric(t, cloudSim)
	conf, err := os.ReadFile(filepath.Join(root(t), "examples", "azure.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(h.conf, "10-azure.conflist"), string(conf))
	before, links := h.uplinkState(t), h.linkNames(t)
	cripods := h.startContainerd(t)
	runPods := func(n, attempt int) (pods []pod) {
		t.Helper()
		decode(t, h.run(t, cripods, "-socket", containerdSocket, "run", "-n", fmt.Sprint(n), "-parallel", "3", "-attempt", fmt.Sprint(attempt),
			"-cgroup", h.cgroup, "-hostport", "19000:80"), &pods)
		return pods
	}
	pods := runPods(azurePods, 0)
	words := wantDistinct(t, pods, azurePods, netip.MustParsePrefix(vnet))
	ports := h.run(t, "bridge", "link")
	for _, name := range append(h.wantFiles(t, "with pods", pods), "eth0") {
		if !strings.Contains(ports, ": "+name) {
			t.Errorf("%q is no port of azure0:\n%s", name, ports)
		}
	}
	h.reachAll(t, pods)
	state := h.run(t, cnibox, "state", "--table")
	if got := strings.Count(state, "cloud eth0"); got != azurePods {
		t.Errorf("%d addresses of eth0 in the state, want %d:\n%s", got, azurePods, state)
	}

	one := pods[0]
	h.run(t, cripods, "-socket", containerdSocket, "remove", "-id", one.ID)
	h.wantFiles(t, "without a pod", pods[1:])

	// As after a boot, and the metadata service fails: the last good reply is used.
	h.run(t, cripods, "-socket", containerdSocket, "remove", "-parallel", "3")
	h.run(t, cnibox, "azure-vnet", "restore")
	if after := h.uplinkState(t); after != before {
		t.Errorf("before:\n%safter restore:\n%s", before, after)
	}
	h.run(t, "sh", "-c", "rm -rf /run/cnibox/*-*-*-*-* /run/azure-vnet*.json")
	h.run(t, cloudSim, "break", "500")
	again := runPods(2, 1)
	words = append(words, wantDistinct(t, again, 2, netip.MustParsePrefix(vnet))...)
	h.wantFiles(t, "after a reboot", again)
	h.reachAll(t, again)
	h.run(t, cripods, "-socket", containerdSocket, "remove", "-parallel", "3")
	h.wantFiles(t, "without pods", nil)
	h.run(t, cnibox, "azure-vnet", "restore")
	if after := h.uplinkState(t); after != before {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
	h.run(t, "ip", "netns", "del", fabric)
	h.wantNothingLeft(t, links, words)
}

// reachAll checks that pods reach each other, the node and another machine of the VNet, in both directions, and that a machine of
// the VNet reaches their host ports.
func (h *host) reachAll(t *testing.T, pods []pod) {
	t.Helper()
	outside := []string{"ip", "netns", "exec", fabric}
	for i, p := range pods {
		in := []string{"nsenter", "--net=" + p.Netns}
		ping := func(from []string, to string) {
			t.Helper()
			h.run(t, append(from, "busybox", "ping", "-c1", "-W60", to)...)
		}
		www := filepath.Join(h.dir, p.ID)
		writeFile(t, filepath.Join(www, "word"), p.Name)
		h.run(t, append(in, "busybox", "httpd", "-p", "80", "-h", www)...)
		ping(in, pods[(i+1)%len(pods)].IPs[0])
		ping(in, nodeIP)
		ping(in, vnetOther)
		ping(nil, p.IPs[0])
		ping(outside, p.IPs[0])
		if got := h.word(t, fmt.Sprintf("http://%s:%d", nodeIP, 19000+i), outside...); got != p.Name {
			t.Errorf("host port %d answers %q, want pod %q", 19000+i, got, p.Name)
		}
	}
}
