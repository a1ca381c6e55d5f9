package diff

// Interface plugins that come before the chained ones.
const (
	gatewayBridge = `{"type":"bridge","isGateway":true,` + poolTo4 + `}`
	hairpinBridge = `{"type":"bridge","isGateway":true,"hairpinMode":true,` + poolTo4 + `}`
	dualBridge    = `{"type":"bridge","isGateway":true,` + poolDual + `}`
)

// published returns a portmap configuration with mappings and further keys.
func published(mappings, more string) []string {
	return []string{`{"type":"portmap","capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[` + mappings + `]}` + more + `}`}
}

const oneMapping = `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`

func portmapCases() []testCase {
	const dials = "SERVE c1 80\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDIAL host 192.0.2.1:8080\nDIAL host 127.0.0.1:8080\nDIAL c1 192.0.2.1:8080\nDEL\nDIAL outside 192.0.2.1:8080"
	cases := []testCase{
		{name: "portmap/tcp", conf: hairpinBridge, behind: published(oneMapping, ""), steps: dials},
		{name: "portmap/nftables", conf: hairpinBridge, behind: published(oneMapping, `,"backend":"nftables"`), steps: dials},
		{name: "portmap/no-snat", conf: hairpinBridge, behind: published(oneMapping, `,"snat":false`), steps: "SERVE c1 80\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDEL"},
		{name: "portmap/masq-all", conf: hairpinBridge, behind: published(oneMapping, `,"masqAll":true`), steps: dials},
		{name: "portmap/mark-bit", conf: hairpinBridge, behind: published(oneMapping, `,"markMasqBit":7`), steps: dials},
		{
			name: "portmap/host-ip", conf: hairpinBridge, behind: published(`{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"192.0.2.1"}`, ""),
			steps: "SERVE c1 80\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDIAL host 127.0.0.1:8080\nDEL",
		},
		{
			name: "portmap/other-host-ip", conf: hairpinBridge, behind: published(`{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"127.0.0.1"}`, ""),
			steps: "SERVE c1 80\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDIAL host 127.0.0.1:8080\nDEL",
		},
		{name: "portmap/udp", conf: hairpinBridge, behind: published(`{"hostPort":8053,"containerPort":53,"protocol":"udp"}`, "")},
		{
			name: "portmap/many", conf: hairpinBridge, behind: published(oneMapping+`,{"hostPort":8081,"containerPort":81,"protocol":"tcp"},{"hostPort":8080,"containerPort":80,"protocol":"udp"}`, ""),
			steps: "SERVE c1 80\nSERVE c1 81\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDIAL outside 192.0.2.1:8081\nDIAL outside 192.0.2.1:8082\nDEL",
		},
		{
			name: "portmap/v6", conf: dualBridge, behind: published(oneMapping, ""),
			steps: "SERVE c1 80\nADD\nCHECK\nDIAL outside [2001:db8:ffff::1]:8080\nDIAL host [2001:db8:ffff::1]:8080\nDEL\nDIAL outside [2001:db8:ffff::1]:8080",
		},
		{
			name: "portmap/condition", conf: hairpinBridge, behind: published(oneMapping, `,"conditionsV4":["-s","192.0.2.0/24"]`),
			steps: "SERVE c1 80\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDEL",
		},
		{
			name: "portmap/condition-not", conf: hairpinBridge, behind: published(oneMapping, `,"conditionsV4":["!","-s","192.0.2.0/24"]`),
			steps: "SERVE c1 80\nADD\nCHECK\nDIAL outside 192.0.2.1:8080\nDEL",
		},
		{
			name: "portmap/two-containers", conf: hairpinBridge, behind: published(oneMapping, ""),
			steps: "SERVE c1 80\nSERVE c2 80\nADD\nDIAL outside 192.0.2.1:8080\nDEL\nADD id=c2\nDIAL outside 192.0.2.1:8080\nDEL id=c2",
		},
		{name: "portmap/none", conf: hairpinBridge, behind: []string{`{"type":"portmap","capabilities":{"portMappings":true}}`}},
		{name: "portmap/fail-port-0", conf: hairpinBridge, behind: published(`{"hostPort":0,"containerPort":80,"protocol":"tcp"}`, "")},
		{name: "portmap/del-first", conf: hairpinBridge, behind: published(oneMapping, ""), steps: "DEL\nADD\nDEL noprev"},
		{name: "portmap/del-without-netns", conf: hairpinBridge, behind: published(oneMapping, ""), steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "portmap/verbs", conf: hairpinBridge, behind: published(oneMapping, ""), steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "portmap/fail-container-port", conf: hairpinBridge, behind: published(`{"hostPort":8080,"containerPort":-1,"protocol":"tcp"}`, "")},
		{name: "portmap/fail-mark-bit", conf: hairpinBridge, behind: published(oneMapping, `,"markMasqBit":32`)},
	}
	for _, v := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0"} {
		cases = append(cases, testCase{name: "portmap/version-" + v, version: v, conf: hairpinBridge, behind: published(oneMapping, ""), steps: dials})
	}
	return cases
}

