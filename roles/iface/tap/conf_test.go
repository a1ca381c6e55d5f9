package tap

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
)

// TestValidate: every fault is told at once, with its path.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		paths      []string
	}{
		{"empty", `{}`, nil},
		{"all good", `{"multiQueue":true,"mtu":65521,"mac":"02:00:00:00:00:01","owner":0,"group":4294967294,"bridge":"br0"}`, nil},
		{"unknown keys are tolerated", `{"color":"blue"}`, nil},
		{"mtu too small", `{"mtu":67}`, []string{"mtu"}},
		{"mtu too large", `{"mtu":65522}`, []string{"mtu"}},
		{"mac", `{"mac":"nonsense"}`, []string{"mac"}},
		{"mac of a group", `{"runtimeConfig":{"mac":"01:00:00:00:00:01"}}`, []string{"runtimeConfig.mac"}},
		{"owner negative", `{"owner":-1}`, []string{"owner"}},
		{"owner nobody", `{"owner":4294967295}`, []string{"owner"}},
		{"group too large", `{"group":4294967296}`, []string{"group"}},
		{"group nobody", `{"group":4294967295}`, []string{"group"}},
		{"bridge", `{"bridge":"a/b"}`, []string{"bridge"}},
		{"selinux", `{"selinuxContext":"system_u:system_r:container_t:s0"}`, []string{"selinuxContext"}},
		{"several at once", `{"mtu":-5,"mac":"x","bridge":"."}`, []string{"mtu", "mac", "bridge"}},
		{"wrong type", `{"multiQueue":"yes"}`, []string{"multiQueue"}},
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

// TestMAC: mac, over it CNI_ARGS, over both runtimeConfig. Upstream loses mac
// where owner and group are set.
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
