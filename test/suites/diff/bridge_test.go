package diff

import "github.com/cnibox/cnibox/netops/netopstest"

// Values of ipam in configurations.
const (
	pool4    = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`
	pool6    = `"ipam":{"type":"host-local","ranges":[[{"subnet":"2001:db8:1::/64"}]]}`
	poolDual = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"2001:db8:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
	poolTo4  = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"198.51.100.0/24","gw":"10.1.0.9","mtu":1400,"priority":7}]}`
)

func bridgeCases() []testCase {
	cases := []testCase{
		{name: "bridge/v4", conf: `{"type":"bridge",` + pool4 + `}`},
		{name: "bridge/v6", conf: `{"type":"bridge",` + pool6 + `}`},
		{name: "bridge/dual", conf: `{"type":"bridge",` + poolDual + `}`},
		{name: "bridge/l2", conf: `{"type":"bridge","bridge":"br-l2"}`},
		{name: "bridge/l2-empty-ipam", conf: `{"type":"bridge","ipam":{}}`},
		{name: "bridge/mtu", conf: `{"type":"bridge","mtu":1400,"isGateway":true,` + pool4 + `}`},
		{name: "bridge/gateway-v4", conf: `{"type":"bridge","isGateway":true,` + poolTo4 + `}`},
		{name: "bridge/gateway-v6", conf: `{"type":"bridge","isGateway":true,` + pool6 + `}`},
		{name: "bridge/gateway-dual", conf: `{"type":"bridge","isGateway":true,` + poolDual + `}`},
		{name: "bridge/default-gateway", conf: `{"type":"bridge","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"2001:db8:1::/64"}]]}}`},
		{name: "bridge/default-gateway-with-route", conf: `{"type":"bridge","isDefaultGateway":true,` + poolTo4 + `}`},
		{name: "bridge/given-gateway", conf: `{"type":"bridge","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","gateway":"10.1.0.77"}]]}}`},
		{name: "bridge/hairpin", conf: `{"type":"bridge","hairpinMode":true,` + pool4 + `}`},
		{name: "bridge/promisc", conf: `{"type":"bridge","promiscMode":true,` + pool4 + `}`},
		{name: "bridge/isolation", conf: `{"type":"bridge","portIsolation":true,` + pool4 + `}`},
		{name: "bridge/container-down", conf: `{"type":"bridge","disableContainerInterface":true}`},
		{name: "bridge/dad", conf: `{"type":"bridge","enabledad":true,` + pool6 + `}`},
		{name: "bridge/dns", conf: `{"type":"bridge","dns":{"nameservers":["10.9.9.9"],"domain":"example.org","search":["a.example","b.example"],"options":["ndots:5"]},` + pool4 + `}`},
		{name: "bridge/dns-none", conf: `{"type":"bridge","dns":{"nameservers":[]},` + pool4 + `}`},
		{name: "bridge/mac-args", conf: `{"type":"bridge",` + pool4 + `}`, args: "IgnoreUnknown=1;MAC=c2:11:22:33:44:55;K8S_POD_NAME=x"},
		{name: "bridge/mac-cni-args", conf: `{"type":"bridge","args":{"cni":{"mac":"c2:11:22:33:44:66"}},` + pool4 + `}`, args: "MAC=c2:11:22:33:44:55"},
		{name: "bridge/mac-runtime", conf: `{"type":"bridge","capabilities":{"mac":true},"runtimeConfig":{"mac":"c2:11:22:33:44:77"},"args":{"cni":{"mac":"c2:11:22:33:44:66"}},` + pool4 + `}`},
		{name: "bridge/macspoofchk", conf: `{"type":"bridge","macspoofchk":true,` + pool4 + `}`},
		{
			name: "bridge/masq-nftables", conf: `{"type":"bridge","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables",` + poolTo4 + `}`,
			steps: "ADD\nCHECK\nPING c1 192.0.2.254\nPING c1 10.1.0.1\nDEL",
		},
		{
			name: "bridge/masq-iptables", conf: `{"type":"bridge","isGateway":true,"ipMasq":true,"ipMasqBackend":"iptables",` + poolTo4 + `}`,
			steps: "ADD\nCHECK\nPING c1 192.0.2.254\nDEL",
		},
		{
			name: "bridge/masq-dual", conf: `{"type":"bridge","isGateway":true,"ipMasq":true,` + poolDual + `}`,
			steps: "ADD\nCHECK\nPING c1 192.0.2.254\nDEL",
		},
		{
			name: "bridge/no-masq", conf: `{"type":"bridge","isGateway":true,` + poolTo4 + `}`,
			steps: "ADD\nPING c1 10.1.0.1\nPING c1 192.0.2.254\nDEL",
		},
		{
			name: "bridge/two-containers", conf: `{"type":"bridge","isGateway":true,` + poolTo4 + `}`,
			steps: "ADD\nADD id=c2\nPING c1 10.1.0.3\nDEL\nPING c2 10.1.0.1\nDEL id=c2",
		},
		{
			name: "bridge/two-interfaces", conf: `{"type":"bridge","isGateway":true,` + pool4 + `}`,
			steps: "ADD\nADD if=net1\nCHECK\nCHECK if=net1\nDEL if=net1\nCHECK\nDEL",
		},
		{
			name: "bridge/own-bridge", conf: `{"type":"bridge","bridge":"mine","isGateway":true,"mtu":1400,` + pool4 + `}`,
			setup: "ip link add mine address 02:00:00:00:01:01 type bridge\nip link set mine up",
		},
		{
			name: "bridge/other-address", conf: `{"type":"bridge","isGateway":true,` + pool4 + `}`,
			setup: "ip link add cni0 address 02:00:00:00:01:01 type bridge\nip addr add 10.7.0.1/24 dev cni0",
		},
		{
			name: "bridge/force-address", conf: `{"type":"bridge","isGateway":true,"forceAddress":true,` + pool4 + `}`,
			setup: "ip link add cni0 address 02:00:00:00:01:01 type bridge\nip addr add 10.7.0.1/24 dev cni0",
		},
		{
			name: "bridge/other-address-v6", conf: `{"type":"bridge","isGateway":true,` + pool6 + `}`,
			setup: "ip link add cni0 address 02:00:00:00:01:01 type bridge\nip addr add 2001:db8:7::1/64 dev cni0 nodad",
		},
		{
			name: "bridge/overlap-v6", conf: `{"type":"bridge","isGateway":true,` + pool6 + `}`,
			setup: "ip link add cni0 address 02:00:00:00:01:01 type bridge\nip addr add 2001:db8:1::7/64 dev cni0 nodad",
		},
		{name: "bridge/again", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "bridge/del-first", conf: `{"type":"bridge","ipMasq":true,` + pool4 + `}`, steps: "DEL\nADD\nDEL noprev"},
		{name: "bridge/del-without-netns", conf: `{"type":"bridge","isGateway":true,` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "bridge/check-missing", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ADD\nip -n c1 link del eth0\nCHECK\nDEL"},
		{name: "bridge/check-address", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "bridge/check-route", conf: `{"type":"bridge","isGateway":true,` + poolTo4 + `}`, steps: "ADD\nip -n c1 route del 198.51.100.0/24\nCHECK\nDEL"},
		{name: "bridge/check-no-prev", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ADD\nCHECK noprev\nDEL"},
		{name: "bridge/verbs", conf: `{"type":"bridge",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nSTATUS\nDEL"},
		{name: "bridge/fail-name-taken", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "bridge/fail-no-bridge", conf: `{"type":"bridge","bridge":"uplink",` + pool4 + `}`},
		{name: "bridge/fail-no-netns", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ip netns del c1\nADD\nDEL"},
		{name: "bridge/fail-no-path", conf: `{"type":"bridge",` + pool4 + `}`, steps: "ADD nopath\nADD\nDEL nopath\nDEL\nSTATUS nopath"},
		{name: "bridge/l2-no-path", conf: `{"type":"bridge"}`, steps: "ADD nopath\nDEL nopath"},
		{name: "bridge/route-host-bits", conf: `{"type":"bridge","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"198.51.100.7/24"}]}}`, steps: "ADD\nCHECK\nDEL"},
		{name: "bridge/two-gateways", conf: `{"type":"bridge","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]}}`, steps: "ADD\nCHECK\nPING c1 10.1.0.1\nPING c1 10.2.0.1\nDEL"},
		{name: "bridge/two-gateways-force", conf: `{"type":"bridge","isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]}}`, steps: "ADD\nCHECK\nDEL"},
		{name: "bridge/fail-ipam-absent", conf: `{"type":"bridge","ipam":{"type":"none-such"}}`},
		{name: "bridge/fail-ipam-exhausted", conf: `{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.5","rangeEnd":"10.1.0.5"}]]}}`, steps: "ADD\nADD id=c2\nDEL id=c2\nDEL"},
		{name: "bridge/fail-mac", conf: `{"type":"bridge",` + pool4 + `}`, args: "MAC=nonsense"},
		{name: "bridge/fail-args", conf: `{"type":"bridge",` + pool4 + `}`, args: "UNKNOWN=1"},
		{name: "bridge/fail-hairpin-promisc", conf: `{"type":"bridge","hairpinMode":true,"promiscMode":true,` + pool4 + `}`},
		{name: "bridge/fail-down-with-ipam", conf: `{"type":"bridge","disableContainerInterface":true,` + pool4 + `}`},
		{name: "bridge/fail-vlan-4095", conf: `{"type":"bridge","vlan":4095,` + pool4 + `}`},
		{name: "bridge/fail-trunk", conf: `{"type":"bridge","vlanTrunk":[{"minID":10}]}`},
		{name: "bridge/fail-trunk-order", conf: `{"type":"bridge","vlanTrunk":[{"minID":10,"maxID":9}]}`},
		{name: "bridge/fail-masq-backend", conf: `{"type":"bridge","ipMasq":true,"ipMasqBackend":"pf",` + pool4 + `}`},
		{name: "bridge/fail-type", conf: `{"type":"bridge","mtu":"large",` + pool4 + `}`},
		{name: "bridge/fail-version", conf: `{"type":"bridge",` + pool4 + `}`, version: "9.9.9"},
	}
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"} {
		cases = append(cases,
			testCase{name: "bridge/version-" + v, version: v, conf: `{"type":"bridge","isGateway":true,"dns":{"domain":"d.example"},` + poolDual + `}`},
			testCase{name: "bridge/l2-version-" + v, version: v, conf: `{"type":"bridge"}`},
		)
	}
	for _, c := range []testCase{
		{name: "bridge-vlan/access", conf: `{"type":"bridge","vlan":100}`},
		{name: "bridge-vlan/access-l3", conf: `{"type":"bridge","vlan":100,"isGateway":true,` + pool4 + `}`},
		{name: "bridge-vlan/default-kept", conf: `{"type":"bridge","vlan":100,"preserveDefaultVlan":true,"isGateway":true,` + pool4 + `}`},
		{name: "bridge-vlan/trunk", conf: `{"type":"bridge","vlanTrunk":[{"id":101},{"minID":200,"maxID":210}]}`},
		{name: "bridge-vlan/access-and-trunk", conf: `{"type":"bridge","vlan":100,"vlanTrunk":[{"id":101},{"minID":200,"maxID":203}]}`},
	} {
		c.needs = netopstest.NeedVLANFiltering
		cases = append(cases, c)
	}
	return cases
}
