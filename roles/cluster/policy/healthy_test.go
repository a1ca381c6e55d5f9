package policy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// inside runs a command in a pod.
func (p *pod) inside(t *testing.T, line string) string {
	t.Helper()
	words := append([]string{"--net=" + p.ns.Path()}, strings.Fields(line)...)
	out, err := exec.Command("nsenter", words...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// TestDiscovery: messages of neighbour discovery about a pod's own addresses arrive, and receivers accept them: advertisements with another source,
// whose source and checksum the rules change, and duplicate address detection, which they leave as it was.
func TestDiscovery(t *testing.T) {
	s := newScene(t, "bridge")
	s.start()
	proxy := s.pod(1, 8, "app=proxy")
	proxy.call.Conf = strings.Replace(proxy.call.Conf, `"isDefaultGateway"`, `"allowedAddresses":["fd00:1::100/120"],"isDefaultGateway"`, 1)
	for _, p := range []*pod{s.evil, s.client, s.web, proxy} {
		s.add(p)
	}
	awaitRules(t, s.web.addresses[0].String())
	for _, c := range []struct {
		from   *pod
		target netip.Addr
	}{{s.evil, s.evil.addresses[1]}, {proxy, netip.MustParseAddr("fd00:1::110")}, {s.evil, linkLocal(s.evil.mac(t))}, {s.evil, netip.MustParseAddr("fe80::77")}} {
		for _, to := range []*pod{s.client, s.web} {
			to.inside(t, "ip neigh replace "+c.target.String()+" lladdr 02:00:00:00:00:01 dev eth0 nud stale")
			const override, targetMAC = 0x20, 2
			m := c.from.mac(t)
			b := append([]byte{136, 0, 0, 0, override, 0, 0, 0}, c.target.AsSlice()...)
			b = append(append(b, targetMAC, 1), m...)
			await.Until(t, func() bool {
				s.direct(c.from, to, ipPacket(linkLocal(m), to.addresses[1], unix.IPPROTO_ICMPV6, 255, b))
				return strings.Contains(to.inside(t, "ip neigh show "+c.target.String()+" dev eth0"), m.String())
			}, func() string {
				return fmt.Sprintf("no advertisement of %s: %s", c.target, to.inside(t, "ip neigh"))
			})
		}
	}
	dad := string(advertisement(netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff00:2"), 135, s.evil.addresses[1], ""))
	got := frames(t, s.web.ns, dad)
	await.Until(t, func() bool { s.direct(s.evil, s.web, []byte(dad)); return got[0].Load() > 0 }, func() string { return "no solicitation without a source" })

	s.evil.inside(t, "ip addr add fd00:1::4/64 dev eth0") // it is the client's, who does not hear of it
	s.client.inside(t, "ip addr add fd00:1::77/64 dev eth0")
	await.Until(t, func() bool { return !strings.Contains(s.client.inside(t, "ip -6 addr show dev eth0"), "tentative") }, func() string {
		return s.client.inside(t, "ip -6 addr show dev eth0")
	})
}

// TestDHCP: a pod that may send to nobody gets addresses from a DHCP server behind the bridge's uplink, and its requests arrive there afterwards, too.
func TestDHCP(t *testing.T) {
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Fatal("dnsmasq-base is missing: run test/apt.sh")
	}
	n := newNode(t)
	n.put("web.yaml", denyAll)
	stop := n.start()
	n.add(n.pod(1, 2, "")) // makes the bridge
	server := &pod{ns: netopstest.New(t)}
	run(t, "ip link add sv0 master br1 up type veth peer name eth0 netns "+server.ns.Path())
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "sv0").Run() })
	for _, line := range []string{"ip link set eth0 up", "ip addr add 10.1.0.99/24 dev eth0", "ip addr add fd00:1::99/64 dev eth0 nodad"} {
		server.inside(t, line)
	}
	program := func(start func(cmd *exec.Cmd) error, cmd *exec.Cmd) {
		var said lines
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		ready := map[bool]string{true: "IP range", false: "listening"}[strings.HasSuffix(cmd.Path, "dnsmasq")]
		await.Until(t, func() bool { return strings.Contains(said.String(), ready) }, said.String)
	}
	program(func(cmd *exec.Cmd) (err error) { server.ns.Do(t, cmd.Start); return nil }, exec.Command("dnsmasq",
		"--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file", "--interface=eth0", "--no-ping",
		"--dhcp-authoritative", "--dhcp-leasefile="+filepath.Join(t.TempDir(), "leases"), "--dhcp-range=10.1.0.100,10.1.0.250,2m", "--dhcp-range=fd00:1::100,fd00:1::fff,64,2m"))
	socket := filepath.Join(n.RunDir(), "dhcp.sock")
	daemon := n.Cmd(rolestest.Call{Type: "dhcp"})
	daemon.Args = append(daemon.Args, "daemon", "-socketpath", socket)
	daemon.Env = append(daemon.Env, "CNIBOX_LOG=debug")
	program((*exec.Cmd).Start, daemon)

	web := n.pod(1, 3, "app=web")
	web.call.Conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1","type":"bridge","bridge":"br1","ipam":{"type":"dhcp","daemonSocketPath":%q,"families":["ipv4","ipv6"]}}`, socket)
	n.add(web)
	got := frames(t, server.ns, "a request by broadcast", "a request to the server", "a request of IPv6")
	everyone := []byte{255, 255, 255, 255, 255, 255}
	own := netip.MustParseAddr(strings.Fields(web.inside(t, "ip -4 -br addr show dev eth0"))[2][:len("10.1.0.100")])
	stop()
	run(t, "nft flush ruleset")
	n.start() // it has the record only
	awaitRules(t, own.String())
	m := web.mac(t)
	for i, packet := range [][]byte{
		udp4("0.0.0.0", "255.255.255.255", 68, 67, "a request by broadcast"),
		udp4(own.String(), "10.1.0.99", 68, 67, "a request to the server"),
		udp(netip.AddrPortFrom(linkLocal(m), 546), netip.MustParseAddrPort("[ff02::1:2]:547"), "a request of IPv6"),
	} {
		await.Until(t, func() bool { web.sendFrame(t, frame(m, everyone, etherType(packet), packet)); return got[i].Load() > 0 }, func() string {
			return fmt.Sprint("no request arrives at the server: ", i)
		})
	}
	n.del(web)
}

