package routed

import (
	"net/netip"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// with is a configuration with an IPAM plugin and additional keys.
func with(keys string) string { return `{"ipam":{"type":"cloud-ipam"}` + keys + `}` }

// TestValidate: all errors are reported at once, each with its path.
func TestValidate(t *testing.T) {
	const uplink = `{"link":"eth1","subnets":["10.0.16.0/20","fd00:1::/64"],"gateways":["10.0.16.1","fe80::1"]}`
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "least", Conf: with(``)},
		{Name: "all good", Conf: with(`,"hostVethPrefix":"eni","mtu":9001,"snat":true,"noSNAT":["192.168.0.0/16"],"ipMasqBackend":"nftables",
			"uplinks":[` + uplink + `],"tableBase":256,"priorities":{"hostRoutes":10,"mark":20,"from":30}`)},
		{Name: "null is not asked", Conf: with(`,"snat":null,"uplinks":null,"priorities":null`)},
		{Name: "no ipam", Conf: `{}`, Paths: []string{"ipam.type"}},
		{Name: "prefix too long", Conf: with(`,"hostVethPrefix":"azure"`), Paths: []string{"hostVethPrefix"}},
		{Name: "prefix of a pattern", Conf: with(`,"hostVethPrefix":"e*"`), Paths: []string{"hostVethPrefix"}},
		{Name: "mtu", Conf: with(`,"mtu":65536`), Paths: []string{"mtu"}},
		{Name: "snat of another type", Conf: with(`,"snat":"auto"`), Paths: []string{"snat"}},
		{Name: "noSNAT", Conf: with(`,"noSNAT":["10.0.0.1","10.0.0.1/8","fd00::/8","::ffff:10.0.0.0/104"]`), Paths: []string{"noSNAT[0]", "noSNAT[1]", "noSNAT[3]"}},
		{Name: "backend", Conf: with(`,"ipMasqBackend":"pf"`), Paths: []string{"ipMasqBackend"}},
		{Name: "uplink of nothing", Conf: with(`,"uplinks":[{}]`), Paths: []string{"uplinks[0].link", "uplinks[0].subnets"}},
		{Name: "uplink without a gateway of the family", Conf: with(`,"uplinks":[` + uplink + `,{"link":"eth2","subnets":["10.0.32.0/20"],"gateways":["fe80::1"]}]`), Paths: []string{"uplinks[1].gateways"}},
		{Name: "gateways that route nothing", Conf: with(`,"uplinks":[{"link":"eth1","subnets":["10.0.16.0/20"],"gateways":["10.0.16.1","0.0.0.0","224.0.0.1","x"]}]`), Paths: []string{"uplinks[0].gateways[1]", "uplinks[0].gateways[2]", "uplinks[0].gateways[3]"}},
		{Name: "table of the kernel's", Conf: with(`,"tableBase":254`), Paths: []string{"tableBase"}},
		{Name: "table too large", Conf: with(`,"tableBase":4294967295`), Paths: []string{"tableBase"}},
		{Name: "priorities out of range", Conf: with(`,"priorities":{"hostRoutes":-1,"from":32766}`), Paths: []string{"priorities.hostRoutes", "priorities.from"}},
		{Name: "priorities out of order", Conf: with(`,"priorities":{"hostRoutes":1536}`), Paths: []string{"priorities"}},
		{Name: "several at once", Conf: `{"mtu":-5,"hostVethPrefix":"/"}`, Paths: []string{"ipam.type", "hostVethPrefix", "mtu"}},
		{Name: "wrong type", Conf: with(`,"uplinks":"eth1"`), Paths: []string{"uplinks"}},
	})
}

// FuzzConf: decoding, validating and computing the spec do not panic, and a
// valid configuration has a spec.
func FuzzConf(f *testing.F) {
	f.Add([]byte(with(`,"snat":true,"noSNAT":["192.168.0.0/16"]`)))
	f.Add([]byte(with(`,"uplinks":[{"link":"eth1","subnets":["10.0.16.0/20"],"gateways":["10.0.16.1"]}]`)))
	f.Fuzz(func(t *testing.T, conf []byte) {
		r, err := rolestest.Read[*role](Role(), conf)
		if err != nil {
			return
		}
		a, other := netip.MustParsePrefix("10.0.0.9/20"), netip.MustParsePrefix("fd00::9/64")
		in := &attach.Input{
			Key: store.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}, HostLink: "vethhost", HostMAC: "02:00:00:00:00:11",
			IPAM:     &roles.Result{IPs: []*types100.IPConfig{{Address: roles.IPNet(a)}, {Address: roles.IPNet(other)}}},
			Observed: &observed{Uplink: "eth0", NICs: []addressNIC{{Address: a.Addr(), Link: "eth1", Device: 1, Gateway: a.Masked().Addr().Next()}}},
		}
		if _, err := r.Build(in); err != nil && (r.conf.MTU == 0 || r.conf.MTU >= 1280) {
			t.Errorf("%s: %v", conf, err)
		}
	})
}