func firewallCases() []testCase {
	const (
		plain   = `{"type":"firewall","backend":"iptables"}`
		refuses = "iptables -P FORWARD DROP"
		pings   = "ip -n outside route add 10.1.0.0/24 via 192.0.2.1\nADD\nCHECK\nADD id=c2\nPING c1 192.0.2.254\nPING outside 10.1.0.2\nPING c1 10.1.0.3\nDEL\nPING c2 192.0.2.254\nDEL id=c2"
		// The administrator's rule applies to each container, and after the last one.
		adminRule      = "ip -n outside route add 10.1.0.0/24 via 192.0.2.1\niptables -N CNI-ADMIN\niptables -A CNI-ADMIN -p icmp -d 192.0.2.254 -j DROP"
		refusedByAdmin = "ADD\nCHECK\nPING c1 192.0.2.254\nPING c1 192.0.2.1\nDEL\nADD id=c2\nPING c2 192.0.2.254\nDEL id=c2"
	)
	return []testCase{
		{name: "firewall/default", conf: gatewayBridge, behind: []string{`{"type":"firewall"}`}, steps: pings},
		{name: "firewall/forward-drop", conf: gatewayBridge, behind: []string{`{"type":"firewall"}`}, setup: refuses, steps: pings},
		{name: "firewall/iptables", conf: gatewayBridge, behind: []string{plain}, setup: refuses, steps: pings},
		{name: "firewall/admin-chain", conf: gatewayBridge, behind: []string{`{"type":"firewall","backend":"iptables","iptablesAdminChainName":"MY-ADMIN"}`}, setup: refuses, steps: pings},
		{name: "firewall/admin-rule", conf: gatewayBridge, behind: []string{`{"type":"firewall"}`}, setup: adminRule, steps: refusedByAdmin},
		{name: "ptp/firewall-admin-rule", conf: `{"type":"ptp",` + poolTo4 + `}`, behind: []string{`{"type":"firewall"}`}, setup: adminRule, steps: refusedByAdmin},
		{name: "firewall/isolated", conf: gatewayBridge, behind: []string{`{"type":"firewall","backend":"iptables","ingressPolicy":"isolated"}`}, steps: pings},
		{name: "firewall/same-bridge", conf: gatewayBridge, behind: []string{`{"type":"firewall","backend":"iptables","ingressPolicy":"same-bridge"}`}, steps: pings},
		{name: "firewall/open", conf: gatewayBridge, behind: []string{`{"type":"firewall","backend":"iptables","ingressPolicy":"open"}`}, setup: refuses, steps: pings},
		{name: "firewall/dual", conf: dualBridge, behind: []string{plain}, setup: refuses + "\nip6tables -P FORWARD DROP", steps: "ADD\nCHECK\nPING c1 192.0.2.254\nDEL"},
		{name: "firewall/del-first", conf: gatewayBridge, behind: []string{plain}, steps: "DEL\nADD\nDEL noprev"},
		{name: "firewall/del-without-netns", conf: gatewayBridge, behind: []string{plain}, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "firewall/verbs", conf: gatewayBridge, behind: []string{plain}, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "firewall/fail-policy", conf: gatewayBridge, behind: []string{`{"type":"firewall","backend":"iptables","ingressPolicy":"closed"}`}},
		{name: "firewall/fail-backend", conf: gatewayBridge, behind: []string{`{"type":"firewall","backend":"pf"}`}},
		{name: "firewall/version-0.4.0", version: "0.4.0", conf: gatewayBridge, behind: []string{plain}, setup: refuses, steps: pings},
		{name: "firewall/version-1.0.0", version: "1.0.0", conf: gatewayBridge, behind: []string{plain}, setup: refuses, steps: pings},
	}
}

