package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/see/doctor"
	"github.com/cnibox/cnibox/roles/see/path"
)

// shared is a fault that doctor and path name.
type shared struct {
	// id is doctor's check, and path are the arguments of path.
	id, path string
	script   string
	// words are in what both say, and fix is what both print. In words, and at the begin of fix, PORT is the host's end of p1, and MAC its MAC.
	words, fix string
	// mend does what no command of this node can.
	mend string
}

func sharedFaults() []shared {
	return []shared{
		{id: "forwarding4", path: "p1 198.51.100.7", script: "sysctl -qw net.ipv4.ip_forward=0", words: "this node does not forward packets: /proc/sys/net/ipv4/ip_forward is 0", fix: "sysctl -w net/ipv4/ip_forward=1"},
		{id: "forwarding4", path: "p1 198.51.100.7", script: "sysctl -qw net.ipv4.conf.br78.forwarding=0", words: "this node does not forward packets from br78: /proc/sys/net/ipv4/conf/br78/forwarding is 0", fix: "sysctl -w net/ipv4/conf/br78/forwarding=1"},
		{id: "egress", path: "p1 198.51.100.7", script: "sysctl -qw net.ipv4.conf.eth0.forwarding=0", words: "this node does not forward packets from eth0: /proc/sys/net/ipv4/conf/eth0/forwarding is 0", fix: "sysctl -w net/ipv4/conf/eth0/forwarding=1"},
		{id: "egress", path: "p1 198.51.100.7", script: "ip rule add unreachable iif br78 priority 50", words: "ip rule 50 (unreachable) refuses", fix: "ip -4 rule add from 10.78.0.0/24 lookup main priority 49"},
		{
			id: "forward-rule", path: "p1 198.51.100.7", script: "tc qdisc add dev PORT clsact; tc filter add dev PORT ingress bpf da bytecode '1,6 0 0 2'",
			words: "tc filter of PORT ingress pref 49152 bpf", fix: "tc filter add dev PORT ingress pref 1 bpf da bytecode '1,6 0 0 0'",
		},
		{id: "egress-route", path: "p1 198.51.100.7", script: "ip rule del priority 50; ip rule del priority 49; ip route del default", words: "no default route for IPv4", fix: "configure eth0 again, as at the start of the node", mend: "ip route add default via 192.0.2.9"},
		{
			id: "egress", path: "p1 198.51.100.7", script: "ip link set wire down; until ip link show eth0 | grep -q NO-CARRIER; do :; done", words: "eth0 of host has no carrier: its other end is down or gone",
			fix: "check the cable of eth0 and the port of the switch", mend: "ip link set wire up; until ip link show eth0 | grep -q 'state UP'; do :; done",
		},
		{id: "port-blocked", path: "p1 198.51.100.7", script: "bridge link set dev PORT state 0", words: "the bridge br78 passes no frames of its port PORT, whose state is not forwarding", fix: "bridge link set dev PORT state 3"},
		{id: "forwarding-wrong", path: "host p1", script: "bridge fdb replace MAC dev br78 self permanent", words: "a static entry of br78 for MAC leads to br78, and p1 is at PORT", fix: "bridge fdb del MAC dev br78 self"},
		{id: "neighbour-wrong", path: "host p1", script: "ip neigh replace 10.78.0.2 lladdr 02:00:00:00:00:99 dev br78 nud permanent", words: "02:00:00:00:00:99", fix: "ip neigh replace 10.78.0.2 lladdr MAC nud reachable dev br78"},
		{id: "pod-route", path: "p1 198.51.100.7", script: "ip addr add 10.78.0.2/32 dev lo", words: "the node itself has it on lo", fix: "ip addr del 10.78.0.2/32 dev lo"},
		{id: "link-changed", path: "p1 198.51.100.7", script: "ip link set PORT nomaster", words: "br78", fix: "cnibox repair"},
		{id: "link-changed", path: "p1 198.51.100.7", script: "ip link set PORT down", words: "down", fix: "cnibox repair"},
		{id: "bridge-changed", path: "p1 198.51.100.7", script: "ip link set br78 down", words: "down", fix: "cnibox repair"},
		{id: "route-missing", path: "p1 198.51.100.7", script: "in_pod p1 ip route del default", words: "", fix: "cnibox repair"},
		{
			id: "egress-address", path: "p6 198.51.100.7", script: "ip addr add 203.0.113.7/32 dev lo; pod $WORK/out.conflist p6; ip addr del 203.0.113.7/32 dev lo",
			words: "the packets of pods leave with 203.0.113.7, and no interface of this node has it", fix: "ip addr add 203.0.113.7/32 dev eth0",
		},
		{id: "hostport-address", path: "--in eth0 192.0.2.9 10.99.0.5:8088", script: "ip addr del 10.99.0.5/32 dev lo", words: "no interface of this node has the address 10.99.0.5", fix: "give the node the address, or publish the port on another one", mend: "ip addr add 10.99.0.5/32 dev lo"},
	}
}

