package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// outside is a namespace with a link to the host, and the host's address on it.
const (
	outside     = "outside"
	hostAddress = "192.0.2.1"
)

// addOutside makes the namespace and the link.
func (h *host) addOutside(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"netns", "add", outside},
		{"link", "add", uplink, "up", "type", "veth", "peer", "name", "eth0", "netns", outside},
		{"addr", "add", hostAddress + "/24", "dev", uplink},
		{"-n", outside, "addr", "add", "192.0.2.2/24", "dev", "eth0"},
		{"-n", outside, "link", "set", "eth0", "up"},
		{"-n", outside, "route", "add", "default", "via", hostAddress},
	} {
		h.run(t, append([]string{"ip"}, args...)...)
	}
}

// dropOutside removes them.
func (h *host) dropOutside(t *testing.T) {
	t.Helper()
	h.run(t, "ip", "link", "del", uplink)
	h.run(t, "ip", "netns", "del", outside)
}

// awaitWeb waits until a container's HTTP server listens on the last one of its ports.
func (p podman) awaitWeb(t *testing.T, name string, port int) {
	t.Helper()
	p.run(t, "exec", name, "sh", "-c", fmt.Sprintf("until wget -q -O /dev/null http://127.0.0.1:%d/word; do :; done", port))
}

// web is a container's command: an HTTP server on three ports that returns its name.
func web(name string) string {
	return "echo I am " + name + " >/tmp/word; for p in 80 81 82; do httpd -p $p -h /tmp; done; exec sleep 100000"
}

// word returns the answer of a URL, requested by a program of the host; from begins its command line.
func (h *host) word(t *testing.T, url string, from ...string) string {
	t.Helper()
	return h.run(t, append(from, "busybox", "wget", "-qO-", url+"/word")...)
}

// TestPodmanPublished runs containers with published ports on a network as podman writes it: bridge, portmap, firewall and tuning.
func TestPodmanPublished(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	h := newHost(t)
	h.addOutside(t)
	p := newPodman(t, h)
	p.run(t, "network", "create", "--subnet", subnet, "--gateway", gateway, "--opt", "mtu=1400", network)
	conf := h.run(t, "sh", "-c", "cat "+h.conf+"/*.conflist")
	for _, typ := range []string{"bridge", "portmap", "firewall", "tuning"} {
		if !strings.Contains(conf, `"type": "`+typ+`"`) {
			t.Fatalf("podman wrote a list without %s:\n%s", typ, conf)
		}
	}
	before := append(h.linkNames(t), "cni-podman1") // the bridge, which may stay
	p.run(t, "load", "--quiet", "--input", writeImage(t, "localhost/box:1", "/bin/sh"))
	const address, mac = "10.111.0.77", "02:00:00:00:77:01"
	runOne := func(name string, more ...string) container {
		args := append([]string{"run", "--detach", "--name", name, "--network", network, "--cap-add", "NET_RAW", "--cgroup-parent", h.cgroup}, more...)
		p.run(t, append(args, "localhost/box:1", "-c", web(name))...)
		p.awaitWeb(t, name, 82)
		var c []container
		decode(t, p.run(t, "inspect", name), &c)
		return c[0]
	}
	one := runOne("one", "--ip", address, "--mac-address", mac, "-p", "18080:80", "-p", "18090-18092:80-82", "-p", "127.0.0.1:18081:81", "-p", "18053:53/udp")
	two := runOne("two", "-p", hostAddress+":18082:82")
	if got := one.NetworkSettings.Networks[network].IPAddress; got != address {
		t.Errorf("container one has %s, want %s", got, address)
	}
	if link := p.run(t, "exec", "one", "ip", "link", "show", "eth0"); !strings.Contains(link, mac) || !strings.Contains(link, "mtu 1400") {
		t.Errorf("container one has not the MAC and MTU asked for:\n%s", link)
	}
	inside := []string{"ip", "netns", "exec", outside}
	see := func(when string) {
		t.Helper()
		for _, tc := range []struct {
			url, want string
			from      []string
		}{
			{hostAddress + ":18080", "one", inside},
			{hostAddress + ":18080", "one", nil},
			{"127.0.0.1:18080", "one", nil},
			{hostAddress + ":18090", "one", inside},
			{hostAddress + ":18092", "one", inside},
			{"127.0.0.1:18081", "one", nil},
			{hostAddress + ":18082", "two", inside},
			{hostAddress + ":18082", "two", nil},
		} {
			if got := h.word(t, "http://"+tc.url, tc.from...); got != "I am "+tc.want+"\n" {
				t.Errorf("%s: %s from %q answers %q, want container %s", when, tc.url, tc.from, got, tc.want)
			}
		}
		for _, name := range []string{"one", "two"} { // the first one's port by way of the host: a hairpin for it
			if got := p.run(t, "exec", name, "wget", "-qO-", "http://"+hostAddress+":18080/word"); got != "I am one\n" {
				t.Errorf("%s: container %s got %q from the published port", when, name, got)
			}
		}
	}
	see("after run")
	if otherPlugins() == "" { // what the reference's firewall adds again a reload doubles
		p.run(t, "network", "reload", "one")
		see("after network reload")
	}
	p.run(t, "stop", "--time", "0", "two")
	p.run(t, "start", "two")
	p.awaitWeb(t, "two", 82)
	see("after stop and start")
	var again []container
	decode(t, p.run(t, "inspect", "two"), &again)
	words := []string{one.ID, two.ID, address, two.NetworkSettings.Networks[network].IPAddress, again[0].NetworkSettings.Networks[network].IPAddress}
	p.run(t, "rm", "--force", "--time", "0", "one", "two")
	h.dropOutside(t)
	h.wantNothingLeft(t, before, words)
	p.run(t, "network", "prune", "--force")
	if left := h.run(t, "find", h.conf, "-name", "*.conflist"); left != "" {
		t.Errorf("after network prune: %s", left)
	}
}

