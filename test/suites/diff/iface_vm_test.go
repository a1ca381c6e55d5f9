package diff

import (
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
)

// needKind skips roles whose kind of link this kernel lacks.
func needKind(kind string, cases ...testCase) []testCase {
	for i := range cases {
		cases[i].needs = needs(kind)
	}
	return cases
}

func needs(kind string) func(testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		netopstest.NeedKind(t, kind)
	}
}

func vlanCases() []testCase {
	return needKind("vlan", []testCase{
		{name: "vlan/v4", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + poolTo4 + `}`},
		{name: "vlan/v6", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool6 + `}`},
		{name: "vlan/l2", conf: `{"type":"vlan","master":"uplink","vlanId":100}`},
		{name: "vlan/mtu", conf: `{"type":"vlan","master":"uplink","vlanId":100,"mtu":1400,` + pool4 + `}`},
		{name: "vlan/dns", conf: `{"type":"vlan","master":"uplink","vlanId":100,"dns":{"nameservers":["10.9.9.9"]},` + pool4 + `}`},
		{name: "vlan/in-container", conf: `{"type":"vlan","master":"inner","vlanId":100,"linkInContainer":true,` + pool4 + `}`, steps: "ip -n c1 link add inner address 02:00:00:00:01:01 type bridge\nip -n c1 link set inner up\nADD\nCHECK\nDEL"},
		{name: "vlan/again", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "vlan/two-containers", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool4 + `}`, steps: "ADD\nADD id=c2\nDEL\nDEL id=c2"},
		{name: "vlan/del-without-netns", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "vlan/check-address", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "vlan/verbs", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "vlan/version-0.3.1", version: "0.3.1", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + poolTo4 + `}`},
		{name: "vlan/fail-no-master", conf: `{"type":"vlan","vlanId":100,` + pool4 + `}`},
		{name: "vlan/fail-id", conf: `{"type":"vlan","master":"uplink","vlanId":4095,` + pool4 + `}`},
		{name: "vlan/fail-mtu", conf: `{"type":"vlan","master":"uplink","vlanId":100,"mtu":9000,` + pool4 + `}`},
		{name: "vlan/fail-name-taken", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "vlan/fail-route", conf: `{"type":"vlan","master":"uplink","vlanId":100,` + groupGateway + `}`},
	}...)
}