// TestShared: doctor and path name the same fault in the same words and print the same command, which mends the node.
func TestShared(t *testing.T) {
	all := sharedFaults()
	script := []string{`
plant() { # the faulty node, and what both say
	printf '%s\n' "$1" | sed "s/PORT/$(veth p1 net)/g; s/MAC/$mac/g" >$WORK/plant
	. $WORK/plant
}
says() { # ARGUMENTS of path
	product doctor --json || true
	product path --json $1 2>/dev/null || true
	fix=$(product path --json $1 2>/dev/null | sed -n 's/^ *"fix": "\(.*\)".*/\1/p' | sed 's/cnibox/product/g; s/product repair/& --yes/')
}
mac=$(in_pod p1 ip -br link show eth0 | sed 's/.* \([0-9a-f:]\{17\}\) .*/\1/')
ip addr add 10.99.0.5/32 dev lo
pod $net p8 --cap '{"portMappings":[{"hostPort":8088,"hostIP":"10.99.0.5","containerPort":80,"protocol":"tcp"}]}'
cat >$WORK/out.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "out", "plugins": [{"type": "ptp", "ipMasq": true, "egressAddress": "203.0.113.7", "ipam": {"type": "host-local",
  "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev eth0
printf '{"port": "%s", "mac": "%s"}\n' $(veth p1 net) $mac`}
	for _, f := range all {
		mend := `sh -c "$fix" >$WORK/mend 2>&1 || { cat $WORK/mend; exit 1; }`
		if f.mend != "" {
			mend = f.mend
		}
		script = append(script, "plant '"+strings.ReplaceAll(f.script, "'", `'\''`)+"'", "says '"+f.path+"'", mend,
			"product doctor >$WORK/healthy || { echo after; cat $WORK/healthy; exit 1; }", "product path "+f.path+" >$WORK/healthy || { echo after; cat $WORK/healthy; exit 1; }")
	}
	out := json.NewDecoder(strings.NewReader(newTestNode(t, false).run(strings.Join(script, "\n"))))
	var names struct{ Port, MAC string }
	if err := out.Decode(&names); err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		var r doctor.Report
		var p path.Path
		for _, into := range []any{&r, &p} {
			if err := out.Decode(into); err != nil {
				t.Fatal(f.script, err)
			}
		}
		real := strings.NewReplacer("PORT", names.Port, "MAC", names.MAC)
		words, fix := real.Replace(f.words), real.Replace(f.fix)
		i := slices.IndexFunc(r.Findings, func(g doctor.Finding) bool { return g.ID == f.id })
		if i < 0 {
			t.Errorf("%s: doctor does not find %s: %s", f.script, f.id, text(t, r.Findings))
			continue
		}
		g := r.Findings[i]
		if said := g.Object + ": " + g.Evidence; !strings.Contains(said, words) || !strings.Contains(p.Stopped, words) {
			t.Errorf("%s: want %q\ndoctor: %s\npath: %s", f.script, words, said, p.Stopped)
		}
		if g.Fix != p.Fix || g.Fix != fix {
			t.Errorf("%s: want the fix %q\ndoctor: %s\npath: %s", f.script, fix, g.Fix, p.Fix)
		}
	}
}
