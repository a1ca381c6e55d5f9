package diff

// ipamCases are those of IPAM plugins that are called directly.
func ipamCases() []testCase {
	const one = `{"subnet":"10.1.0.0/24"}`
	hostLocal := func(ipam string) string { return `{"type":"host-local","ipam":{"type":"host-local",` + ipam + `}}` }
	static := func(ipam string) string { return `{"type":"static","ipam":{"type":"static"` + ipam + `}}` }
	cases := []testCase{
		{name: "host-local/range", conf: hostLocal(`"ranges":[[` + one + `]]`)},
		{name: "host-local/old-style", conf: hostLocal(`"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.20","gateway":"10.1.0.200"`)},
		{name: "host-local/old-and-new", conf: hostLocal(`"subnet":"10.1.0.0/24","ranges":[[{"subnet":"2001:db8:1::/64"}]]`)},
		{name: "host-local/dual", conf: hostLocal(`"ranges":[[` + one + `],[{"subnet":"2001:db8:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"2001:db8:1::9"}]`)},
		{name: "host-local/two-sets", conf: hostLocal(`"ranges":[[` + one + `],[{"subnet":"10.2.0.0/24"}]]`)},
		{name: "host-local/set-of-two", conf: hostLocal(`"ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.5","rangeEnd":"10.1.0.5"},{"subnet":"10.2.0.0/24"}]]`), steps: "ADD\nADD id=c2\nDEL id=c2\nDEL"},
		{name: "host-local/host-bits", conf: hostLocal(`"ranges":[[{"subnet":"10.1.0.77/24"}]]`)},
		{name: "host-local/small", conf: hostLocal(`"ranges":[[{"subnet":"10.1.0.0/30"}]]`), steps: "ADD\nADD id=c2\nDEL id=c2\nDEL"},
		{name: "host-local/round-robin", conf: hostLocal(`"ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.4","rangeEnd":"10.1.0.6"}]]`), steps: "ADD\nDEL\nADD\nADD id=c2\nADD id=c3\nDEL\nADD id=c4\nDEL id=c2\nDEL id=c3\nDEL id=c4"},
		{name: "host-local/route-attributes", conf: hostLocal(`"ranges":[[` + one + `]],"routes":[{"dst":"198.51.100.0/24","gw":"10.1.0.9","mtu":1400,"advmss":1300,"priority":7,"table":100,"scope":0}]`)},
		{name: "host-local/resolv-conf", conf: hostLocal(`"ranges":[[` + one + `]],"resolvConf":"/run/resolv.conf"`), setup: "cp testdata/resolv.conf /run/resolv.conf"},
		{name: "host-local/requested-args", conf: hostLocal(`"ranges":[[` + one + `]]`), args: "IP=10.1.0.99"},
		{name: "host-local/requested-args-prefix", conf: hostLocal(`"ranges":[[` + one + `]]`), args: "IP=10.1.0.99/24"},
		{name: "host-local/requested-cni-args", conf: `{"type":"host-local","args":{"cni":{"ips":["10.1.0.98"]}},"ipam":{"type":"host-local","ranges":[[` + one + `]]}}`},
		{name: "host-local/requested-runtime", conf: `{"type":"host-local","capabilities":{"ips":true},"runtimeConfig":{"ips":["10.1.0.97/24"]},"ipam":{"type":"host-local","ranges":[[` + one + `]]}}`},
		{name: "host-local/requested-two", conf: `{"type":"host-local","args":{"cni":{"ips":["10.1.0.98","2001:db8:1::98"]}},"ipam":{"type":"host-local","ranges":[[` + one + `],[{"subnet":"2001:db8:1::/64"}]]}}`},
		{name: "host-local/runtime-ranges", conf: `{"type":"host-local","capabilities":{"ipRanges":true},"runtimeConfig":{"ipRanges":[[{"subnet":"10.3.0.0/24"}]]},"ipam":{"type":"host-local"}}`},
		{name: "host-local/again", conf: hostLocal(`"ranges":[[` + one + `]]`), steps: "ADD\nADD\nADD id=c2\nADD if=net1\nDEL\nDEL\nDEL id=c2\nDEL if=net1"},
		{name: "host-local/check-released", conf: hostLocal(`"ranges":[[` + one + `]]`), steps: "ADD\nDEL\nCHECK"},
		{name: "host-local/no-netns", conf: hostLocal(`"ranges":[[` + one + `]]`), steps: "ADD netns=/run/netns/none\nDEL netns="},
		{name: "host-local/verbs", conf: hostLocal(`"ranges":[[` + one + `]]`), steps: "VERSION\nSTATUS"},
		{name: "host-local/fail-requested-taken", conf: hostLocal(`"ranges":[[` + one + `]]`), args: "IP=10.1.0.99", steps: "ADD\nADD id=c2\nDEL id=c2\nDEL"},
		{name: "host-local/fail-requested-outside", conf: hostLocal(`"ranges":[[` + one + `]]`), args: "IP=10.9.0.99"},
		{name: "host-local/fail-requested-gateway", conf: hostLocal(`"ranges":[[` + one + `]]`), args: "IP=10.1.0.1"},
		{name: "host-local/fail-overlap", conf: hostLocal(`"ranges":[[` + one + `],[{"subnet":"10.1.0.128/25"}]]`)},
		{name: "host-local/fail-families", conf: hostLocal(`"ranges":[[` + one + `,{"subnet":"2001:db8:1::/64"}]]`)},
		{name: "host-local/tiny", conf: hostLocal(`"ranges":[[{"subnet":"10.1.0.0/31"}]]`)},
		{name: "host-local/fail-start", conf: hostLocal(`"ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}]]`)},
		{name: "host-local/fail-no-ranges", conf: `{"type":"host-local","ipam":{"type":"host-local"}}`},
		{name: "host-local/fail-subnet", conf: hostLocal(`"ranges":[[{"subnet":"nonsense"}]]`)},
		{name: "host-local/fail-resolv-conf", conf: hostLocal(`"ranges":[[` + one + `]],"resolvConf":"/run/none"`)},

		{name: "static/one", conf: static(`,"addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]`)},
		{name: "static/all", conf: static(`,"addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"2001:db8:1::5/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"198.51.100.0/24","gw":"10.1.0.9"}],"dns":{"nameservers":["10.9.9.9"],"domain":"d.example","search":["s.example"],"options":["ndots:3"]}`)},
		{name: "static/ecmp", conf: static(`,"addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"0.0.0.0/0","gw":"10.1.0.2"}]`)},
		{name: "static/args", conf: static(``), args: "IP=10.1.0.6/24,2001:db8:1::6/64;GATEWAY=10.1.0.1"},
		{name: "static/args-add", conf: static(`,"addresses":[{"address":"10.1.0.5/24"}]`), args: "IP=10.1.0.6/24"},
		{name: "static/cni-args", conf: `{"type":"static","args":{"cni":{"ips":["10.1.0.7/24"]}},"ipam":{"type":"static"}}`},
		{name: "static/runtime", conf: `{"type":"static","capabilities":{"ips":true},"runtimeConfig":{"ips":["10.1.0.8/24"]},"ipam":{"type":"static"}}`},
		{name: "static/all-three", conf: `{"type":"static","args":{"cni":{"ips":["10.1.0.7/24"]}},"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.1.0.8/24"]},"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}`, args: "IP=10.1.0.6/24"},
		{name: "static/bare-address", conf: static(`,"addresses":[{"address":"10.1.0.5"}]`)},
		{name: "static/verbs", conf: static(`,"addresses":[{"address":"10.1.0.5/24"}]`), steps: "VERSION\nSTATUS"},
		{name: "static/fail-none", conf: static(``)},
		{name: "static/fail-address", conf: static(`,"addresses":[{"address":"nonsense"}]`)},
		{name: "static/fail-args", conf: static(``), args: "IP=nonsense"},
		{name: "static/fail-runtime", conf: `{"type":"static","capabilities":{"ips":true},"runtimeConfig":{"ips":["nonsense"]},"ipam":{"type":"static"}}`},
		{name: "static/bridge", conf: `{"type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}`},
	}
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0"} {
		cases = append(cases,
			testCase{name: "host-local/version-" + v, version: v, conf: hostLocal(`"ranges":[[` + one + `]],"routes":[{"dst":"0.0.0.0/0"}]`)},
			testCase{name: "static/version-" + v, version: v, conf: static(`,"addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]`)},
		)
	}
	return cases
}