func ipvlanCases() []testCase {
	return needKind("ipvlan", []testCase{
		{name: "ipvlan/v4", conf: `{"type":"ipvlan","master":"uplink",` + poolTo4 + `}`},
		{name: "ipvlan/v6", conf: `{"type":"ipvlan","master":"uplink",` + pool6 + `}`},
		{name: "ipvlan/l3", conf: `{"type":"ipvlan","master":"uplink","mode":"l3",` + pool4 + `}`},
		{name: "ipvlan/l3s", conf: `{"type":"ipvlan","master":"uplink","mode":"l3s",` + pool4 + `}`},
		{name: "ipvlan/mtu", conf: `{"type":"ipvlan","master":"uplink","mtu":1400,` + pool4 + `}`},
		{name: "ipvlan/default-route", conf: `{"type":"ipvlan",` + pool4 + `}`},
		{name: "ipvlan/chained", conf: `{"type":"ipvlan","master":"uplink","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"uplink"}],"ips":[{"address":"10.1.0.9/24","interface":0}]}}`, steps: "ADD\nDEL"},
		{name: "ipvlan/in-container", conf: `{"type":"ipvlan","master":"inner","linkInContainer":true,` + pool4 + `}`, steps: "ip -n c1 link add inner address 02:00:00:00:01:01 type bridge\nip -n c1 link set inner up\nADD\nCHECK\nDEL"},
		{name: "ipvlan/again", conf: `{"type":"ipvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "ipvlan/two-containers", conf: `{"type":"ipvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nADD id=c2\nPING c1 10.1.0.3\nDEL\nDEL id=c2"},
		{name: "ipvlan/del-without-netns", conf: `{"type":"ipvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "ipvlan/check-address", conf: `{"type":"ipvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "ipvlan/verbs", conf: `{"type":"ipvlan","master":"uplink",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "ipvlan/version-0.3.1", version: "0.3.1", conf: `{"type":"ipvlan","master":"uplink",` + poolTo4 + `}`},
		{name: "ipvlan/fail-mode", conf: `{"type":"ipvlan","master":"uplink","mode":"l9",` + pool4 + `}`},
		{name: "ipvlan/fail-name-taken", conf: `{"type":"ipvlan","master":"uplink",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "ipvlan/fail-route", conf: `{"type":"ipvlan","master":"uplink",` + groupGateway + `}`},
	}...)
}

func dummyCases() []testCase {
	return needKind("dummy", []testCase{
		{name: "dummy/v4", conf: `{"type":"dummy",` + poolTo4 + `}`},
		{name: "dummy/v6", conf: `{"type":"dummy",` + pool6 + `}`},
		{name: "dummy/again", conf: `{"type":"dummy",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "dummy/del-without-netns", conf: `{"type":"dummy",` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "dummy/check-address", conf: `{"type":"dummy",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "dummy/verbs", conf: `{"type":"dummy",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "dummy/version-0.3.1", version: "0.3.1", conf: `{"type":"dummy",` + poolTo4 + `}`},
		{name: "dummy/fail-no-ipam", conf: `{"type":"dummy"}`},
		{name: "dummy/fail-name-taken", conf: `{"type":"dummy",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "dummy/fail-route", conf: `{"type":"dummy",` + groupGateway + `}`},
	}...)
}

// hostDeviceCases move one end of a veth pair: a kernel without dummy interfaces has no other device for it.
func hostDeviceCases() []testCase {
	const device = "ip link add hd0 address 02:00:00:00:00:11 type veth peer name hd1 address 02:00:00:00:00:12"
	cases := []testCase{
		{name: "host-device/v4", conf: `{"type":"host-device","device":"hd0",` + poolTo4 + `}`},
		{name: "host-device/v6", conf: `{"type":"host-device","device":"hd0",` + pool6 + `}`},
		{name: "host-device/l2", conf: `{"type":"host-device","device":"hd0"}`},
		{name: "host-device/mac", conf: `{"type":"host-device","hwaddr":"02:00:00:00:00:11",` + pool4 + `}`},
		{name: "host-device/up", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, setup: device + "\nip link set hd0 up mtu 1400\nip addr add 10.8.8.8/24 dev hd0"},
		{
			name: "host-device/network", conf: `{"type":"host-device","device":"hd0","useInterfaceNetwork":true}`, needs: since110,
			setup: device + `
ip addr add 10.8.8.8/24 dev hd0
ip addr add 2001:db8:8::8/64 dev hd0 nodad
ip link set hd0 up
ip link set hd1 up
ip route add 198.51.100.0/24 via 10.8.8.1 dev hd0
ip route add default via 10.8.8.1 dev hd0 table 1234
ip rule add priority 500 from 10.8.8.8 lookup 1234`,
		},
		{name: "host-device/same-name", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, ifname: "hd0"},
		{name: "host-device/check-address", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "host-device/again", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "host-device/del-first", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, steps: "DEL\nADD\nDEL noprev"},
		{name: "host-device/del-without-netns", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "host-device/verbs", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "host-device/version-0.3.1", version: "0.3.1", conf: `{"type":"host-device","device":"hd0",` + poolTo4 + `}`},
		{name: "host-device/fail-no-selector", conf: `{"type":"host-device",` + pool4 + `}`},
		{name: "host-device/fail-absent", conf: `{"type":"host-device","device":"none",` + pool4 + `}`},
		{name: "host-device/fail-name-taken", conf: `{"type":"host-device","device":"hd0",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "host-device/fail-route", conf: `{"type":"host-device","device":"hd0",` + groupGateway + `}`},
		{name: "host-device/fail-ipam-absent", conf: `{"type":"host-device","device":"hd0","ipam":{"type":"none-such"}}`},
	}
	for i := range cases {
		if cases[i].setup == "" {
			cases[i].setup = device
		}
	}
	return cases
}
