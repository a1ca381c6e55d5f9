package bridge

import (
	"errors"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate covers the reference's scenarios "vlan id bounds", "trunk parse:
// 4 good, 9 bad inputs", "IPAM+disableContainerInterface fails" and more. All
// errors are reported at once, each with its path.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"bridge":"br0","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables","mtu":9000,"vlan":4094,"macspoofchk":true}`},
		{Name: "iptables is accepted", Conf: `{"ipMasqBackend":"iptables"}`},
		{Name: "unknown keys are tolerated", Conf: `{"color":"blue"}`},
		{Name: "vlan 0 is none", Conf: `{"vlan":0}`},
		{Name: "vlan negative", Conf: `{"vlan":-1}`, Paths: []string{"vlan"}},
		{Name: "vlan too large", Conf: `{"vlan":4095}`, Paths: []string{"vlan"}},
		{Name: "hairpin and promisc", Conf: `{"hairpinMode":true,"promiscMode":true}`, Paths: []string{"hairpinMode"}},
		{Name: "down with addresses", Conf: `{"disableContainerInterface":true,"ipam":{"type":"host-local"}}`, Paths: []string{"disableContainerInterface"}},
		{Name: "backend", Conf: `{"ipMasqBackend":"pf"}`, Paths: []string{"ipMasqBackend"}},
		{Name: "mtu", Conf: `{"mtu":-1}`, Paths: []string{"mtu"}},
		{Name: "bridge name", Conf: `{"bridge":"a/b"}`, Paths: []string{"bridge"}},
		{Name: "bridge name too long", Conf: `{"bridge":"sixteen-bytes-br"}`, Paths: []string{"bridge"}},
		{Name: "vlan gateway name too long", Conf: `{"bridge":"fourteen-bytes","isGateway":true,"vlan":100}`, Paths: []string{"bridge"}},
		{Name: "mac in runtimeConfig", Conf: `{"runtimeConfig":{"mac":"nonsense"}}`, Paths: []string{"runtimeConfig.mac"}},
		{Name: "mac in args", Conf: `{"args":{"cni":{"mac":"00:00:00:00:00:00:00:01"}}}`, Paths: []string{"args.cni.mac"}},
		{Name: "several at once", Conf: `{"vlan":5000,"mtu":-5,"bridge":"."}`, Paths: []string{"bridge", "mtu", "vlan"}},

		{Name: "trunk range", Conf: `{"vlanTrunk":[{"minID":200,"maxID":210}]}`},
		{Name: "trunk id", Conf: `{"vlanTrunk":[{"id":101}]}`},
		{Name: "trunk id and range", Conf: `{"vlanTrunk":[{"id":42,"minID":60,"maxID":60}]}`},
		{Name: "trunk several", Conf: `{"vlanTrunk":[{"id":101},{"minID":1,"maxID":4094}]}`},
		{Name: "trunk empty", Conf: `{"vlanTrunk":[{}]}`, Paths: []string{"vlanTrunk[0]"}},
		{Name: "trunk min only", Conf: `{"vlanTrunk":[{"minID":10}]}`, Paths: []string{"vlanTrunk[0].maxID"}},
		{Name: "trunk max only", Conf: `{"vlanTrunk":[{"maxID":10}]}`, Paths: []string{"vlanTrunk[0].minID"}},
		{Name: "trunk max below min", Conf: `{"vlanTrunk":[{"minID":20,"maxID":10}]}`, Paths: []string{"vlanTrunk[0].maxID"}},
		{Name: "trunk id zero", Conf: `{"vlanTrunk":[{"id":0}]}`, Paths: []string{"vlanTrunk[0].id"}},
		{Name: "trunk id negative", Conf: `{"vlanTrunk":[{"id":-1}]}`, Paths: []string{"vlanTrunk[0].id"}},
		{Name: "trunk id too large", Conf: `{"vlanTrunk":[{"id":4095}]}`, Paths: []string{"vlanTrunk[0].id"}},
		{Name: "trunk min too small", Conf: `{"vlanTrunk":[{"minID":0,"maxID":10}]}`, Paths: []string{"vlanTrunk[0].minID"}},
		{Name: "trunk max too large", Conf: `{"vlanTrunk":[{"id":1},{"minID":1,"maxID":4095}]}`, Paths: []string{"vlanTrunk[1].maxID"}},
		{Name: "wrong type", Conf: `{"vlan":"100"}`, Paths: []string{"vlan"}},
		{
			Name:  "wrong types and wrong values",
			Conf:  `{"vlan":"100","mtu":-5,"hairpinMode":1,"dns":{"nameservers":"x","domain":7},"vlanTrunk":[{"id":"x"},{"minID":3}],"ipam":{"type":7},"bridge":"a/b"}`,
			Paths: []string{"vlan", "dns.nameservers", "dns.domain", "hairpinMode", "ipam.type", "vlanTrunk.id", "bridge", "mtu", "vlanTrunk[1].maxID"},
		},
		{Name: "one key by many names", Conf: `{"vlan":"1","Vlan":"2","VLAN":"3","mtu":{}}`, Paths: []string{"vlan", "mtu"}},
	})
}

// TestMAC is the reference's scenario "MAC via CNI_ARGS / args /
// runtimeConfig".
func TestMAC(t *testing.T) {
	const a, b, c = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c"
	for _, x := range []struct{ name, runtime, args, env, want string }{
		{"none", "", "", "", ""},
		{"CNI_ARGS", "", "", c, c},
		{"args over CNI_ARGS", "", b, c, b},
		{"runtimeConfig over all", a, b, c, a},
	} {
		t.Run(x.name, func(t *testing.T) {
			var conf Conf
			conf.RuntimeConfig.MAC, conf.Args.CNI.MAC = x.runtime, x.args
			args, err := roles.ParseArgs("IgnoreUnknown=1;MAC=" + x.env)
			if err != nil {
				t.Fatal(err)
			}
			have, err := conf.mac(args)
			if err != nil || have != x.want {
				t.Errorf("mac is %q, %v; want %q", have, err, x.want)
			}
		})
	}
	args, _ := roles.ParseArgs("MAC=nonsense")
	if _, err := new(Conf).mac(args); !errors.Is(err, roles.ErrEnv) {
		t.Errorf("a bad MAC in CNI_ARGS gives %v, want ErrEnv", err)
	}
}