func tuningCases() []testCase {
	cases := []testCase{
		{name: "tuning/none", behind: []string{`{"type":"tuning"}`}},
		{name: "tuning/sysctl", behind: []string{`{"type":"tuning","sysctl":{"net.core.somaxconn":"512","net.ipv4.conf.IFNAME.arp_filter":"1"}}`}},
		{name: "tuning/sysctl-slashes", behind: []string{`{"type":"tuning","sysctl":{"net/ipv4/ip_unprivileged_port_start":"80"}}`}},
		{name: "tuning/mac", behind: []string{`{"type":"tuning","mac":"c2:11:22:33:44:55"}`}},
		{name: "tuning/mac-args", behind: []string{`{"type":"tuning","mac":"c2:11:22:33:44:55"}`}, args: "IgnoreUnknown=1;MAC=c2:11:22:33:44:66"},
		{name: "tuning/mac-runtime", behind: []string{`{"type":"tuning","capabilities":{"mac":true},"runtimeConfig":{"mac":"c2:11:22:33:44:77"}}`}},
		{name: "tuning/mac-cni-args", behind: []string{`{"type":"tuning","args":{"cni":{"mac":"c2:11:22:33:44:88"}}}`}},
		{name: "tuning/mtu", behind: []string{`{"type":"tuning","mtu":1400}`}},
		{name: "tuning/promisc", behind: []string{`{"type":"tuning","promisc":true}`}},
		{name: "tuning/allmulti", behind: []string{`{"type":"tuning","allmulti":true}`}},
		{name: "tuning/txqlen", behind: []string{`{"type":"tuning","txQLen":20000}`}},
		{name: "tuning/all", behind: []string{`{"type":"tuning","mac":"c2:11:22:33:44:55","mtu":1400,"promisc":true,"allmulti":true,"txQLen":20000,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"dataDir":"/run/backup"}`}},
		{name: "tuning/check-mtu", behind: []string{`{"type":"tuning","mtu":1400}`}, steps: "ADD\nip -n c1 link set eth0 mtu 1300\nCHECK\nDEL"},
		{name: "tuning/check-sysctl", behind: []string{`{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}`}, steps: "ADD\nip netns exec c1 sysctl -q -w net.ipv4.conf.eth0.arp_filter=0\nCHECK\nDEL"},
		{name: "tuning/del-first", behind: []string{`{"type":"tuning","mtu":1400}`}, steps: "DEL\nADD\nDEL noprev"},
		{name: "tuning/del-without-netns", behind: []string{`{"type":"tuning","mtu":1400}`}, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "tuning/verbs", behind: []string{`{"type":"tuning","mtu":1400}`}, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "tuning/fail-key", behind: []string{`{"type":"tuning","sysctl":{"kernel.hostname":"x"}}`}},
		{name: "tuning/fail-mac", behind: []string{`{"type":"tuning","mac":"nonsense"}`}},
		{name: "tuning/version-0.2.0", version: "0.2.0", behind: []string{`{"type":"tuning","mac":"c2:11:22:33:44:55","sysctl":{"net.core.somaxconn":"512"}}`}},
		{name: "tuning/twice", behind: []string{`{"type":"tuning","mtu":1400}`, `{"type":"tuning","sysctl":{"net.core.somaxconn":"512"}}`}},
	}
	for i := range cases {
		cases[i].conf = gatewayBridge
	}
	return cases
}

