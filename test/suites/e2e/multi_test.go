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

// multiConf is the runtime's only network, which finds the others. The runtime passes a pod's annotations because the configuration
// declares the capability.
const multiConf = `{
  "cniVersion": "1.0.0",
  "cniVersions": ["0.3.1", "1.0.0", "1.1.0"],
  "name": "multi",
  "plugins": [{
    "type": "multi",
    "capabilities": {"io.kubernetes.cri.pod-annotations": true, "portMappings": true},
    "clusterNetwork": "` + network + `",
    "confDir": %q,
    "networksDir": %q%s
  }]
}
`

// spare is an interface of the host for a pod.
const spare = "spare"

// multiHost is a host whose pods have the networks of the repository's examples.
type multiHost struct {
	*host
	networks string // the directory of the default network and of definitions
	cripods  string
	before   []string
}

// newMultiHost makes a multiHost and starts containerd; more has further keys of the configuration.
func newMultiHost(t *testing.T, more string) *multiHost {
	t.Helper()
	if otherPlugins() != "" {
		t.Skip("the reference plugins have no meta plugin")
	}
	h := &multiHost{host: newHost(t)}
	h.networks = filepath.Join(h.dir, "networks")
	h.addUplink(t)
	h.run(t, "ip", "link", "add", spare, "type", "veth", "peer", "name", "sparewire")
	h.run(t, "ip", "link", "set", "sparewire", "up")
	confDir, networksDir := filepath.Join(h.networks, "net.d"), filepath.Join(h.networks, "multi.d")
	writeFile(t, filepath.Join(h.conf, "10-multi.conflist"), fmt.Sprintf(multiConf, confDir, networksDir, more))
	writeFile(t, filepath.Join(confDir, network+".conflist"), conflist)
	h.copyExamples(t, "multi.net.d", confDir)
	h.copyExamples(t, "multi.d", networksDir)
	h.before = append(h.linkNames(t), "cni-second", "cni-plain") // bridges may stay
	h.cripods = h.startContainerd(t)
	return h
}

