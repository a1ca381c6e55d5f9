package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// uplink is an interface of the host for plugins that need a master. Its peer exists only to give it a carrier.
const uplink = "uplink"

// addUplink makes the uplink.
func (h *host) addUplink(t *testing.T) {
	t.Helper()
	h.run(t, "ip", "link", "add", uplink, "type", "veth", "peer", "name", "wire")
	for _, l := range []string{uplink, "wire"} {
		h.run(t, "ip", "link", "set", l, "up")
	}
}

// writeExample installs one of the repository's examples as the host's only network, under the name that the tests use. It returns
// the IPv4 subnet.
func (h *host) writeExample(t *testing.T, name string, change func(plugin map[string]any)) netip.Prefix {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "examples", name+".conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		CNIVersion  string           `json:"cniVersion"`
		CNIVersions []string         `json:"cniVersions"`
		Name        string           `json:"name"`
		Plugins     []map[string]any `json:"plugins"`
	}
	decode(t, string(text), &list)
	list.Name = network
	if change != nil {
		change(list.Plugins[0])
	}
	writeFile(t, filepath.Join(h.conf, "10-"+network+".conflist"), string(jsonOf(t, list)))
	var ipam struct {
		IPAM struct {
			Ranges [][]struct{ Subnet netip.Prefix }
		}
	}
	decode(t, string(jsonOf(t, list.Plugins[0])), &ipam)
	return ipam.IPAM.Ranges[0][0].Subnet
}

// TestContainerdNetworks runs pods on the examples of plugins other than bridge.
func TestContainerdNetworks(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	const pods = 6
	for _, tc := range []struct {
		example string
		change  func(map[string]any)
		routed  bool // the host reaches its pods
	}{
		{example: "ptp", routed: true},
		{example: "macvlan", change: func(plugin map[string]any) { plugin["master"] = uplink }},
	} {
		t.Run(tc.example, func(t *testing.T) {
			h := newHost(t)
			h.addUplink(t)
			subnet := h.writeExample(t, tc.example, tc.change)
			before := h.linkNames(t)
			cripods := h.startContainerd(t)
			var running []pod
			decode(t, h.run(t, cripods, "-socket", containerdSocket, "run", "-n", fmt.Sprint(pods), "-parallel", "3", "-cgroup", h.cgroup), &running)
			words := wantDistinct(t, running, pods, subnet)
			if got := h.holdings(t); got.attachments != pods {
				t.Errorf("%d attachments for %d pods", got.attachments, pods)
			}
			for i, p := range running {
				for _, ip := range running[(i+1)%len(running)].IPs {
					h.run(t, "nsenter", "--net="+p.Netns, "busybox", "ping", "-c1", "-W60", ip)
				}
				for _, ip := range p.IPs {
					if tc.routed {
						h.run(t, "busybox", "ping", "-c1", "-W60", ip)
					}
				}
			}
			var removed []string
			decode(t, h.run(t, cripods, "-socket", containerdSocket, "remove", "-parallel", "3"), &removed)
			if len(removed) != pods {
				t.Errorf("%d pods were removed, want %d", len(removed), pods)
			}
			h.wantNothingLeft(t, before, words)
		})
	}
}

// TestPodmanMacvlan runs containers on the networks that podman itself writes.
func TestPodmanMacvlan(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	for _, tc := range []struct {
		name   string
		create []string
		ipam   string
	}{
		{"host-local", []string{"--subnet", subnet, "--gateway", gateway}, "host-local"},
		{"dhcp", nil, "dhcp"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.addUplink(t)
			p := newPodman(t, h)
			p.run(t, append(append([]string{"network", "create", "--driver", "macvlan", "--opt", "parent=" + uplink}, tc.create...), network)...)
			if conf := h.run(t, "sh", "-c", "cat "+h.conf+"/*.conflist"); !strings.Contains(conf, `"type": "`+tc.ipam+`"`) {
				t.Fatalf("podman wrote another configuration:\n%s", conf)
			}
			if tc.ipam == "dhcp" {
				h.startDHCP(t)
			}
			before := h.linkNames(t)
			p.run(t, "load", "--quiet", "--input", writeImage(t, "localhost/box:1", "/bin/sh"))
			var words, ips []string
			for _, name := range []string{"one", "two"} {
				p.run(t, "run", "--detach", "--name", name, "--network", network, "--cap-add", "NET_RAW", "--cgroup-parent", h.cgroup, "localhost/box:1",
					"-c", "exec sleep 100000")
				var c []container
				decode(t, p.run(t, "inspect", name), &c)
				ip := c[0].NetworkSettings.Networks[network].IPAddress
				if a, err := netip.ParseAddr(ip); err != nil || !netip.MustParsePrefix(subnet).Contains(a) {
					t.Fatalf("container %q has address %q", name, ip)
				}
				ips = append(ips, ip)
				words = append(words, ip, c[0].ID)
			}
			if got := h.holdings(t); got.attachments != 2 {
				t.Errorf("%d attachments for 2 containers", got.attachments)
			}
			for i, name := range []string{"one", "two"} {
				p.run(t, "exec", name, "ping", "-c1", "-W60", ips[1-i])
			}
			p.run(t, "rm", "--force", "--time", "0", "one", "two")
			h.wantNothingLeft(t, before, words)
		})
	}
}

const udhcpdConf = `interface wire
start 10.111.0.50
end 10.111.0.99
opt subnet 255.255.255.0
opt router 10.111.0.1
opt lease 600
lease_file /run/udhcpd.leases
pidfile /run/udhcpd.pid
`

// startDHCP starts a DHCP server behind the uplink, and cnibox's daemon.
func (h *host) startDHCP(t *testing.T) {
	t.Helper()
	conf := filepath.Join(h.dir, "udhcpd.conf")
	writeFile(t, conf, udhcpdConf)
	h.run(t, "ip", "addr", "add", gateway+"/24", "dev", "wire")
	h.run(t, "sh", "-c", ": >/run/udhcpd.leases")
	h.start(t, "busybox", "udhcpd", "-f", conf)
	h.start(t, filepath.Join(h.bin, "dhcp"), "daemon")
	h.run(t, "sh", "-c", "until [ -S /run/cni/dhcp.sock ]; do :; done")
}