func bandwidthCases() []testCase {
	const both = `{"type":"bandwidth","ingressRate":8000000,"ingressBurst":800000,"egressRate":4000000,"egressBurst":400000}`
	return []testCase{
		{name: "bandwidth/both", conf: gatewayBridge, behind: []string{both}, steps: "ADD\nCHECK\nPING c1 192.0.2.1\nDEL"},
		{name: "bandwidth/ingress", conf: gatewayBridge, behind: []string{`{"type":"bandwidth","ingressRate":8000000,"ingressBurst":800000}`}},
		{name: "bandwidth/egress", conf: gatewayBridge, behind: []string{`{"type":"bandwidth","egressRate":4000000,"egressBurst":400000}`}},
		{name: "bandwidth/runtime", conf: gatewayBridge, behind: []string{`{"type":"bandwidth","capabilities":{"bandwidth":true},"runtimeConfig":{"bandwidth":{"ingressRate":8000000,"ingressBurst":800000}}}`}},
		{name: "bandwidth/kubernetes", conf: gatewayBridge, behind: []string{`{"type":"bandwidth","capabilities":{"bandwidth":true},"runtimeConfig":{"bandwidth":{"ingressRate":80000000,"ingressBurst":4294967295}}}`}},
		{name: "bandwidth/none", conf: gatewayBridge, behind: []string{`{"type":"bandwidth"}`}},
		{name: "bandwidth/ptp", conf: `{"type":"ptp",` + poolTo4 + `}`, behind: []string{both}, steps: "ADD\nCHECK\nPING c1 10.1.0.1\nDEL"},
		{name: "bandwidth/two-containers", conf: gatewayBridge, behind: []string{both}, steps: "ADD\nADD id=c2\nPING c1 10.1.0.3\nDEL\nPING c2 10.1.0.1\nDEL id=c2"},
		{name: "bandwidth/del-first", conf: gatewayBridge, behind: []string{both}, steps: "DEL\nADD\nDEL noprev"},
		{name: "bandwidth/del-without-netns", conf: gatewayBridge, behind: []string{both}, steps: "ADD\nHOLD c1\nip netns del c1\nDEL\nDEL netns="},
		{name: "bandwidth/verbs", conf: gatewayBridge, behind: []string{both}, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "bandwidth/fail-burst", conf: gatewayBridge, behind: []string{`{"type":"bandwidth","ingressRate":8000000}`}},
		{name: "bandwidth/version-0.4.0", version: "0.4.0", conf: gatewayBridge, behind: []string{both}},
	}
}

func sbrCases() []testCase {
	return []testCase{
		{name: "sbr/v4", conf: gatewayBridge, behind: []string{`{"type":"sbr"}`}, steps: "ADD\nPING c1 192.0.2.1\nDEL"},
		{name: "sbr/dual", conf: dualBridge, behind: []string{`{"type":"sbr"}`}, steps: "ADD\nPING c1 192.0.2.1\nDEL"},
		{name: "sbr/table", conf: gatewayBridge, behind: []string{`{"type":"sbr","table":4711}`}, steps: "ADD\nDEL"},
		{name: "sbr/gateways", conf: gatewayBridge, behind: []string{`{"type":"sbr","gateways":["10.1.0.77"]}`}, steps: "ADD\nDEL"},
		{name: "sbr/source-hints", conf: gatewayBridge, behind: []string{`{"type":"sbr","addSourceHints":true}`}, steps: "ADD\nDEL"},
		{name: "sbr/two-interfaces", conf: gatewayBridge, behind: []string{`{"type":"sbr"}`}, steps: "ADD\nADD if=net1\nDEL if=net1\nDEL"},
		{name: "sbr/del-first", conf: gatewayBridge, behind: []string{`{"type":"sbr"}`}, steps: "DEL\nADD\nDEL noprev"},
		{name: "sbr/verbs", conf: gatewayBridge, behind: []string{`{"type":"sbr"}`}, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "sbr/version-0.2.0", version: "0.2.0", conf: gatewayBridge, behind: []string{`{"type":"sbr"}`}, steps: "ADD\nPING c1 192.0.2.1\nDEL"},
		{name: "sbr/fail-gateways", conf: gatewayBridge, behind: []string{`{"type":"sbr","gateways":["10.1.0.77","10.1.0.78"]}`}},
	}
}

func vrfCases() []testCase {
	cases := []testCase{
		{name: "vrf/v4", behind: []string{`{"type":"vrf","vrfname":"blue"}`}},
		{name: "vrf/dual", conf: dualBridge, behind: []string{`{"type":"vrf","vrfname":"blue"}`}},
		{name: "vrf/table", behind: []string{`{"type":"vrf","vrfname":"blue","table":77}`}},
		{name: "vrf/two-interfaces", behind: []string{`{"type":"vrf","vrfname":"blue"}`}, steps: "ADD\nADD if=net1\nCHECK\nDEL if=net1\nDEL"},
		{name: "vrf/verbs", behind: []string{`{"type":"vrf","vrfname":"blue"}`}, steps: "VERSION\nSTATUS\nADD\nDEL"},
		{name: "vrf/fail-no-name", behind: []string{`{"type":"vrf"}`}},
	}
	for i := range cases {
		if cases[i].conf == "" {
			cases[i].conf = gatewayBridge
		}
	}
	return needKind("vrf", cases...)
}