// TestPodmanIsolate runs containers on two networks that podman isolates from each other, and on one that it does not isolate.
func TestPodmanIsolate(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	h := newHost(t)
	p := newPodman(t, h)
	p.run(t, "load", "--quiet", "--input", writeImage(t, "localhost/box:1", "/bin/sh"))
	nets := []struct{ name, subnet string }{{"walled0", "10.112.0.0/24"}, {"walled1", "10.112.1.0/24"}}
	ips := map[string]string{}
	for _, n := range nets {
		p.run(t, "network", "create", "--subnet", n.subnet, "--opt", "isolate=true", n.name)
		for _, c := range []string{"a", "b"} {
			name := n.name + c
			p.run(t, "run", "--detach", "--name", name, "--network", n.name, "--cap-add", "NET_RAW", "--cgroup-parent", h.cgroup, "localhost/box:1", "-c", web(name))
			var c []container
			decode(t, p.run(t, "inspect", name), &c)
			ips[name] = c[0].NetworkSettings.Networks[n.name].IPAddress
		}
	}
	for from := range ips {
		for to := range ips {
			want, wait := "not reached\n", "1"
			if from[:len("walled0")] == to[:len("walled0")] {
				want, wait = "reached\n", "60"
			}
			got := p.run(t, "exec", from, "sh", "-c", "ping -c1 -W"+wait+" "+ips[to]+" >/dev/null && echo reached || echo not reached")
			if got != want {
				t.Errorf("ping from %s to %s: %swant: %s", from, to, got, want)
			}
		}
	}
	p.run(t, "rm", "--force", "--time", "0", "--all")
}

// nerdctlConf is a list in the form that nerdctl writes.
const nerdctlConf = `{
  "cniVersion": "1.0.0",
  "name": %q,
  "nerdctlID": "17f29b073143d8cd97b5bbe492bdeffec1c5fee55cc1fe2112c8b9335f8b6121",
  "nerdctlLabels": {"nerdctl/default-network": "true"},
  "plugins": [
    {"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "ipam": {"ranges": [[{"gateway": %q, "subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}], "type": "host-local"}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall", "ingressPolicy": "same-bridge"},
    {"type": "tuning"}
  ]
}
`

// TestContainerdHostPort runs pods with host ports on a list as nerdctl writes it.
func TestContainerdHostPort(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	const pods = 4
	h := newHost(t)
	h.addOutside(t)
	writeFile(t, filepath.Join(h.conf, "10-"+network+".conflist"), fmt.Sprintf(nerdctlConf, network, bridge, gateway, subnet))
	before := h.linkNames(t)
	cripods := h.startContainerd(t)
	var running []pod
	decode(t, h.run(t, cripods, "-socket", containerdSocket, "run", "-n", fmt.Sprint(pods), "-parallel", "2", "-cgroup", h.cgroup, "-hostport", "19000:80"), &running)
	var words []string
	for _, pod := range running {
		words = append(words, pod.ID, pod.IPs[0])
		www := filepath.Join(h.dir, pod.Name)
		writeFile(t, filepath.Join(www, "word"), pod.Name)
		h.run(t, "nsenter", "--net="+pod.Netns, "busybox", "httpd", "-p", "80", "-h", www)
	}
	seen := map[string]bool{}
	for i := range pods {
		seen[h.word(t, fmt.Sprintf("http://%s:%d", hostAddress, 19000+i), "ip", "netns", "exec", outside)] = true
	}
	if len(seen) != pods {
		t.Errorf("%d host ports lead to %d pods", pods, len(seen))
	}
	var removed []string
	decode(t, h.run(t, cripods, "-socket", containerdSocket, "remove", "-parallel", "2"), &removed)
	h.dropOutside(t)
	h.wantNothingLeft(t, before, words)
}
