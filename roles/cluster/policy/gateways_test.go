package policy_test

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
	"github.com/cnibox/cnibox/test/await"
)

// TestGateways: a pod whose addresses are not recorded uses neither those of the node on the pods' bridges, also on a VLAN of one, nor those of
// another network of pods or of the overlay. It may use others of its own network.
func TestGateways(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	overlay := &store.Overlay{
		BootID: bootID(), Time: time.Now(), Ready: true, MTU: 1450, Peers: store.OverlayPeers{},
		IPv4: &store.OverlayFamily{Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Subnet: netip.MustParsePrefix("10.244.1.0/24"), MTU: 1450},
		IPv6: &store.OverlayFamily{Networks: []netip.Prefix{netip.MustParsePrefix("fd00:244::/32")}, Subnet: netip.MustParsePrefix("fd00:244:1::/64"), MTU: 1450},
	}
	if err := store.WriteOverlay(n.host.Store.OverlayPath(), overlay); err != nil {
		t.Fatal(err)
	}
	n.start()
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "br2.5").Run() })
	n.add(n.pod(1, 2, ""))
	free := func(p *pod) *pod { // without addresses
		head, _, _ := strings.Cut(p.call.Conf, `,"ipam"`)
		p.call.Conf = strings.Replace(head, `,"isDefaultGateway":true`, "", 1) + "}"
		return p
	}
	second, untold := n.add(n.pod(2, 2, "")), n.add(free(n.pod(2, 9, "")))
	for _, line := range []string{ // as the role bridge does on a VLAN
		"link add br2.5 type veth peer name br2port", "addr add 10.3.0.1/24 dev br2.5", "addr add fd00:3::1/64 dev br2.5 nodad", "link set br2.5 up",
		"link set br2port master br2 up",
	} {
		run(t, "ip "+line)
	}
	s := &scene{node: n}
	await.Until(t, func() bool {
		have := elements(t)
		return len(have["pod_refused4"]) == 4 && len(have["pod_refused6"]) == 4 && slices.Contains(have["pod_mac"], link(t, "br2.5"))
	}, func() string { return strings.Join(elements(t)["pod_refused4"], ", ") })
	claim := func(from, to *pod, mac net.HardwareAddr, address string) {
		t.Helper()
		f, a := 0, netip.MustParseAddr(address)
		if a.Is6() {
			f = 1
		}
		got := frames(t, to.ns, "forbidden "+address, "marker "+address)
		p := udp(netip.AddrPortFrom(a, 1000), to.at(f, 7), "forbidden "+address)
		from.sendFrame(t, frame(mac, to.mac(t), etherType(p), p))
		await.Until(t, func() bool {
			s.direct(from, to, udp(from.at(f, 1000), to.at(f, 7), "marker "+address))
			return got[1].Load() > 0
		}, func() string { return "no marker" })
		if got[0].Load() > 0 {
			t.Error("a packet arrives from", address, mac)
		}
	}
	for _, address := range []string{"10.2.0.1", "fd00:2::1", "10.1.0.1", "fd00:1::1", "10.1.0.77", "fd00:1::77", "10.3.0.1", "fd00:3::1", "10.244.3.4", "fd00:244:3::4"} {
		claim(untold, second, untold.mac(t), address)
	}
	gateway, err := net.ParseMAC(link(t, "br2.5"))
	if err != nil {
		t.Fatal(err)
	}
	claim(untold, second, gateway, "10.2.0.78")
}
