package bridge

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

// TestValidate has the reference's scenarios "vlan id bounds", "trunk parse: 4
// good, 9 bad inputs", "IPAM+disableContainerInterface fails" and more. Every
// fault is told at once, with its path.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		paths      []string
	}{
		{"empty", `{}`, nil},
		{"all good", `{"bridge":"br0","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables","mtu":9000,"vlan":4094,"macspoofchk":true}`, nil},
		{"iptables is accepted", `{"ipMasqBackend":"iptables"}`, nil},
		{"unknown keys are tolerated", `{"color":"blue"}`, nil},
		{"vlan 0 is none", `{"vlan":0}`, nil},
		{"vlan negative", `{"vlan":-1}`, []string{"vlan"}},
		{"vlan too large", `{"vlan":4095}`, []string{"vlan"}},
		{"hairpin and promisc", `{"hairpinMode":true,"promiscMode":true}`, []string{"hairpinMode"}},
		{"down with addresses", `{"disableContainerInterface":true,"ipam":{"type":"host-local"}}`, []string{"disableContainerInterface"}},
		{"backend", `{"ipMasqBackend":"pf"}`, []string{"ipMasqBackend"}},
		{"mtu", `{"mtu":-1}`, []string{"mtu"}},
		{"bridge name", `{"bridge":"a/b"}`, []string{"bridge"}},
		{"bridge name too long", `{"bridge":"sixteen-bytes-br"}`, []string{"bridge"}},
		{"vlan gateway name too long", `{"bridge":"fourteen-bytes","isGateway":true,"vlan":100}`, []string{"bridge"}},
		{"mac in runtimeConfig", `{"runtimeConfig":{"mac":"nonsense"}}`, []string{"runtimeConfig.mac"}},
		{"mac in args", `{"args":{"cni":{"mac":"00:00:00:00:00:00:00:01"}}}`, []string{"args.cni.mac"}},
		{"several at once", `{"vlan":5000,"mtu":-5,"bridge":"."}`, []string{"bridge", "mtu", "vlan"}},

		{"trunk range", `{"vlanTrunk":[{"minID":200,"maxID":210}]}`, nil},
		{"trunk id", `{"vlanTrunk":[{"id":101}]}`, nil},
		{"trunk id and range", `{"vlanTrunk":[{"id":42,"minID":60,"maxID":60}]}`, nil},
		{"trunk several", `{"vlanTrunk":[{"id":101},{"minID":1,"maxID":4094}]}`, nil},
		{"trunk empty", `{"vlanTrunk":[{}]}`, []string{"vlanTrunk[0]"}},
		{"trunk min only", `{"vlanTrunk":[{"minID":10}]}`, []string{"vlanTrunk[0].maxID"}},
		{"trunk max only", `{"vlanTrunk":[{"maxID":10}]}`, []string{"vlanTrunk[0].minID"}},
		{"trunk max below min", `{"vlanTrunk":[{"minID":20,"maxID":10}]}`, []string{"vlanTrunk[0].maxID"}},
		{"trunk id zero", `{"vlanTrunk":[{"id":0}]}`, []string{"vlanTrunk[0].id"}},
		{"trunk id negative", `{"vlanTrunk":[{"id":-1}]}`, []string{"vlanTrunk[0].id"}},
		{"trunk id too large", `{"vlanTrunk":[{"id":4095}]}`, []string{"vlanTrunk[0].id"}},
		{"trunk min too small", `{"vlanTrunk":[{"minID":0,"maxID":10}]}`, []string{"vlanTrunk[0].minID"}},
		{"trunk max too large", `{"vlanTrunk":[{"id":1},{"minID":1,"maxID":4095}]}`, []string{"vlanTrunk[1].maxID"}},
		{"wrong type", `{"vlan":"100"}`, []string{"vlan"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Role().New([]byte(c.conf))
			if diff := cmp.Diff(c.paths, paths(err)); diff != "" {
				t.Errorf("faults (-want +have):\n%s\n%v", diff, err)
			}
			if err != nil && !errors.Is(err, roles.ErrConf) {
				t.Errorf("%v is not ErrConf", err)
			}
		})
	}
}

// paths lists the paths of all faults in an error.
func paths(err error) []string {
	var one *roles.ConfError
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var out []string
		for _, e := range j.Unwrap() {
			out = append(out, paths(e)...)
		}
		return out
	}
	if errors.As(err, &one) {
		return []string{one.Path}
	}
	return nil
}

// TestMAC is the reference's "MAC via CNI_ARGS / args / runtimeConfig".
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
