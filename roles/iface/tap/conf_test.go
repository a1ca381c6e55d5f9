package tap

import (
	"errors"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// TestValidate: all errors are reported at once, each with its path.
func TestValidate(t *testing.T) {
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "all good", Conf: `{"multiQueue":true,"mtu":65521,"mac":"02:00:00:00:00:01","owner":0,"group":4294967294,"bridge":"br0"}`},
		{Name: "unknown keys are tolerated", Conf: `{"color":"blue"}`},
		{Name: "mtu too small", Conf: `{"mtu":67}`, Paths: []string{"mtu"}},
		{Name: "mtu too large", Conf: `{"mtu":65522}`, Paths: []string{"mtu"}},
		{Name: "mac", Conf: `{"mac":"nonsense"}`, Paths: []string{"mac"}},
		{Name: "mac of a group", Conf: `{"runtimeConfig":{"mac":"01:00:00:00:00:01"}}`, Paths: []string{"runtimeConfig.mac"}},
		{Name: "owner negative", Conf: `{"owner":-1}`, Paths: []string{"owner"}},
		{Name: "owner nobody", Conf: `{"owner":4294967295}`, Paths: []string{"owner"}},
		{Name: "group too large", Conf: `{"group":4294967296}`, Paths: []string{"group"}},
		{Name: "group nobody", Conf: `{"group":4294967295}`, Paths: []string{"group"}},
		{Name: "bridge", Conf: `{"bridge":"a/b"}`, Paths: []string{"bridge"}},
		{Name: "selinux", Conf: `{"selinuxContext":"system_u:system_r:container_t:s0"}`, Paths: []string{"selinuxContext"}},
		{Name: "several at once", Conf: `{"mtu":-5,"mac":"x","bridge":"."}`, Paths: []string{"mtu", "mac", "bridge"}},
		{Name: "wrong type", Conf: `{"multiQueue":"yes"}`, Paths: []string{"multiQueue"}},
	})
}

// TestMAC: CNI_ARGS takes precedence over mac, and runtimeConfig over both.
// Upstream ignores mac if owner and group are set.
func TestMAC(t *testing.T) {
	const a, b, c = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c"
	for _, x := range []struct{ name, runtime, env, conf, want string }{
		{"none", "", "", "", ""},
		{"mac", "", "", c, c},
		{"CNI_ARGS over mac", "", b, c, b},
		{"runtimeConfig over all", a, b, c, a},
	} {
		t.Run(x.name, func(t *testing.T) {
			conf := Conf{MAC: x.conf}
			conf.RuntimeConfig.MAC = x.runtime
			args, err := roles.ParseArgs("IgnoreUnknown=1;MAC=" + x.env)
			if err != nil {
				t.Fatal(err)
			}
			have, err := args.MAC(conf.RuntimeConfig.MAC, conf.MAC)
			if err != nil || have != x.want {
				t.Errorf("mac is %q, %v; want %q", have, err, x.want)
			}
		})
	}
	args, _ := roles.ParseArgs("MAC=nonsense")
	if _, err := args.MAC("", ""); !errors.Is(err, roles.ErrEnv) {
		t.Errorf("a bad MAC in CNI_ARGS gives %v, want ErrEnv", err)
	}
}
