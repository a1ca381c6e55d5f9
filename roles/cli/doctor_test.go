package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/cli/doctor"
)

// broken breaks a node in one way.
type broken struct {
	// id is the check that finds it.
	id string
	// overlay adds an agent. env is set for the scripts.
	overlay bool
	env     string
	script  string
}

// brokenNodes has an entry for each check that a script can break. Those of package doctor are in its own test.
func brokenNodes() []broken {
	conflist := func(file, text string) string {
		return "cat >/etc/cni/net.d/" + file + " <<'EOF'\n" + text + "\nEOF\n"
	}
	ptp := func(name, subnet string) string {
		return `{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + subnet + `"}]]}}]}`
	}
	other := `sed -i 's/{"type": "portmap"/{"type": "other"}, &/' $net` + "\n"
	multi := conflist("50-multi.conflist", `{"cniVersion": "1.0.0", "name": "m", "plugins": [{"type": "multi", "kubeconfig": "/etc/kubeconfig",
  "delegates": [{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}]}]}`)
	kubeconfig := func(user string) string {
		return multi + "cat >/etc/kubeconfig <<'EOF'\n" + `{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
 "clusters": [{"name": "k", "cluster": {"server": "https://192.0.2.1:6443"}}], "users": [{"name": "u", "user": {` + user + `}}]}
EOF
chmod 600 /etc/kubeconfig
`
	}
	cached := func(netns, id string) string {
		return `mkdir -p /var/lib/cni/results
printf '{"kind":"cniCacheV1","containerId":"` + id + `","ifName":"eth0","networkName":"old","netns":"` + netns + `","config":"%s","result":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.78.0.2/24"}]}}' \
	$(printf '{"cniVersion":"0.3.1","name":"old","plugins":[{"type":"old"}]}' | base64 -w0) >/var/lib/cni/results/old-` + id + `-eth0` + "\n"
	}
	return []broken{
		// networks
		{id: "network-none", script: "rm /etc/cni/net.d/*"},
		{id: "network-faulty", script: "echo '{' >/etc/cni/net.d/15-bad.conflist"},
		{id: "network-doubtful", script: conflist("40-lo.conf", `{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}`)},
		{id: "network-hidden", script: "plugin other\n" + conflist("00-other.conflist", `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "other"}]}`)},
		{id: "runtimes-differ", script: "touch $WORK/path/crio; chmod +x $WORK/path/crio; mkdir -p /etc/crio/net.d; mv /etc/cni/net.d/20* /etc/crio/net.d; echo 'network_dir = \"/etc/crio/net.d\"' >/etc/crio/crio.conf"},
		{id: "podman-netavark", script: "touch $WORK/path/podman; chmod +x $WORK/path/podman; mkdir /etc/containers; echo 'network_backend = \"netavark\"' >/etc/containers/containers.conf"},
		{id: "bridge-shared", script: "sed 's/10.78/10.77/; s/\"net\"/\"two\"/' $net >/etc/cni/net.d/11-two.conflist"},
		{id: "ranges-overlap", script: conflist("40-x.conflist", ptp("x", "10.78.0.128/25"))},
		{id: "range-on-node", script: "ip addr add 10.78.5.1/16 dev eth0"},
		{id: "range-on-node", script: "ip route add 10.78.0.128/25 via 192.0.2.9"},
		{id: "range-of-services", script: "mkdir -p /etc/kubernetes/manifests; echo '    - --service-cluster-ip-range=10.78.0.0/16' >/etc/kubernetes/manifests/kube-apiserver.yaml"},
		{id: "kubeconfig-unusable", script: multi},
		{id: "kubeconfig-expired", script: kubeconfig(`"token": "e30.eyJleHAiOjF9.x"`)},
		{id: "kubeconfig-readable", script: kubeconfig(`"token": "x"`) + "chmod 644 /etc/kubeconfig"},
		// plugins
		{id: "plugin-missing", script: "rm /opt/cni/bin/portmap"},
		{id: "plugin-dangling", script: "ln -sf /nowhere /opt/cni/bin/portmap"},
		{id: "plugin-replaced", script: "rm /opt/cni/bin/portmap; plugin portmap"},
		{id: "plugin-foreign", script: "rm /opt/cni/bin/*; for p in bridge host-local firewall; do ln -s $SELF /opt/cni/bin/$p; done; plugin portmap"},
		{id: "plugin-version", script: "rm /opt/cni/bin/portmap; cp $SELF /opt/cni/bin/portmap"},
		{id: "plugin-mode", script: other + "plugin other '' 644"},
		{id: "plugin-writable", script: other + "plugin other '' 777"},
		// state
		{id: "unreadable", script: "mkdir -p /var/lib/cni; touch /var/lib/cni/results"},
		{id: "state-locked", script: "exec 9>>$(echo /run/cnibox/*/node.db); flock 9"},
		{id: "state-damaged", script: "f=$(echo /run/cnibox/*/node.db); head -c 5000 /dev/urandom >$f"},
		{id: "state-mode", script: "chmod 666 /run/cnibox/*/node.db"},
		{id: "state-mode", script: "chmod 770 /run/cnibox"},
		{id: "state-unreadable", script: "rm -rf /var/lib/cnibox; touch /var/lib/cnibox; chmod 600 /var/lib/cnibox"},
		{id: "state-lost", script: "rm /run/cnibox/*/node.db"},
		{id: "disk", script: "rm -rf /var/lib/cnibox; mkdir -m 700 /var/lib/cnibox; mount -t tmpfs -o size=40k,mode=700 none /var/lib/cnibox"},
		{id: "disk", script: "mkdir -p -m 700 /var/lib/cnibox; mount -t tmpfs -o ro,mode=700 none /var/lib/cnibox"},
		{id: "cache-damaged", script: "mkdir -p /var/lib/cni/results; touch /var/lib/cni/results/net-x-eth0"},
		{id: "cache-stale", script: cached("/run/ns/gone", "z")},
		// attachments
		{id: "container-ended", script: "umount /run/ns/p1; rm /run/ns/p1; while [ -n \"$(veth p1 net)\" ]; do :; done"},
		{id: "namespace-gone", script: "touch /run/kept; mount --bind /run/ns/p1 /run/kept; umount /run/ns/p1; rm /run/ns/p1"},
		{id: "bridge-missing", script: "ip link del br78"},
		{id: "bridge-changed", script: "ip link set br78 down"},
		{id: "bridge-address", script: "ip addr flush dev br78"},
		{id: "link-missing", script: "ip link del $(veth p1 net)"},
		{id: "link-changed", script: "in_pod p1 ip link set eth0 down"},
		{id: "link-changed", script: "ip link set $(veth p1 net) nomaster"},
		{id: "address-missing", script: "in_pod p1 ip addr flush dev eth0"},
		{id: "route-missing", script: "in_pod p1 ip route del default"},
		{id: "setting-changed", script: "echo 1 >/proc/sys/net/ipv6/conf/br78/accept_ra"},
		{id: "masquerade-missing", script: "nft flush set inet cnibox masq4"},
		{id: "hostport-missing", script: "nft flush map inet cnibox portmap4"},
		{id: "rules-flushed", script: "nft flush ruleset"},
		{id: "check-failed", script: "sed 's/10.78/10.77/; s/br78/br77/; s/\"net\"/\"two\"/; s/\"same-bridge\"}/&, {\"type\": \"other\"}/' $net >$WORK/two.conflist; ln -s cnibox /opt/cni/bin/tuning; plugin other 'exec /opt/cni/bin/tuning'; pod $WORK/two.conflist p5; plugin other 'exit 1'"},
		{id: "call-killed", script: "product state export >$WORK/state; sed '0,/\"state\": \"done\"/s//\"state\": \"pending\"/' $WORK/state | product state import - --replace >$WORK/out"},
		{id: "interface-unrecorded", script: "ip link add veth0 type veth peer name veth1; ip link set veth0 alias 'cnibox:0123456789abcdef net/eth0/lost'"},
		{id: "lease-leaked", script: "touch /run/ns/p6; unshare --net=/run/ns/p6 sh -c :; CNI_COMMAND=ADD CNI_CONTAINERID=p6 CNI_NETNS=/run/ns/p6 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/host-local <<'EOF' >$WORK/out\n" +
			`{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}]]}}` + "\nEOF\numount /run/ns/p6; rm /run/ns/p6"},
		{id: "address-twice", script: cached("/run/ns/p2", "z")},
		{id: "address-of-node", script: "ip addr add 10.78.0.2/32 dev lo"},
		{id: "range-full", script: `sed -i 's,"10.78.0.0/24",&\, "rangeEnd": "10.78.0.3",' $net`},
		// the node
		{id: "forwarding4", script: "echo 0 >/proc/sys/net/ipv4/ip_forward"},
		{id: "forwarding6", script: conflist("40-six.conflist", `{"cniVersion": "1.0.0", "name": "six", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:6::/64"}]]}}]}`) +
			"pod /etc/cni/net.d/40-six.conflist p6; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding"},
		{id: "forwarding-link", script: "echo 0 >/proc/sys/net/ipv4/conf/br78/forwarding"},
		{id: "ipv6-disabled", script: conflist("40-six.conflist", ptp("six", "fd00:6::/64")) + "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6"},
		{id: "bridge-calls", script: "echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables; nft add table ip kube-proxy"},
		{id: "forward-policy", script: "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'"},
		{id: "forward-chain", script: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; policy drop; }'"},
		{id: "forward-rule", script: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; }; add rule inet fw f ip saddr 10.78.0.0/24 counter drop'"},
		{id: "forward-rule", script: "nft 'add table ip fw; add chain ip fw g; add chain ip fw f { type filter hook forward priority 0; }; add rule ip fw f jump g; add rule ip fw g oifname br78 reject'"},
		{id: "bridge-kind", script: conflist("40-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge", "bridge": "wire"}]}`)},
		{id: "bridge-taken", script: "ip addr add 10.99.0.1/24 dev br78"},
		{id: "dhcp-daemon", script: conflist("40-d.conflist", `{"cniVersion": "1.0.0", "name": "d", "plugins": [{"type": "macvlan", "master": "eth0", "ipam": {"type": "dhcp"}}]}`)},
		// the overlay
		{id: "rp-filter", overlay: true, script: "echo 1 >/proc/sys/net/ipv4/conf/flannel.1/rp_filter"},
		{id: "agent-down", overlay: true, script: "trap - EXIT; kill -9 $agent; wait $agent || true"},
		{id: "agent-unready", overlay: true, env: "NOCONFIG=1"},
		{id: "agent-file", overlay: true, script: "flanneld; echo '{' >/run/cnibox/overlay.json"},
		{id: "registry-empty", overlay: true, env: "ALONE=1"},
		{id: "tunnel-gap", overlay: true, script: "flanneld; ip neigh flush dev flannel.1 nud permanent"},
		{id: "tunnel-gap", overlay: true, script: "flanneld; bridge fdb del 4e:da:09:c2:00:02 dev flannel.1 dst 192.0.2.2"},
		{id: "tunnel-missing", overlay: true, script: "flanneld; ip addr flush dev flannel.1"},
		{id: "underlay-down", overlay: true, script: "ip link set eth0 down"},
		{id: "mtu-tunnel", overlay: true, script: "flanneld; ip link set eth0 mtu 1400"},
		{id: "mtu-pod", overlay: true, script: "flanneld; ip link set flannel.1 mtu 1400"},
		{id: "subnet-changed", overlay: true, script: "flanneld; sed -i 's/^FLANNEL_SUBNET=.*/FLANNEL_SUBNET=10.244.99.1\\/24/' /run/flannel/subnet.env"},
	}
}

// testNode is a node of a script, in namespaces of its own.
type testNode struct {
	t       *testing.T
	scripts []string
	env     string
}

func newTestNode(t *testing.T, overlay bool) *testNode {
	t.Helper()
	n := &testNode{t: t}
	files := []string{"node.sh"}
	if overlay {
		files = append(files, "overlay.sh")
	}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join("testdata/doctor", name))
		if err != nil {
			t.Fatal(err)
		}
		n.scripts = append(n.scripts, string(b))
	}
	return n
}

// run runs a script on the node and returns its standard output.
func (n *testNode) run(script string) string {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	c := exec.Command("unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", strings.Join(append(n.scripts, script), "\n"))
	var errs bytes.Buffer
	c.Stderr = &errs
	// The PATH of this test has roles of cnibox, such as bridge, which is also iproute2's program.
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "WORK=" + n.t.TempDir(), "SELF=" + self, "CLITEST_INSIDE=1", n.env}
	out, err := c.Output()
	if err != nil {
		n.t.Fatalf("%v\n%s%s", err, out, &errs)
	}
	return string(out)
}

// diagnose returns the report of the node after a script.
func (n *testNode) diagnose(script string) *doctor.Report {
	n.t.Helper()
	var r doctor.Report
	out := n.run(script + "\nproduct doctor --json || true\n")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	return &r
}

// ids returns the checks with findings.
func ids(r *doctor.Report) (all []string) {
	for _, f := range r.Findings {
		if !slices.Contains(all, f.ID) {
			all = append(all, f.ID)
		}
	}
	return all
}

// TestDoctor breaks a node in each way. Doctor must find this and nothing else.
func TestDoctor(t *testing.T) {
	for _, b := range brokenNodes() {
		t.Run(b.id, func(t *testing.T) {
			n := newTestNode(t, b.overlay)
			n.env = b.env
			r := n.diagnose(b.script)
			if have := ids(r); !slices.Equal(have, []string{b.id}) {
				t.Errorf("findings %v\n%s", have, text(t, r))
			}
			for _, f := range r.Findings {
				if f.Object == "" || f.Evidence == "" || f.Fix == "" {
					t.Errorf("incomplete finding %+v", f)
				}
				checkCommand(t, f.Fix)
			}
		})
	}
}

// TestDoctorHealthy: doctor finds nothing on a healthy node, and names the used networks.
func TestDoctorHealthy(t *testing.T) {
	n := newTestNode(t, true)
	out := n.run("product doctor")
	if !strings.Contains(out, "containerd uses net of /etc/cni/net.d/10-net.conflist: the first file of /etc/cni/net.d\n") || !strings.Contains(out, " checks passed\n") {
		t.Errorf("%s", out)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkCommand checks that a command of cnibox has existing verbs and flags.
func checkCommand(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if words[0] != "cnibox" {
		return
	}
	p := Process{Table: all.Table()}
	cmds := p.app().Commands
	var cmd *cli.Command
	for _, w := range words[1:] {
		if next := find(cmds, w); next != nil {
			cmd, cmds = next, next.Subcommands
			continue
		}
		name, isFlag := strings.CutPrefix(w, "--")
		if cmd == nil || isFlag && !slices.ContainsFunc(cmd.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }) {
			t.Errorf("command %q: %q is unknown", command, w)
		}
	}
}
