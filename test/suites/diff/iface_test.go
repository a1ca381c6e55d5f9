package diff

func ptpCases() []testCase {
	cases := []testCase{
		{name: "ptp/v4", conf: `{"type":"ptp",` + poolTo4 + `}`, steps: "ADD\nCHECK\nPING c1 10.1.0.1\nDEL"},
		{name: "ptp/v6", conf: `{"type":"ptp",` + pool6 + `}`},
		{name: "ptp/dual", conf: `{"type":"ptp",` + poolDual + `}`},
		{name: "ptp/mtu", conf: `{"type":"ptp","mtu":1400,` + pool4 + `}`},
		{name: "ptp/dns", conf: `{"type":"ptp","dns":{"nameservers":["10.9.9.9"]},` + pool4 + `}`},
		{name: "ptp/dns-none", conf: `{"type":"ptp","dns":{"nameservers":[]},` + pool4 + `}`},
		{name: "ptp/masq-iptables", conf: `{"type":"ptp","ipMasq":true,` + poolTo4 + `}`, steps: "ADD\nCHECK\nPING c1 192.0.2.254\nDEL"},
		{name: "ptp/masq-nftables", conf: `{"type":"ptp","ipMasq":true,"ipMasqBackend":"nftables",` + poolTo4 + `}`, steps: "ADD\nCHECK\nPING c1 192.0.2.254\nDEL"},
		{name: "ptp/two-containers", conf: `{"type":"ptp",` + poolTo4 + `}`, steps: "ADD\nADD id=c2\nPING c1 10.1.0.3\nDEL\nPING c2 10.1.0.1\nDEL id=c2"},
		{name: "ptp/two-interfaces", conf: `{"type":"ptp",` + pool4 + `}`, steps: "ADD\nADD if=net1\nCHECK\nDEL if=net1\nCHECK\nDEL"},
		{name: "ptp/again", conf: `{"type":"ptp",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "ptp/del-first", conf: `{"type":"ptp",` + pool4 + `}`, steps: "DEL\nADD\nDEL noprev"},
		{name: "ptp/del-without-netns", conf: `{"type":"ptp",` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "ptp/check-address", conf: `{"type":"ptp",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "ptp/verbs", conf: `{"type":"ptp",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "ptp/l2", conf: `{"type":"ptp"}`},
		{name: "ptp/fail-name-taken", conf: `{"type":"ptp",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "ptp/far-gateway", conf: `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0","gw":"172.31.0.1"}]}}`},
		{name: "ptp/fail-masq-backend", conf: `{"type":"ptp","ipMasq":true,"ipMasqBackend":"pf",` + pool4 + `}`},
	}
	for _, v := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0"} {
		cases = append(cases, testCase{name: "ptp/version-" + v, version: v, conf: `{"type":"ptp",` + poolTo4 + `}`})
	}
	return cases
}

func macvlanCases() []testCase {
	cases := []testCase{
		{name: "macvlan/v4", conf: `{"type":"macvlan","master":"uplink",` + poolTo4 + `}`},
		{name: "macvlan/v6", conf: `{"type":"macvlan","master":"uplink",` + pool6 + `}`},
		{name: "macvlan/dual", conf: `{"type":"macvlan","master":"uplink",` + poolDual + `}`},
		{name: "macvlan/l2", conf: `{"type":"macvlan","master":"uplink"}`},
		{name: "macvlan/default-route", conf: `{"type":"macvlan",` + pool4 + `}`},
		{name: "macvlan/private", conf: `{"type":"macvlan","master":"uplink","mode":"private",` + pool4 + `}`},
		{name: "macvlan/vepa", conf: `{"type":"macvlan","master":"uplink","mode":"vepa",` + pool4 + `}`},
		{name: "macvlan/passthru", conf: `{"type":"macvlan","master":"uplink","mode":"passthru",` + pool4 + `}`},
		{name: "macvlan/mtu", conf: `{"type":"macvlan","master":"uplink","mtu":1400,` + pool4 + `}`},
		{name: "macvlan/mac", conf: `{"type":"macvlan","master":"uplink","mac":"c2:11:22:33:44:55",` + pool4 + `}`},
		{name: "macvlan/mac-args", conf: `{"type":"macvlan","master":"uplink","mac":"c2:11:22:33:44:55",` + pool4 + `}`, args: "IgnoreUnknown=1;MAC=c2:11:22:33:44:66"},
		{name: "macvlan/mac-runtime", conf: `{"type":"macvlan","master":"uplink","capabilities":{"mac":true},"runtimeConfig":{"mac":"c2:11:22:33:44:77"},` + pool4 + `}`, args: "IgnoreUnknown=1;MAC=c2:11:22:33:44:66"},
		{name: "macvlan/bcqueuelen", conf: `{"type":"macvlan","master":"uplink","bcqueuelen":2000,` + pool4 + `}`},
		{name: "macvlan/dns", conf: `{"type":"macvlan","master":"uplink","dns":{"nameservers":["10.9.9.9"]},` + pool4 + `}`},
		{name: "macvlan/in-container", conf: `{"type":"macvlan","master":"inner","linkInContainer":true,` + pool4 + `}`, steps: "ip -n c1 link add inner type bridge\nip -n c1 link set inner up\nADD\nCHECK\nDEL"},
		{name: "macvlan/two-containers", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nADD id=c2\nPING c1 10.1.0.3\nDEL\nDEL id=c2"},
		{name: "macvlan/again", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "macvlan/del-first", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "DEL\nADD\nDEL noprev"},
		{name: "macvlan/del-without-netns", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "macvlan/del-without-master", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nip link del uplink\nDEL"},
		{name: "macvlan/check-address", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "macvlan/verbs", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "macvlan/fail-no-master", conf: `{"type":"macvlan","master":"absent",` + pool4 + `}`},
		{name: "macvlan/fail-mode", conf: `{"type":"macvlan","master":"uplink","mode":"other",` + pool4 + `}`},
		{name: "macvlan/fail-mtu", conf: `{"type":"macvlan","master":"uplink","mtu":9000,` + pool4 + `}`},
		{name: "macvlan/fail-mac", conf: `{"type":"macvlan","master":"uplink","mac":"nonsense",` + pool4 + `}`},
		{name: "macvlan/fail-name-taken", conf: `{"type":"macvlan","master":"uplink",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "macvlan/fail-ipam-absent", conf: `{"type":"macvlan","master":"uplink","ipam":{"type":"none-such"}}`},
		{name: "macvlan/fail-route", conf: `{"type":"macvlan","master":"uplink",` + groupGateway + `}`},
	}
	for _, v := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0"} {
		cases = append(cases, testCase{name: "macvlan/version-" + v, version: v, conf: `{"type":"macvlan","master":"uplink",` + poolTo4 + `}`})
	}
	return cases
}

func tapCases() []testCase {
	return []testCase{
		{name: "tap/v4", conf: `{"type":"tap",` + poolTo4 + `}`},
		{name: "tap/v6", conf: `{"type":"tap",` + pool6 + `}`},
		{name: "tap/l2", conf: `{"type":"tap"}`},
		{name: "tap/multi-queue", conf: `{"type":"tap","multiQueue":true,` + pool4 + `}`},
		{name: "tap/owner", conf: `{"type":"tap","owner":1000,"group":1001,` + pool4 + `}`},
		{name: "tap/mtu", conf: `{"type":"tap","mtu":1400,` + pool4 + `}`},
		{name: "tap/mac", conf: `{"type":"tap","mac":"c2:11:22:33:44:55",` + pool4 + `}`},
		{name: "tap/mac-owner", conf: `{"type":"tap","mac":"c2:11:22:33:44:55","owner":1000,"group":1001,` + pool4 + `}`},
		{name: "tap/mac-args", conf: `{"type":"tap","mac":"c2:11:22:33:44:55",` + pool4 + `}`, args: "IgnoreUnknown=1;MAC=c2:11:22:33:44:66"},
		{name: "tap/mac-runtime", conf: `{"type":"tap","capabilities":{"mac":true},"runtimeConfig":{"mac":"c2:11:22:33:44:77"},` + pool4 + `}`},
		{name: "tap/bridge", conf: `{"type":"tap","bridge":"inner",` + pool4 + `}`, steps: "ip -n c1 link add inner address 02:00:00:00:01:01 type bridge\nip -n c1 link set inner up\nADD\nCHECK\nDEL"},
		{name: "tap/again", conf: `{"type":"tap",` + pool4 + `}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "tap/del-first", conf: `{"type":"tap",` + pool4 + `}`, steps: "DEL\nADD\nDEL noprev"},
		{name: "tap/del-without-netns", conf: `{"type":"tap",` + pool4 + `}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "tap/check-address", conf: `{"type":"tap",` + pool4 + `}`, steps: "ADD\nip -n c1 addr flush dev eth0\nCHECK\nDEL"},
		{name: "tap/verbs", conf: `{"type":"tap",` + pool4 + `}`, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "tap/version-0.3.1", version: "0.3.1", conf: `{"type":"tap",` + poolTo4 + `}`},
		{name: "tap/fail-name-taken", conf: `{"type":"tap",` + pool4 + `}`, steps: "ip -n c1 link add eth0 type bridge\nADD\nDEL"},
		{name: "tap/fail-bridge", conf: `{"type":"tap","bridge":"absent",` + pool4 + `}`},
		{name: "tap/fail-route", conf: `{"type":"tap",` + groupGateway + `}`},
	}
}

// loopbackCases are those of lo, whose configuration is never the first of a user's list.
func loopbackCases() []testCase {
	cases := []testCase{
		{name: "loopback/alone", conf: `{"type":"loopback"}`},
		{name: "loopback/check-down", conf: `{"type":"loopback"}`, steps: "ADD\nip -n c1 link set lo down\nCHECK\nDEL"},
		{name: "loopback/again", conf: `{"type":"loopback"}`, steps: "ADD\nADD\nDEL\nDEL"},
		{name: "loopback/del-without-netns", conf: `{"type":"loopback"}`, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "loopback/other-address", conf: `{"type":"loopback"}`, steps: "ip -n c1 addr add 10.7.7.7/32 dev lo\nADD\nDEL"},
		{name: "loopback/verbs", conf: `{"type":"loopback"}`, steps: "VERSION\nSTATUS"},
		{name: "loopback/chained", conf: `{"type":"loopback","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}}`},
	}
	for i := range cases {
		cases[i].ifname = "lo"
	}
	return append(cases,
		testCase{name: "loopback/ifname", conf: `{"type":"loopback"}`},
		testCase{name: "loopback/version-0.3.1", conf: `{"type":"loopback"}`, ifname: "lo", version: "0.3.1"},
		testCase{name: "loopback/version-0.2.0", conf: `{"type":"loopback"}`, ifname: "lo", version: "0.2.0"},
	)
}
