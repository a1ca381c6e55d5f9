package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/tunnel"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/view"
	"github.com/cnibox/cnibox/store"
)

// broken breaks a node in one way.
type broken struct {
	// id is the check that finds it.
	id string
	// overlay adds an agent. env is set for the scripts.
	overlay bool
	env     string
	script  string
	// fix is a part of the command that mends it.
	fix string
}

// jumbo attaches a pod to a ptp network with some keys and routes.
func jumbo(keys, routes string) string {
	return `cat >/etc/cni/net.d/40-jumbo.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "jumbo", "plugins": [{"type": "ptp", ` + keys + `, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [` + routes + `]}}]}
EOF
pod /etc/cni/net.d/40-jumbo.conflist p6
`
}

// TestSmallerUplink: pods with a larger MTU than the node's interface are no fault if their packets stay, or if the segment size is told.
// What doctor says is a remedy.
func TestSmallerUplink(t *testing.T) {
	const masq, routed = `"mtu": 9000, "ipMasq": true`, `{"dst": "0.0.0.0/0"}`
	for name, script := range map[string]string{
		"not masqueraded":      jumbo(`"mtu": 9000`, routed),
		"no default route":     jumbo(masq, `{"dst": "10.0.0.0/8"}`),
		"MTU of the route":     jumbo(masq, `{"dst": "0.0.0.0/0", "mtu": 1500}`),
		"MTU in the pod":       jumbo(masq, routed) + "in_pod p6 ip route change default via 10.66.0.1 dev eth0 mtu 1500",
		"segment size":         jumbo(masq, `{"dst": "0.0.0.0/0", "advmss": 1460}`),
		"larger uplink":        "ip link set wire mtu 9000; ip link set eth0 mtu 9000; " + jumbo(masq, routed),
		"another uplink":       "ip link add big0 mtu 9000 type veth peer name big1 mtu 9000; ip link set big0 up; ip link set big1 up; ip addr add 203.0.113.1/24 dev big0; ip route add default via 203.0.113.9 table 9; ip rule add from 10.66.0.0/24 table 9; until ip link show big0 | grep -q 'state UP'; do :; done; " + jumbo(masq, routed),
		"nftables":             jumbo(masq, routed) + "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; }; add rule inet fw f oifname eth0 tcp flags syn tcp option maxseg size set rt mtu'",
		"nftables with a size": jumbo(masq, routed) + "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; }; add chain inet fw g; add rule inet fw f jump g; add rule inet fw g tcp flags syn / syn,rst tcp option maxseg size > 1460 tcp option maxseg size set 1460'",
		"iptables":             jumbo(masq, routed) + "iptables -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
		"the remedy":           jumbo(masq, routed) + "product del /etc/cni/net.d/40-jumbo.conflist p6 /run/ns/p6; sed -i 's/9000/1500/' /etc/cni/net.d/40-jumbo.conflist; product add /etc/cni/net.d/40-jumbo.conflist p6 /run/ns/p6 >/dev/null",
	} {
		t.Run(name, func(t *testing.T) {
			if r := newTestNode(t, false).diagnose(script); len(r.Findings) > 0 {
				t.Error(text(t, r))
			}
		})
	}
}