// shutPolicy forbids the pods app=shut to send.
const shutPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut}
spec:
  podSelector: {matchLabels: {app: shut}}
  policyTypes: [Egress]
`

// TestOtherPorts: policies hold, and allow what they should, for pods whose MAC tuning has changed, promiscuous pods, and bridges in promiscuous mode
// or that filter VLANs.
func TestOtherPorts(t *testing.T) {
	for kind, keys := range map[string]string{"plain": "", "promiscuous": `"promiscMode":true,`, "VLAN": `"vlan":100,`} {
		t.Run(kind, func(t *testing.T) {
			if kind == "VLAN" {
				netopstest.NeedVLANFiltering(t)
			}
			t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "br1.100").Run() }) // the gateway is a veth, which outlives the bridge
			n := newNode(t)
			forward(t)
			n.put("web.yaml", onlyPort80)
			n.start()
			n.put("shut.yaml", shutPolicy)
			near, far, web, shut := n.pod(1, 2, ""), n.pod(2, 2, ""), n.pod(1, 3, "app=web"), n.pod(1, 4, "app=shut")
			for _, p := range []*pod{near, web, shut} {
				p.call.Conf = strings.Replace(p.call.Conf, `"isDefaultGateway"`, keys+`"isDefaultGateway"`, 1)
				tuned := p.call
				a := n.OK(tuned)
				t.Cleanup(func() { _ = exec.Command("ip", "link", "del", p.link()).Run() })
				tuned.Type = "tuning"
				tuned.Conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1","type":"tuning","mac":"02:00:00:00:01:%s","promisc":true,"prevResult":%s}`, p.call.ID[3:]+"0", a.Stdout)
				n.OK(tuned)
			}
			n.add(far)
			awaitRules(t, "10.1.0.3")
			await.Until(t, func() bool { return strings.Contains(listed(t, "pod_egress4"), "10.1.0.4 : goto pod") }, func() string { return listed(t, "pod_egress4") })
			allowed, denied := n.sink(web, 80), n.sink(web, 81)
			n.flood(near, web)
			n.more(allowed, "the allowed port from the bridge")
			n.flood(far, web)
			n.more(allowed, "the allowed port from another network")
			n.none(denied, "the denied port")
			run(t, "nft -f "+n.file("saved", saved(t)))
			n.more(allowed, "the allowed port after nft loaded what it listed")
			n.none(denied, "the denied port after nft loaded what it listed")
			run(t, "nft -f "+n.file("marks", "table inet marks {\nchain c {\ntype filter hook prerouting priority mangle; policy accept;\nmeta mark set 0x1040\n}\n}\n"))
			t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "inet", "marks").Run() })
			n.more(allowed, "the allowed port while another program sets marks")
			n.none(denied, "the denied port while another program sets marks")
			if kind == "VLAN" { // by the MAC of the gateway, so that the node routes it
				gateway, err := net.InterfaceByName("br1.100")
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range web.addresses {
					near.inside(t, fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0", a, gateway.HardwareAddr))
				}
				n.more(allowed, "the allowed port through the gateway")
				n.none(denied, "the denied port through the gateway")
			}
			if err := n.floodFromHere(web); err != nil {
				t.Fatal(err)
			}
			n.more(denied, "the node's own packets, which pass no policy")

			node := &pod{addresses: [2]netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00:1::1")}}
			here, err := n.sinkHere(80)
			if err != nil {
				t.Fatal(err)
			}
			n.flood(shut, node)
			n.more(here, "packets of a pod that may send to nobody, to its own node")
			fromShut := n.sink(near, 80)
			n.flood(shut, near)
			n.more(here, "packets to the node")
			n.none(fromShut, "packets of that pod to another pod")
		})
	}
}

// saved returns a file of nft that flushes the ruleset and makes it again.
func saved(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	return "flush ruleset\n" + string(out)
}