// copyExamples copies our example definitions, with the host's interfaces in place of the examples'.
func (h *multiHost) copyExamples(t *testing.T, name, to string) {
	t.Helper()
	from := filepath.Join(root(t), "examples", name)
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err == nil {
			writeFile(t, filepath.Join(to, below), strings.NewReplacer(`"eth0"`, `"`+uplink+`"`, `"eth1"`, `"`+spare+`"`).Replace(string(text)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pods runs pods with an annotation that requests networks.
func (h *multiHost) pods(t *testing.T, n int, networks string, more ...string) []pod {
	t.Helper()
	args := []string{h.cripods, "-socket", containerdSocket, "run", "-n", fmt.Sprint(n), "-parallel", "3", "-cgroup", h.cgroup, "-annotation", "k8s.v1.cni.cncf.io/networks=" + networks}
	var running []pod
	decode(t, h.run(t, append(args, more...)...), &running)
	return running
}

// remove removes some pods, or all.
func (h *multiHost) remove(t *testing.T, ids ...string) {
	t.Helper()
	args := []string{h.cripods, "-socket", containerdSocket, "remove", "-parallel", "3"}
	for _, id := range ids {
		args = append(args, "-id", id)
	}
	h.run(t, args...)
}

// addresses returns those of a pod's interfaces, without the link-local ones.
func (h *multiHost) addresses(t *testing.T, p pod) map[string][]netip.Prefix {
	t.Helper()
	var links []struct {
		IfName string
		Addrs  []struct {
			Family, Local, Scope string
			PrefixLen            int
		} `json:"addr_info"`
	}
	decode(t, h.run(t, "nsenter", "--net="+p.Netns, "ip", "-j", "addr", "show"), &links)
	out := map[string][]netip.Prefix{}
	for _, l := range links {
		if l.IfName == "lo" {
			continue
		}
		out[l.IfName] = nil
		for _, a := range l.Addrs {
			if a.Scope == "global" {
				out[l.IfName] = append(out[l.IfName], netip.MustParsePrefix(fmt.Sprintf("%s/%d", a.Local, a.PrefixLen)))
			}
		}
	}
	return out
}

// wantInterfaces checks that a pod has these interfaces, each with one address of a subnet, or without an address if the subnet is
// empty. It returns the addresses by interface.
func (h *multiHost) wantInterfaces(t *testing.T, p pod, want map[string]string) map[string]string {
	t.Helper()
	have := h.addresses(t, p)
	if len(have) != len(want) {
		t.Errorf("pod %q has interfaces %v, want %v", p.Name, have, want)
	}
	ips := map[string]string{}
	for name, subnet := range want {
		list, ok := have[name]
		switch {
		case !ok:
			t.Errorf("pod %q has no interface %q: %v", p.Name, name, have)
		case subnet == "" && len(list) > 0:
			t.Errorf("pod %q: %q has %v, want no address", p.Name, name, list)
		case subnet != "" && (len(list) != 1 || !netip.MustParsePrefix(subnet).Contains(list[0].Addr())):
			t.Errorf("pod %q: %q has %v, want one of %s", p.Name, name, list, subnet)
		case subnet != "":
			ips[name] = list[0].Addr().String()
		}
	}
	return ips
}

// ping sends one packet from a pod.
func (h *multiHost) ping(t *testing.T, from pod, to string) {
	t.Helper()
	h.run(t, "nsenter", "--net="+from.Netns, "busybox", "ping", "-c1", "-W60", to)
}

// TestContainerdMulti runs pods with a default network and three more, each of another kind, and removes them after their
// definitions were deleted.
func TestContainerdMulti(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	h := newMultiHost(t, "")
	running := h.pods(t, 6, "macvlan-net,bridge-net@second,default/on-disk-net")
	words := wantDistinct(t, running, 6, netip.MustParsePrefix(subnet))
	want := map[string]string{"eth0": subnet, "net1": "192.168.1.192/27", "second": "10.21.0.0/16", "net3": "10.23.0.0/24"}
	all := make([]map[string]string, len(running))
	for i, p := range running {
		all[i] = h.wantInterfaces(t, p, want)
		for _, ip := range all[i] {
			words = append(words, ip)
		}
		if got := h.run(t, "nsenter", "--net="+p.Netns, "cat", "/proc/sys/net/ipv4/conf/second/arp_filter"); got != "1\n" {
			t.Errorf("pod %q: tuning of the second network was not done: %q", p.Name, got)
		}
		if routes := h.run(t, "nsenter", "--net="+p.Netns, "ip", "route", "show", "default"); routes != "default via "+gateway+" dev eth0 \n" {
			t.Errorf("pod %q has default routes\n%s", p.Name, routes)
		}
	}
	for i, p := range running {
		for name, ip := range all[(i+1)%len(all)] {
			if name != "net3" { // ptp leads through the host
				h.ping(t, p, ip)
			}
		}
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(words))); len(distinct) != len(words)-len(running) {
		t.Errorf("addresses are not distinct: %q", words) // each pod's address of eth0 is there twice
	}
	if got := h.holdings(t); got.attachments != 6 || got.others != 18 {
		t.Errorf("%d attachments to the default network and %d others", got.attachments, got.others)
	}

	// A node is cleaned up by removing the configuration first.
	if err := os.RemoveAll(h.networks); err != nil {
		t.Fatal(err)
	}
	h.remove(t)
	h.wantNothingLeft(t, h.before, words)
}

// TestContainerdMultiRequests requests addresses, names and devices with the annotation's long form. Some of the requests are
// impossible.
func TestContainerdMultiRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	h := newMultiHost(t, "")
	one := h.pods(t, 1, `[
		{"name": "bridge-net", "interface": "lan", "ips": ["10.21.7.7"], "mac": "02:00:00:00:77:01"},
		{"name": "host-device-net"},
		{"name": "macvlan-net", "namespace": "default", "io.github.cnibox": {"ip": "none"}},
		{"name": "plain-net"}]`)[0]
	words := []string{one.ID, one.IPs[0], "10.21.7.7"}
	h.wantInterfaces(t, one, map[string]string{"eth0": subnet, "lan": "10.21.7.7/32", "net2": "", "net3": "", "net4": ""})
	if link := h.run(t, "nsenter", "--net="+one.Netns, "ip", "link", "show", "lan"); !strings.Contains(link, "02:00:00:00:77:01") {
		t.Errorf("the pod has not the hardware address that it asked for:\n%s", link)
	}
	if slices.Contains(h.linkNames(t), spare) {
		t.Errorf("%s is with the host still", spare)
	}

	// The pod of an impossible request fails with the request in the error, and leaves nothing.
	for networks, want := range map[string]string{
		"no-such-net": `network "default/no-such-net": network not found in ` + h.networks,
		`[{"name": "plain-net", "ips": ["10.0.0.1"]}]`: "none of its plugins has it in",
		`[{"name": "plain-net", "mac": "nonsense"}]`:   `k8s.v1.cni.cncf.io/networks[0].mac: \"nonsense\" is not a unicast MAC address`,
		"plain-net@eth0":                    "eth0",
		"bridge-net,host-device-net":        spare,
		`[{"name": "macvlan-net"`:           "cannot be read",
		"../../net.d/e2e":                   "is not of the form",
		"kube-system/macvlan-net@x,ptp-net": "network not found",
	} {
		out := h.fail(t, h.cripods, "-socket", containerdSocket, "run", "-n", "1", "-attempt", "1", "-cgroup", h.cgroup, "-annotation", "k8s.v1.cni.cncf.io/networks="+networks)
		if !strings.Contains(out, want) && !strings.Contains(out, strings.ReplaceAll(want, `\"`, `"`)) {
			t.Errorf("%s: want %s in\n%s", networks, want, out)
		}
		if got := h.holdings(t); got.attachments != 1 {
			t.Errorf("%s: %d attachments to the default network", networks, got.attachments)
		}
	}
	h.remove(t)
	if !slices.Contains(h.linkNames(t), spare) {
		t.Errorf("%s did not come back", spare)
	}
	h.wantNothingLeft(t, h.before, words)
}

// fail runs a program that must fail, and returns its output.
func (h *multiHost) fail(t *testing.T, args ...string) string {
	t.Helper()
	out, err := h.command(t.Context(), args...).CombinedOutput()
	if err == nil {
		t.Fatalf("run %q: no error\n%s", args, out)
	}
	return string(out)
}

// TestContainerdMultiAgain makes a pod's next sandbox while the old one lives, as kubelet does when it has lost a pod, and removes
// the old one late: the new one keeps everything.
func TestContainerdMultiAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	const networks = "macvlan-net,bridge-net@second"
	h := newMultiHost(t, "")
	old := h.pods(t, 2, networks)
	again := h.pods(t, 2, networks, "-attempt", "1")
	want := map[string]string{"eth0": subnet, "net1": "192.168.1.192/27", "second": "10.21.0.0/16"}
	words := append(wantDistinct(t, old, 2, netip.MustParsePrefix(subnet)), wantDistinct(t, again, 2, netip.MustParsePrefix(subnet))...)
	h.remove(t, old[0].ID, old[1].ID)
	ips := []map[string]string{h.wantInterfaces(t, again[0], want), h.wantInterfaces(t, again[1], want)}
	for i, p := range again {
		for _, ip := range ips[1-i] {
			h.ping(t, p, ip)
		}
	}
	if got := h.holdings(t); got.attachments != 2 {
		t.Errorf("%d attachments to the default network", got.attachments)
	}
	h.remove(t)
	h.wantNothingLeft(t, h.before, words)
}

// TestContainerdMultiNoServer configures an API server that does not answer: the data of runtime and node is enough.
func TestContainerdMultiNoServer(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it")
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, kubeconfig, `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
`)
	h := newMultiHost(t, fmt.Sprintf(",\n    \"kubeconfig\": %q", kubeconfig))
	running := h.pods(t, 1, "bridge-net")
	words := wantDistinct(t, running, 1, netip.MustParsePrefix(subnet))
	h.wantInterfaces(t, running[0], map[string]string{"eth0": subnet, "net1": "10.21.0.0/16"})
	h.remove(t)
	h.wantNothingLeft(t, h.before, words)
}