// brokenNodes has an entry for each check that a script can break. For the others see brokenFacts.
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
	const routed = `{"dst": "0.0.0.0/0"}`
	return []broken{
		// networks
		{id: "network-none", script: "rm /etc/cni/net.d/*"},
		{id: "network-none", script: "touch $WORK/path/podman; chmod +x $WORK/path/podman; mkdir /etc/containers; printf '[network]\nnetwork_backend = \"cni\"\ndefault_network = \"nope\"\n' >/etc/containers/containers.conf"},
		{id: "network-faulty", script: "echo '{' >/etc/cni/net.d/15-bad.conflist"},
		{id: "network-faulty", script: conflist("40-podman.conflist", `{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "chain", "plugins": [
  {"type": "ptp", "bridge": "cni-podman1", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/24"}]]}}, {"type": "firewall"}]}]}`), fix: "cnibox fuse --split --write /etc/cni/net.d/40-podman.conflist"},
		{id: "network-hidden", script: "plugin other\n" + conflist("00-other.conflist", `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "other"}]}`)},
		{id: "podman-netavark", script: "rm $WORK/path/containerd; touch $WORK/path/podman; chmod +x $WORK/path/podman; mkdir /etc/containers; echo 'network_backend = \"netavark\"' >/etc/containers/containers.conf"},
		{id: "bridge-shared", script: "sed 's/10.78/10.77/; s/\"net\"/\"two\"/' $net >/etc/cni/net.d/11-two.conflist"},
		{id: "ranges-overlap", script: conflist("40-x.conflist", ptp("x", "10.78.0.128/25"))},
		{id: "range-on-node", script: "ip addr add 10.78.5.1/16 dev eth0"},
		{id: "range-on-node", script: "ip route add 10.78.0.128/25 via 192.0.2.9"},
		{id: "range-of-services", script: "mkdir -p /etc/kubernetes/manifests; echo '    - --service-cluster-ip-range=10.78.0.0/16' >/etc/kubernetes/manifests/kube-apiserver.yaml"},
		{id: "kubeconfig-unusable", script: multi},
		{id: "kubeconfig-unusable", script: "mkdir -p /etc/default; echo FLANNELD_KUBECONFIG_FILE=/etc/missing >/etc/default/cnibox-agent"},
		{id: "kubeconfig-expired", script: kubeconfig(`"token": "e30.eyJleHAiOjF9.x"`)},
		// plugins
		{id: "plugin-missing", script: "rm /opt/cni/bin/portmap"},
		{id: "plugin-dangling", script: "ln -sf /nowhere /opt/cni/bin/portmap"},
		{id: "plugin-replaced", script: "rm /opt/cni/bin/portmap; plugin portmap"},
		{id: "plugin-foreign", script: "rm /opt/cni/bin/*; for p in bridge host-local firewall; do ln -s $SELF /opt/cni/bin/$p; done; plugin portmap"},
		{id: "plugin-foreign", script: "rm /opt/cni/bin/*; plugin portmap; ln -s $SELF /opt/cni/bin/cnibox; for p in bridge host-local firewall; do ln -s cnibox /opt/cni/bin/$p; done", fix: "cnibox install --force"},
		{id: "plugin-writable", script: other + "plugin other; chmod 1777 /opt/cni/bin", fix: "chmod go-w /opt/cni/bin"},
		{id: "plugin-version", script: "rm /opt/cni/bin/portmap; cp $SELF /opt/cni/bin/portmap"},
		{id: "plugin-mode", script: other + "plugin other '' 644"},
		{id: "plugin-writable", script: other + "plugin other '' 777"},
		// state
		{id: "unreadable", script: "mkdir -p /var/lib/cni; touch /var/lib/cni/results"},
		{id: "state-locked", script: "exec 9>>$(echo /run/cnibox/*/node.db); flock 9"},
		{id: "state-locked", overlay: true, script: "until [ -e /var/lib/cnibox/keep.db ]; do :; done; flanneld; exec 9>>/var/lib/cnibox/keep.db; flock 9"},
		{id: "state-damaged", overlay: true, script: "until [ -e /var/lib/cnibox/keep.db ]; do :; done; flanneld; f=/var/lib/cnibox/keep.db; head -c 5000 /dev/urandom >$f"},
		{id: "state-damaged", script: "f=$(echo /run/cnibox/*/node.db); head -c 5000 /dev/urandom >$f"},
		{id: "state-mode", script: "chmod 666 /run/cnibox/*/node.db"},
		{id: "state-mode", script: "chmod 770 /run/cnibox"},
		{id: "state-mode", script: "mv /run/cnibox /run/elsewhere; ln -s elsewhere /run/cnibox", fix: "rm /run/cnibox && mv /run/elsewhere /run/cnibox"},
		{id: "state-mode", script: "mv /run/cnibox '/run/else$where'; ln -s 'else$where' /run/cnibox", fix: "rm /run/cnibox"},
		{id: "state-lost", script: "rm /run/cnibox/*/node.db"},
		{id: "disk", script: "rm -rf /var/lib/cnibox; mkdir -m 700 /var/lib/cnibox; mount -t tmpfs -o size=40k,mode=700 none /var/lib/cnibox"},
		{id: "disk", script: "mkdir -p -m 700 /var/lib/cnibox; mount -t tmpfs -o ro,mode=700 none /var/lib/cnibox", fix: "-T /var/lib/cnibox"},
		{id: "disk", script: "mount -o remount,ro /run", fix: "-T /run/cnibox"},
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
		{id: "link-changed", script: "ip link set $(veth p1 net) mtu 1200", fix: " mtu 1500"},
		{id: "address-missing", script: "in_pod p1 ip addr flush dev eth0"},
		{id: "ipv6-disabled", script: conflist("40-six.conflist", `{"cniVersion": "1.0.0", "name": "six", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:6::/64"}]]}}]}`) +
			"echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; pod /etc/cni/net.d/40-six.conflist p6; in_pod p6 sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1", fix: "nsenter --net="},
		{id: "pod-route", script: "ip addr add 10.78.0.2/32 dev lo", fix: "ip addr del 10.78.0.2/32 dev lo"},
		{id: "neighbour-wrong", script: "ip neigh replace 10.78.0.2 lladdr 02:00:00:00:00:99 dev br78 nud permanent", fix: "ip neigh replace 10.78.0.2 lladdr "},
		{id: "route-missing", script: "in_pod p1 ip route del default"},
		{id: "setting-changed", script: "echo 1 >/proc/sys/net/ipv6/conf/br78/accept_ra"},
		{id: "masquerade-missing", script: "nft flush set inet cnibox masq4"},
		{id: "hostport-missing", script: "nft flush map inet cnibox portmap4"},
		{id: "hostport-listener", script: "listening tcp=0.0.0.0:8080", fix: "use another host port, or stop process "},
		{id: "rules-flushed", script: "nft flush ruleset"},
		{id: "rules-flushed", script: "nft flush table inet cnibox"},
		{id: "rules-flushed", script: "nft flush chain inet cnibox postrouting"},
		{id: "check-failed", script: "sed 's/10.78/10.77/; s/br78/br77/; s/\"net\"/\"two\"/; s/\"same-bridge\"}/&, {\"type\": \"other\"}/' $net >$WORK/two.conflist; ln -s cnibox /opt/cni/bin/tuning; plugin other 'exec /opt/cni/bin/tuning'; pod $WORK/two.conflist p5; plugin other 'exit 1'"},
		{id: "interface-unrecorded", script: "ip link add veth0 type veth peer name veth1; ip link set veth0 alias 'cnibox:0123456789abcdef net/eth0/lost'"},
		{id: "rule-unrecorded", script: "nft add element inet cnibox portmap4 '{ tcp . 9999 comment \"cnibox:0123456789abcdef\" : 10.78.0.99 . 80 }'"},
		{id: "lease-leaked", script: "touch /run/ns/p6; unshare --net=/run/ns/p6 sh -c :; CNI_COMMAND=ADD CNI_CONTAINERID=p6 CNI_NETNS=/run/ns/p6 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/host-local <<'EOF' >$WORK/out\n" +
			`{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}]]}}` + "\nEOF\numount /run/ns/p6; rm /run/ns/p6"},
		{id: "address-twice", script: cached("/run/ns/p2", "z")},
		{id: "range-full", script: `sed -i 's,"10.78.0.0/24",&\, "rangeEnd": "10.78.0.3",' $net`},
		// the node
		{id: "forwarding4", script: "echo 0 >/proc/sys/net/ipv4/ip_forward"},
		{id: "forwarding4", script: "echo 0 >/proc/sys/net/ipv4/conf/br78/forwarding", fix: "sysctl -w net/ipv4/conf/br78/forwarding=1"},
		{id: "forwarding6", script: conflist("40-six.conflist", `{"cniVersion": "1.0.0", "name": "six", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:6::/64"}]]}}]}`) +
			"pod /etc/cni/net.d/40-six.conflist p6; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding"},
		{id: "bridge-calls", script: "echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables; nft add table ip kube-proxy"},
		{id: "filter-missing", script: "product del /etc/cni/net.d/20-ptp.conflist p3 /run/ns/p3; nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'"},
		{id: "forward-rule", script: "product del $net p1 /run/ns/p1; product del $net p2 /run/ns/p2; nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'"},
		{id: "forward-rule", script: "product del $net p1 /run/ns/p1; product del $net p2 /run/ns/p2; iptables -A FORWARD -j REJECT", fix: "nft insert rule ip filter FORWARD handle "},
		{id: "forward-rule", script: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; policy drop; }'"},
		{id: "mtu-uplink", script: jumbo(`"mtu": 9000, "ipMasq": true`, routed), fix: "set \"mtu\" to 1500 in /etc/cni/net.d/40-jumbo.conflist, and start the pods again"},
		{id: "egress", script: "ip rule add unreachable iif br78 priority 50", fix: "ip -4 rule add from 10.78.0.0/24 lookup main priority 49"},
		{id: "egress-route", script: "ip route del default", fix: "configure eth0 again"},
		{id: "egress-route", script: "mkdir -p /run/network; echo eth0=eth0 >/run/network/ifstate; ip route del default", fix: "ifdown --force eth0; ifup eth0"},
		{id: "egress-route", script: "mkdir -p /run/systemd/netif/links; echo ADMIN_STATE=unmanaged >/run/systemd/netif/links/$(ip -o link show eth0 | sed 's/:.*//'); ip route del default", fix: "configure eth0 again"},
		{id: "port-blocked", script: "bridge link set dev $(veth p1 net) state 0", fix: "bridge link set dev veth"},
		{id: "mtu-ipv6", script: conflist("40-six.conflist", `{"cniVersion": "1.0.0", "name": "six", "plugins": [{"type": "bridge", "bridge": "br66", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:6::/64"}]]}}]}`) +
			"echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; pod /etc/cni/net.d/40-six.conflist p6; ip link set br66 mtu 1200", fix: "ip link set br66 mtu 1500"},
		{id: "forward-unknown", script: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; policy drop; }; add rule inet fw f ct label 1 accept'"},
		{id: "forward-rule", script: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 0; }; add rule inet fw f ip saddr 10.78.0.0/24 counter drop'"},
		{id: "stray-trace", script: "nft add table inet cnibox_trace"},
		{id: "forward-rule", script: "nft 'add table ip fw; add chain ip fw g; add chain ip fw f { type filter hook forward priority 0; }; add rule ip fw f jump g; add rule ip fw g oifname br78 reject'"},
		{id: "pod-limited", script: "tc qdisc add dev $(veth p1 net) root tbf rate 8kbit burst 3000 limit 6000"},
		{id: "forwarding-wrong", script: "bridge fdb replace $(in_pod p1 ip -br link show eth0 | sed 's/.* \\([0-9a-f:]\\{17\\}\\) .*/\\1/') dev br78 self permanent"},
		{id: "kernel-feature", script: conflist("40-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "tap"}]}`) + "mount -t tmpfs none /dev", fix: "modprobe tun"},
		{id: "bridge-kind", script: conflist("40-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge", "bridge": "wire"}]}`)},
		{id: "hostport-address", script: `ip addr add 10.99.0.5/32 dev lo; pod $net p8 --cap '{"portMappings":[{"hostPort":8088,"hostIP":"10.99.0.5","containerPort":80,"protocol":"tcp"}]}'; ip addr del 10.99.0.5/32 dev lo`},
		{id: "egress-address", script: conflist("40-out.conflist", `{"cniVersion": "1.0.0", "name": "out", "plugins": [{"type": "ptp", "ipMasq": true, "egressAddress": "203.0.113.7", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`) +
			"ip addr add 203.0.113.7/32 dev lo; pod /etc/cni/net.d/40-out.conflist p6; ip addr del 203.0.113.7/32 dev lo", fix: "ip addr add 203.0.113.7/32 dev eth0"},
		{id: "egress-address", script: conflist("40-out.conflist", `{"cniVersion": "1.0.0", "name": "out", "plugins": [{"type": "ptp", "ipMasq": true, "egressAddress": "203.0.113.7", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`), fix: "ip addr add 203.0.113.7/32 dev eth0"},
		{id: "masquerade-missing", script: conflist("40-out.conflist", `{"cniVersion": "1.0.0", "name": "out", "plugins": [{"type": "ptp", "ipMasq": true, "egressAddress": "203.0.113.7", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`) +
			"ip addr add 203.0.113.7/32 dev lo; pod /etc/cni/net.d/40-out.conflist p6; nft flush map inet cnibox egress4"},
		{id: "bridge-taken", script: "ip addr add 10.99.0.1/24 dev br78"},
		{id: "bridge-taken", script: "ip addr flush dev br78; ip addr add 10.78.0.1/16 dev br78", fix: "ip addr del 10.78.0.1/16 dev br78 && cnibox repair"},
		{id: "bridge-taken", overlay: true, script: "ip addr flush dev cni0; ip addr add 10.99.0.1/24 dev cni0", fix: "ip addr del 10.99.0.1/24 dev cni0"},
		// the overlay
		{id: "rp-filter", overlay: true, script: "echo 1 >/proc/sys/net/ipv4/conf/flannel.1/rp_filter"},
		{id: "agent-down", overlay: true, script: "trap - EXIT; kill -9 $agent; wait $agent || true", fix: "systemctl restart cnibox-agent"},
		{id: "agent-down", overlay: true, script: "mkdir /var/lib/kubelet; trap - EXIT; kill -9 $agent; wait $agent || true", fix: "kubectl -n kube-system delete pod -l app.kubernetes.io/name=cnibox --field-selector spec.nodeName="},
		{id: "agent-down", overlay: true, script: "mkdir -p /var/lib/kubelet /run/systemd/system; touch /run/systemd/system/cnibox-agent.service; trap - EXIT; kill -9 $agent; wait $agent || true", fix: "systemctl restart cnibox-agent"},
		{id: "agent-down", overlay: true, script: "trap 'kill -9 $agent' EXIT; kill -STOP $agent"},
		{id: "policy-agent", script: "mkdir -p -m 700 /var/lib/cnibox; touch /var/lib/cnibox/policy.json; chmod 600 /var/lib/cnibox/policy.json"},
		{id: "agent-unready", overlay: true, env: "NOCONFIG=1"},
		{id: "agent-file", overlay: true, script: "flanneld; echo '{' >/run/cnibox/overlay.json"},
		{id: "registry-empty", overlay: true, env: "ALONE=1"},
		{id: "tunnel-gap", overlay: true, script: "flanneld; ip neigh flush dev flannel.1 nud permanent"},
		{id: "tunnel-gap", overlay: true, script: "flanneld; bridge fdb del 4e:da:09:c2:00:02 dev flannel.1 dst 192.0.2.2"},
		{id: "tunnel-missing", overlay: true, script: "flanneld; ip addr flush dev flannel.1"},
		{id: "underlay-down", overlay: true, script: "ip link set eth0 down"},
		{id: "underlay-down", overlay: true, script: "ip link set wire down; until ip link show eth0 | grep -q NO-CARRIER; do :; done"},
		{id: "underlay-down", overlay: true, script: "mkdir -p /run/systemd/netif/links; echo ADMIN_STATE=configured >/run/systemd/netif/links/$(ip -o link show eth0 | sed 's/:.*//'); ip addr flush dev eth0", fix: "networkctl reconfigure eth0"},
		{id: "underlay-down", overlay: true, script: "mkdir -p /run/NetworkManager/devices; printf '[device]\\nmanaged=true\\n' >/run/NetworkManager/devices/$(ip -o link show eth0 | sed 's/:.*//'); ip addr flush dev eth0", fix: "nmcli device reapply eth0"},
		{id: "mtu-tunnel", overlay: true, script: "flanneld; product del $net p1 /run/ns/p1; product del $net p2 /run/ns/p2; ip link set eth0 mtu 1400"},
		{id: "mtu-tunnel", overlay: true, script: "ip route add 192.0.2.2 dev eth0 mtu 1400", fix: "ip link set eth0 mtu 1400"},
		{id: "mtu-tunnel", overlay: true, script: "ip -6 addr add 2001:db8::1/64 dev eth0 nodad; ip route add 192.0.2.2 dev eth0 mtu 1200", fix: "cnibox state"},
		{id: "mtu-tunnel", overlay: true, script: "flanneld; ip route add 192.0.2.2 dev eth0 mtu 1400", fix: "ip link set flannel.1 mtu 1350"},
		{id: "tunnel-dropped", overlay: true, script: "nft 'table inet fw { chain in { type filter hook input priority 0; udp dport 8472 drop; }; }'", fix: "nft insert rule inet fw in handle "},
		{id: "tunnel-dropped", overlay: true, script: "flanneld; iptables -A OUTPUT -d 192.0.2.2 -p udp --dport 8472 -j REJECT", fix: "nft insert rule ip filter OUTPUT handle "},
		{id: "mtu-pod", overlay: true, script: "flanneld; ip link set flannel.1 mtu 1400"},
		{id: "subnet-changed", overlay: true, script: "flanneld; sed -i 's/^FLANNEL_SUBNET=.*/FLANNEL_SUBNET=10.244.0.1\\/24/' /run/flannel/subnet.env"},
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
	ctx := n.t.Context()
	if deadline, ok := n.t.Deadline(); ok { // a script that does not end fails with its output
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, deadline.Add(-5*time.Second))
		defer stop()
	}
	c := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", strings.Join(append(n.scripts, script), "\n"))
	var errs bytes.Buffer
	c.Stderr = &errs
	// The PATH of this test has roles of cnibox, such as bridge, which is also iproute2's program.
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "WORK=" + n.t.TempDir(), "SELF=" + self, "CLITEST_INSIDE=1", n.env}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second // a daemon can have the output
	out, err := c.Output()
	if err != nil {
		n.t.Fatalf("%v\n%s%s", errors.Join(err, ctx.Err()), out, &errs)
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
				if f.Object == "" || f.Evidence == "" || f.Next() == "" {
					t.Errorf("incomplete finding %+v", f)
				}
				checkCommand(t, f.Next())
				if !strings.Contains(f.Next(), b.fix) {
					t.Errorf("the fix is %q, want %q", f.Next(), b.fix)
				}
			}
		})
	}
}

// brokenFacts has the checks whose fault needs another kernel, another version or weeks.
func brokenFacts() map[string]func(f *doctor.Facts) {
	differ := func(o netops.Object) func(f *doctor.Facts) {
		return func(f *doctor.Facts) {
			f.Differences = []doctor.Difference{{Key: store.Key{Network: "net", ContainerID: "p", IfName: "eth0"}, Of: o, Object: "x", Want: "present", Have: "absent", Fix: "cnibox repair"}}
		}
	}
	agent := func(change func(a *doctor.Agent)) func(f *doctor.Facts) {
		return func(f *doctor.Facts) {
			f.Overlay.Agent = &doctor.Agent{Ready: true, Registry: "kube", Peers: store.OverlayPeers{Wanted: 1, Programmed: 1}}
			change(f.Overlay.Agent)
		}
	}
	return map[string]func(f *doctor.Facts){
		"state-newer":       func(f *doctor.Facts) { f.State.Node = fmt.Errorf("open: %w", store.ErrSchema) },
		"kubeconfig-ending": func(f *doctor.Facts) { f.Kubeconfigs = []doctor.Kubeconfig{{Path: "/k", Cert: f.Now.Add(time.Hour)}} },
		"neighbour-missing": differ(&netops.Neigh{}),
		"port-vlan":         differ(&netops.PortVLANs{}),
		"filter-missing":    differ(&netops.Element{Set: "fw_same"}),
		"call-running": func(f *doctor.Facts) {
			f.Calls = []doctor.Call{{Plugin: "x", What: "DEL of p: 40 s in the plugin x, pid 7", Fix: "kill 7"}}
		},
		"connection-stale": differ(&netops.Flows{Proto: "udp", Port: 53}),
		"conntrack-full": func(f *doctor.Facts) {
			f.Host = knownHost(map[string]any{"sysctl: net/netfilter/nf_conntrack_count": "262144", "sysctl: net/netfilter/nf_conntrack_max": "262144"})
		},
		"attachment-changed": differ(&netops.Qdisc{}),
		"range-nearly-full": func(f *doctor.Facts) {
			lo := netip.MustParseAddr("10.1.0.1")
			f.Networks = []*doctor.Network{{Name: "net", Ranges: []doctor.Range{{Subnet: netip.MustParsePrefix("10.1.0.0/24"), Size: 11, Lo: lo, Hi: netip.MustParseAddr("10.1.0.11")}}}}
			pool := store.PoolDump{}
			for a := lo; len(pool.Leases) < 10; a = a.Next() {
				pool.Leases = append(pool.Leases, store.Lease{Address: a, Owner: store.Key{Network: "net", ContainerID: a.String()}, Imported: true})
			}
			f.State.Dump = &store.Dump{Pools: []store.PoolDump{pool}}
		},
		"tunnel-refused": func(f *doctor.Facts) {
			f.Host = knownHost(withTunnelFault(tunnel.Fault{Tunnel: "flannel-wg", Kind: tunnel.PeerUnreachable, What: "ip rule 100 (prohibit)", Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}))
		},
		"egress-fault": agent(func(a *doctor.Agent) { a.Warnings = []string{"egress addresses: no node holds 203.0.113.7"} }),
		"policy-fault": agent(func(a *doctor.Agent) { a.Warnings = []string{"network policies: refused"} }),
		"policy-unknown": func(f *doctor.Facts) {
			f.Policies = doctor.Policies{On: true, HasTable: true, Saved: f.Now, Denied: []string{"default/web"}}
		},
		"policy-table": func(f *doctor.Facts) { f.Policies = doctor.Policies{On: true, Saved: f.Now} },
		"policy-saved": func(f *doctor.Facts) {
			f.Policies = doctor.Policies{On: true, HasTable: true, SavedErr: errors.New("damaged")}
		},
		"policy-labels": func(f *doctor.Facts) {
			f.Networks = []*doctor.Network{{Name: "net", Path: "/etc/cni/net.d/10-net.conflist", PolicyLabels: "app"}}
		},
		"policy-element": func(f *doctor.Facts) {
			f.Policies = doctor.Policies{On: true, HasTable: true, Saved: f.Now, Lost: []string{"default/web"}}
		},
		"registry-unreachable": agent(func(a *doctor.Agent) { a.RegistryError = "refused" }),
		"tunnel-peer": func(f *doctor.Facts) {
			err := json.Unmarshal([]byte(`{"ready": true, "registry": "kube", "peers": {"wanted": 1}, "interface": "eth0",
				"unheard": [{"peer": "other", "since": "2001-01-01T00:00:00Z"}]}`), &f.Overlay.Agent)
			f.Host = knownHost(map[string]any{"links": []netops.LinkInfo{{Name: "eth0", Up: true, Running: true}}})
			if err != nil {
				panic(err)
			}
		},
		"tunnel-checksum": func(f *doctor.Facts) {
			err := json.Unmarshal([]byte(`{"ready": true, "registry": "kube", "peers": {"wanted": 1}, "interface": "eth0",
				"wrongChecksums": {"evidence": "3 of 9 UDP datagrams in 1m0s", "fix": "cnibox drops"}}`), &f.Overlay.Agent)
			f.Host = knownHost(map[string]any{"links": []netops.LinkInfo{{Name: "eth0", Up: true, Running: true}}})
			if err != nil {
				panic(err)
			}
		},
		"peer-missing": agent(func(a *doctor.Agent) { a.Nodes = []doctor.Peer{{Peer: "n2", Route: true, FDB: true, State: "failed"}} }),
	}
}

// knownHost returns a host of which some facts are recorded, and others are those of an empty one.
func knownHost(facts map[string]any) *view.Host {
	records := map[string]view.Record{}
	empty := map[string]any{
		"links": nil, "routes": nil, "tunnels": nil, "bridge entries": nil,
		"sysctl: net/netfilter/nf_conntrack_count": "", "sysctl: net/netfilter/nf_conntrack_max": "", "sysctl: net/bridge/bridge-nf-call-iptables": "",
	}
	for _, all := range []map[string]any{empty, facts} {
		for question, fact := range all {
			raw, err := json.Marshal(fact)
			if err != nil {
				panic(err)
			}
			records[question] = view.Record{Value: raw}
		}
	}
	return view.Recorded(records)
}

// withTunnelFault returns the facts of a tunnel to one node with a fault.
func withTunnelFault(f tunnel.Fault) map[string]any {
	peer := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), 51820)
	return map[string]any{
		"tunnels": []tunnel.Device{{Name: f.Tunnel, Kind: "wireguard", Peers: []netip.AddrPort{peer}}},
		"tunnel faults: " + f.Tunnel + " to [192.0.2.2:51820], false": []tunnel.Fault{f},
	}
}

// TestDoctorFacts: each check of brokenFacts finds its fault, and nothing else does.
func TestDoctorFacts(t *testing.T) {
	for id, change := range brokenFacts() {
		f := &doctor.Facts{Now: time.Now(), Host: knownHost(nil)}
		if r := doctor.Diagnose(f); len(r.Findings) > 0 {
			t.Fatalf("a node without anything: %s", text(t, r))
		}
		change(f)
		if r := doctor.Diagnose(f); !slices.Equal(ids(r), []string{id}) {
			t.Errorf("%s: %s", id, text(t, r))
		}
	}
}

// TestDoctorWireGuard: a WireGuard device has no neighbours, and the MTU that the agent chose.
func TestDoctorWireGuard(t *testing.T) {
	links := []netops.LinkInfo{
		{Name: "eth0", Up: true, Running: true, MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}},
		{Name: "flannel-wg", Kind: "wireguard", Up: true, MTU: 1440, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/32")}},
	}
	routes := []netops.Route{{Link: "flannel-wg", Dst: netip.MustParsePrefix("10.244.0.0/16")}}
	change := func(index int, change func(l *netops.LinkInfo)) func(*doctor.Facts) {
		return func(f *doctor.Facts) {
			changed := slices.Clone(links)
			change(&changed[index])
			f.Host = knownHost(map[string]any{"links": changed, "routes": routes})
		}
	}
	for want, change := range map[string]func(f *doctor.Facts){
		"":               func(*doctor.Facts) {},
		"mtu-tunnel":     change(1, func(l *netops.LinkInfo) { l.MTU = 1500 }),
		"tunnel-missing": change(1, func(l *netops.LinkInfo) { l.Up = false }),
		"tunnel-dropped": func(f *doctor.Facts) {
			facts := withTunnelFault(tunnel.Fault{Tunnel: "flannel-wg", Kind: tunnel.SentDropped, What: "ip fw out handle 3: drop", Fix: "nft", Peers: []netip.Addr{f.Overlay.Agent.IPv4.Local}})
			facts["links"], facts["routes"] = links, routes
			f.Host = knownHost(facts)
		},
		"peer-missing": func(f *doctor.Facts) { f.Overlay.Agent.Nodes[0].Route = false },
		"mtu-pod": func(f *doctor.Facts) {
			a := store.Attachment{Key: store.Key{Network: "cbr0", ContainerID: "p", IfName: "eth0"}, HostLink: "veth0"}
			f.State.Dump = &store.Dump{Attachments: []store.Attachment{a}}
			f.Networks = []*doctor.Network{{Name: "cbr0", Overlay: true}}
			f.Host = knownHost(map[string]any{"routes": routes, "links": append(slices.Clone(links), netops.LinkInfo{Name: "veth0", Kind: "veth", Up: true, MTU: 1500})})
		},
	} {
		local := netip.MustParseAddr("192.0.2.1")
		f := &doctor.Facts{Now: time.Now(), Host: knownHost(map[string]any{"links": links, "routes": routes})}
		f.Overlay.Agent = &doctor.Agent{
			Ready: true, Interface: "eth0", Peers: store.OverlayPeers{Wanted: 1, Programmed: 1}, IPv4: &doctor.AgentFamily{Device: "flannel-wg", Local: local, MTU: 1440},
			Nodes: []doctor.Peer{{Peer: "n2", Route: true, Key: "k"}},
		}
		change(f)
		r := doctor.Diagnose(f)
		if have := strings.Join(ids(r), " "); have != want {
			t.Errorf("%q: %s", want, text(t, r))
		}
	}
}

// TestDoctorTunnel: the commands that doctor prints about packets between nodes mend the node, and remove no rule of another
// program. Before and after them nothing is reported, also by 'agent status' and 'path'.
func TestDoctorTunnel(t *testing.T) {
	newTestNode(t, true).run(`
healthy() {
	product doctor >$WORK/out || { cat $WORK/out; exit 1; }
	grep -q 'checks passed' $WORK/out
	product agent status >$WORK/out 2>&1 || [ $? = 4 ]
	if grep warning $WORK/out; then exit 1; fi
	product path p4 10.244.7.5 >$WORK/out || { cat $WORK/out; exit 1; }
}
says() { # TEXT FILE
	grep -q "$1" $WORK/$2 || { cat $WORK/$2; exit 1; }
}
broken() { # CHECK RULE
	if product path p4 10.244.7.5 >$WORK/path.out; then exit 1; fi
	says "^stopped: flannel.1, node 192.0.2.2: what the tunnel .* is dropped: $2" path.out
	product agent status >$WORK/status.out 2>&1 || [ $? = 4 ]
	says "^warning: flannel.1, node 192.0.2.2: what the tunnel .* is dropped: $2: run 'nft insert rule " status.out
	if product doctor --json >$WORK/doctor.out; then exit 1; fi
	says ""$1"" doctor.out
	fix=$(sed -n 's/^ *"fix": "\(.*\)".*/\1/p' $WORK/doctor.out)
	[ "$fix" = "$(sed -n 's/^try: //p' $WORK/path.out)" ]
	sh -c "$fix"
	nft list ruleset >$WORK/rules
	healthy
}
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:09 dev eth0
healthy
nft 'table inet fw { chain in { type filter hook input priority 0; ip saddr 192.0.2.9 drop; udp dport 8472 drop; }; }'
broken tunnel-dropped 'inet fw in handle 3: drop'
says 'udp dport 8472 drop' rules
iptables -A OUTPUT -p udp --dport 8472 -j DROP
broken tunnel-dropped 'ip filter OUTPUT handle 2: drop'
says 'udp dport 8472 counter packets [0-9]* bytes [0-9]* drop' rules # the agent asks the other node meanwhile
ip -6 addr add 2001:db8::1/64 dev eth0 nodad
ip route add 192.0.2.2 dev eth0 mtu 1200 # as after an ICMP message that anyone can send
product path p4 10.244.7.5 >$WORK/path.out
says "mtu	flannel.1, node 192.0.2.2: .* the route over eth0 has 1200, and flannel.1 needs 1500: 'cnibox state'" path.out
product agent status >$WORK/status.out 2>&1 || [ $? = 4 ]
says "^warning: flannel.1, node 192.0.2.2: .*: no command is safe: with an MTU below 1280 eth0 loses its IPv6 addresses$" status.out
ip -6 addr flush dev eth0 scope global
ip route replace 192.0.2.2 dev eth0 mtu 1400
product path p4 10.244.7.5 >$WORK/path.out
says "mtu	flannel.1, node 192.0.2.2: the MTU of the route is too small: the route over eth0 has 1400, and flannel.1 needs 1500: 'ip link set eth0 mtu 1400'" path.out
product agent status >$WORK/status.out 2>&1 || [ $? = 4 ]
says "^warning: flannel.1, node 192.0.2.2: the MTU of the route is too small: .*: run 'ip link set eth0 mtu 1400'" status.out
ip link set eth0 mtu 1400
until ip link show flannel.1 | grep -q 'mtu 1350'; do :; done
product agent status >$WORK/out 2>&1 || [ $? = 4 ]
if grep warning $WORK/out; then exit 1; fi
product doctor --json >$WORK/out && exit 1
if grep mtu-tunnel $WORK/out; then exit 1; fi
says mtu-pod out
`)
}

// TestDoctorRule: so does the command for a rule that drops packets of pods, also of several interfaces, and an accept before a drop counts.
func TestDoctorRule(t *testing.T) {
	newTestNode(t, false).run(`
nft 'table inet ok { chain f { type filter hook forward priority 0; ip saddr 10.78.0.0/15 accept; ip daddr 10.78.0.0/15 accept; drop; }; }'
product doctor
nft 'table inet fw { chain f { type filter hook forward priority 0; ip saddr 10.78.0.0/15 drop; ip daddr 10.78.0.0/24 reject; }; }'
iptables -A FORWARD -s 10.79.0.0/24 -j DROP
for n in 1 2 3; do
	if product doctor --json >$WORK/out; then exit 1; fi
	fix=$(sed -n 's/^ *"fix": "\(nft insert rule .*\)".*/\1/p' $WORK/out | head -n 1)
	sh -c "$fix"
done
product doctor
nft list ruleset >$WORK/rules
for rule in 'ip saddr 10.78.0.0/15 drop' 'ip daddr 10.78.0.0/24 reject' 'ip saddr 10.79.0.0/24 counter packets 0 bytes 0 drop'; do
	grep -q "$rule" $WORK/rules || { cat $WORK/rules; exit 1; }
done
iptables -S FORWARD >$WORK/rules
grep -q -- '-A FORWARD -i veth[0-9a-f]* -j ACCEPT' $WORK/rules || { cat $WORK/rules; exit 1; }
`)
}

// TestDoctorListeners: sockets that keep a port for the container, clients, other addresses, and stub resolvers that were there before the container are
// not reported. Of one that came later doctor says what mends it.
func TestDoctorListeners(t *testing.T) {
	newTestNode(t, false).run(`
ports='{"portMappings":[{"hostPort":53,"containerPort":53,"protocol":"udp"},{"hostPort":70,"containerPort":70,"protocol":"tcp"},{"hostPort":71,"containerPort":71,"protocol":"tcp"},
	{"hostPort":72,"containerPort":72,"protocol":"tcp","hostIP":"192.0.2.1"}]}'
listening udp=127.0.0.53:53 tcp=127.0.0.53:70 tcp=127.0.0.1:72 tcp=0.0.0.0:54
listening tcp=0.0.0.0:71
mkdir -p /run/nerdctl/default/p6
echo $listener >/run/nerdctl/default/p6/port-reserver.pid
pod $net default-p6 --cap "$ports"
product doctor
listening udp=127.0.0.54:53
if product doctor --json >$WORK/out; then exit 1; fi
for text in '"id": "hostport-listener"' '"severity": "warning"' '"object": "port 53/udp of default-p6"' "process $listener (sleep) listens on 127.0.0.54:53" '"fix": "restart container default-p6"'; do
	grep -qF "$text" $WORK/out || { cat $WORK/out; exit 1; }
done
product del $net default-p6 /run/ns/default-p6
product add $net default-p6 /run/ns/default-p6 --cap "$ports" >/dev/null
product doctor
rm -r /run/nerdctl
if product doctor --json >$WORK/out; then exit 1; fi
grep -qF '(sleep) listens on 0.0.0.0:71' $WORK/out || { cat $WORK/out; exit 1; }
`)
}

// TestDoctorComplete: each check is broken by a test.
func TestDoctorComplete(t *testing.T) {
	broken := brokenFacts()
	for _, b := range brokenNodes() {
		broken[b.id] = nil
	}
	seen := map[string]bool{}
	for _, c := range doctor.Checks() {
		if _, tested := broken[c.ID]; !tested || seen[c.ID] || c.Title == "" || c.Reads == "" || c.Severity == "" {
			t.Errorf("check %q: no test breaks it, or it is incomplete", c.ID)
		}
		seen[c.ID] = true
	}
}

// TestDoctorFix: --fix mends what is safe of a report and still holds, and refuses the rest.
func TestDoctorFix(t *testing.T) {
	n := newTestNode(t, false)
	out := n.run(`
touch /run/ns/p6
unshare --net=/run/ns/p6 sh -c :
CNI_COMMAND=ADD CNI_CONTAINERID=p6 CNI_NETNS=/run/ns/p6 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/host-local <<'EOF' >$WORK/out
{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}]]}}
EOF
umount /run/ns/p6
rm /run/ns/p6
nft flush ruleset
in_pod p1 ip route del default
ip link del $(veth p2 net)
umount /run/ns/p3
rm /run/ns/p3
while [ -n "$(veth p3 ptp)" ]; do :; done
echo 0 >/proc/sys/net/ipv4/ip_forward
chmod 644 /run/cnibox/*/node.db
product doctor --json >$WORK/report && exit 1
[ $? = 3 ] || product doctor --json
chmod 600 /run/cnibox/*/node.db
product doctor --fix $WORK/report && exit 1
[ $? = 3 ]
echo 1 >/proc/sys/net/ipv4/ip_forward
product doctor
product diff
`)
	for _, want := range []string{
		"gone\tstate-mode\t", "refused\tforwarding4\tnet/ipv4/ip_forward\trun: sysctl -w net/ipv4/ip_forward=1\n", "mended\trules-flushed\tnftables\n",
		"mended\troute-missing\tp1 eth0 on net\n", "mended\tlink-missing\tp2 eth0 on net\n", "mended\tcontainer-ended\tp3 eth0 on ptp\n", "mended\tlease-leaked\t10.78.0.4\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if !strings.HasSuffix(out, " checks passed\n") {
		t.Errorf("%s", out)
	}
}

// TestDoctorRuntimes: CHECK of a runtime's network uses the plugins of this runtime, not those of another one.
func TestDoctorRuntimes(t *testing.T) {
	r := newTestNode(t, false).diagnose(`
touch $WORK/path/podman
chmod +x $WORK/path/podman
mkdir -p /etc/containers /opt/podman
printf '[network]\nnetwork_backend = "cni"\ncni_plugin_dirs = ["/opt/podman"]\n' >/etc/containers/containers.conf
for role in bridge portmap firewall; do
	rm /opt/cni/bin/$role
	plugin $role 'echo "{\"code\": 1, \"msg\": \"plugin version does not allow CHECK\"}"; exit 1'
	mv /opt/cni/bin/$role /opt/podman
	ln -s cnibox /opt/cni/bin/$role
done`)
	if ids(r) != nil {
		t.Error(text(t, r))
	}
}

// TestDiffRuntimes: so do the other verbs that run CHECK.
func TestDiffRuntimes(t *testing.T) {
	newTestNode(t, false).run(`
mv /opt/cni/bin /opt/containerd
mkdir /opt/cni/bin /etc/containerd
printf '[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/opt/containerd"\n' >/etc/containerd/config.toml
for role in bridge portmap firewall; do
	plugin $role 'echo "{\"code\": 1, \"msg\": \"not this one\"}"; exit 1'
done
product diff --json
product check --all
product repair`)
}

// TestDoctorInstall: on a node with the plugins of a distribution, the commands of doctor and those of install are the same, change no
// file of the distribution, and mend what doctor found.
func TestDoctorInstall(t *testing.T) {
	containerd := func(dir string) string {
		return `printf 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "` + dir + `"\n' >/etc/containerd/config.toml`
	}
	for name, layout := range map[string]string{
		"debian 12":    "d=/usr/lib/cni; " + containerd("/usr/lib/cni"),
		"ubuntu 24.04": "d=/usr/lib/cni",
		"fedora":       "d=/usr/libexec/cni; " + containerd("/usr/libexec/cni/"),
		"containerd 2": `d=/usr/lib/cni; printf 'version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\nbin_dirs = ["/usr/lib/cni"]\n' >/etc/containerd/config.toml`,
	} {
		t.Run(name, func(t *testing.T) {
			out := newTestNode(t, false).run(`
for p in p1 p2; do product del $net $p /run/ns/$p; done
product del /etc/cni/net.d/20-ptp.conflist p3 /run/ns/p3
for tool in ls sort cmp; do ln -s $(PATH=/usr/bin:/bin command -v $tool) $WORK/path/$tool; done
touch $WORK/path/podman
chmod +x $WORK/path/podman
mkdir -p /etc/containers /etc/containerd
printf '[network]\nnetwork_backend = "cni"\ndefault_network = "net"\n' >/etc/containers/containers.conf
for dir in /usr/local /usr/lib/cni /usr/libexec; do
	if [ -d $dir ]; then mount -t tmpfs -o mode=755 none $dir; fi
done
rm -r /opt/cni
` + layout + `
mkdir -p $d
for p in bridge host-local portmap firewall; do printf '#!/bin/sh\n' >$d/$p; chmod 755 $d/$p; done
ls -l $d >$WORK/before
product doctor --json | sed -n 's/^ *"fix": "\(.*\)".*/\1/p' | sort -u >$WORK/doctor
product install 2>$WORK/err >$WORK/out
sed -n "s/^cnibox: install: warning: .*: run '\(.*\)'$/\1/p" $WORK/err | sort >$WORK/install
cat $WORK/install
echo doctor:
cat $WORK/doctor
while read -r _ command; do
	product $command >$WORK/out 2>&1 || [ $? = 3 ]
done <$WORK/install
if [ -e /etc/containerd/config.toml ]; then sed -i "s,\"$d/*,\"/opt/cni/bin," /etc/containerd/config.toml; fi
product install 2>&1 | grep warning && exit 1
ln -sf /opt/cni/bin/cnibox $WORK/path/product
ls -l $d | cmp - $WORK/before
product doctor`)
			want := "cnibox install --runtime podman\n"
			doctor := "cnibox install --runtime podman\ncnibox install bridge\ncnibox install firewall\ncnibox install host-local\ncnibox install portmap\n"
			if name != "ubuntu 24.04" { // containerd searches /opt/cni/bin there
				want = "cnibox install --runtime containerd\n" + want
				doctor = want
			}
			if want += "doctor:\n" + doctor; !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " checks passed\n") {
				t.Errorf("%s", out)
			}
		})
	}
}

// TestDoctorCluster: the same finding of many nodes is one line.
func TestDoctorCluster(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		node := fmt.Sprintf("n%03d", i)
		r := doctor.Report{Node: node, Findings: []doctor.Finding{
			{Severity: doctor.Error, ID: "forwarding4", Object: "net/ipv4/ip_forward", Fix: "sysctl"},
			{Severity: doctor.Warning, ID: "container-ended", Object: node, Fix: fixRepair, Attachments: []store.Key{{ContainerID: node}}},
		}}
		if i == 7 {
			r.Findings = append(r.Findings, doctor.Finding{Severity: doctor.Error, ID: "disk", Object: "/run", Fix: "df"})
		}
		if err := os.WriteFile(filepath.Join(dir, node), []byte(text(t, r)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	p := Process{Table: all.Table(), Args: []string{"doctor", "--cluster", dir}, Stdout: &out, Stderr: &errs}
	if code := Main(t.Context(), p); code != ExitDifferent {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"SEVERITY\tCHECK\tNODES\t", "error\tforwarding4\t300 of 300\tnet/ipv4/ip_forward\t", "error\tdisk\t1 of 300\t", "warning\tcontainer-ended\t300 of 300\tseveral\t"} {
		if len(lines) != 4 || !strings.HasPrefix(lines[i], want) {
			t.Errorf("no %q in\n%.2000s", want, &out)
		}
	}
	for _, args := range [][]string{{"--cluster", dir, "--fix", "report"}, {"--cluster", ""}} {
		q := p
		q.Args = append([]string{"doctor"}, args...)
		if code := Main(t.Context(), q); code != ExitUsage && code != ExitFailed {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if code := Main(t.Context(), p); code != ExitFailed || !strings.Contains(errs.String(), "is no report") || !strings.Contains(out.String(), "300 of 300") {
		t.Errorf("exit code %d: %s%.2000s", code, &errs, &out)
	}
}

// TestDoctorHealthy: doctor finds nothing on a healthy node, and names the used networks. The exit code
// of a warning is 4.
func TestDoctorHealthy(t *testing.T) {
	n := newTestNode(t, true)
	out := n.run(`
product doctor
mkdir -p /var/lib/cni/results
touch /var/lib/cni/results/x
product doctor >$WORK/out && exit 1
[ $? = 4 ]`)
	if !strings.Contains(out, "containerd uses net of /etc/cni/net.d/10-net.conflist: the first file of /etc/cni/net.d\n") || !strings.Contains(out, " checks passed\n") {
		t.Errorf("%s", out)
	}
}

const doctorPage = "../../docs/doctor.md"

// TestDoctorDocs: the list of docs/doctor.md is generated from the checks.
func TestDoctorDocs(t *testing.T) {
	b, err := os.ReadFile(doctorPage)
	if err != nil {
		t.Fatal(err)
	}
	const start, end = "<!-- checks:start -->\n", "<!-- checks:end -->"
	before, rest, _ := strings.Cut(string(b), start)
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatal("docs/doctor.md has no list")
	}
	before = regexp.MustCompile("`all [0-9]+ checks passed`").ReplaceAllString(before, fmt.Sprintf("`all %d checks passed`", len(doctor.Checks())))
	rows := "\n"
	for _, c := range doctor.Checks() {
		rows += fmt.Sprintf("- `%s`: %s\n", c.ID, c.Title)
	}
	rows += "\n"
	want := before + start + rows + end + after
	if *update {
		if err := os.WriteFile(doctorPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Error("docs/doctor.md differs from the checks; run 'make generate'")
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
	cmds := p.root().Subcommands
	var cmd *cli.Command
	for _, w := range words[1:] {
		if strings.HasPrefix(w, "[") || strings.HasSuffix(w, "…") { // of a synopsis
			continue
		}
		if next := find(cmds, w); next != nil {
			cmd, cmds = next, next.Subcommands
			continue
		}
		name, isFlag := strings.CutPrefix(w, "--")
		if cmd != nil && cmd.SkipFlagParsing && !isFlag { // after the node there is a command line
			cmd, cmds = nil, p.root().Subcommands
			continue
		}
		if cmd == nil || isFlag && !slices.ContainsFunc(cmd.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }) {
			t.Errorf("command %q: %q is unknown", command, w)
		}
	}
}
