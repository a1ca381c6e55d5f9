package static

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/rolestest"
)

// conf is a network configuration around an "ipam" object, with more keys.
func conf(ipam string, more ...string) string {
	return `{"cniVersion": "1.1.0", "name": "net", "type": "bridge", ` + strings.Join(append(more, `"ipam": `+ipam), ", ") + `}`
}

// two is the ipam object of most cases. It has an address of each family.
const two = `{"type": "static", "addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}, {"address": "3ffe:ffff:0:1ff::1/64"}]}`

// answer returns the result of ADD, a line for each address with its gateway.
func answer(t *testing.T, conf, args string) (string, error) {
	t.Helper()
	h, err := newHandler([]byte(conf))
	if err != nil {
		return "", err
	}
	parsed, err := roles.ParseArgs(args)
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.Add(context.Background(), nil, &roles.Request{Args: parsed})
	if err != nil {
		return "", err
	}
	ips, err := attach.Addresses(r)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, ip := range ips {
		line := ip.Address.String()
		if ip.Gateway.IsValid() {
			line += " via " + ip.Gateway.String()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), nil
}

// TestMarshalledAgain: the suites of the reference write the configuration of CHECK from its structures, with an address twice.
func TestMarshalledAgain(t *testing.T) {
	ipam := `{"type": "static", "addresses": [{"address": "10.10.0.1/24", "Address": {"IP": "10.10.0.1", "Mask": "////AA=="}, "Version": "4"}]}`
	have, err := answer(t, conf(ipam), "")
	if err != nil || have != "10.10.0.1/24" {
		t.Errorf("%q, %v", have, err)
	}
	if _, err := answer(t, conf(`{"type": "static", "addresses": [{"Address": {}}]}`), ""); err == nil || !strings.Contains(err.Error(), "ipam.addresses[0].address: is required") {
		t.Errorf("an object alone: %v", err)
	}
}

// TestAddresses has the reference's scenarios "env one/many", "runtimeConfig",
// "args" and "all three", with its precedence.
func TestAddresses(t *testing.T) {
	const (
		own     = "10.10.0.1/24 via 10.10.0.254\n3ffe:ffff:0:1ff::1/64"
		none    = `{"type": "static"}`
		args    = `"args": {"cni": {"ips": ["10.11.0.1/24", "fd00:b::1/64"]}}`
		runtime = `"runtimeConfig": {"ips": ["10.12.0.1/24"]}`
	)
	for name, c := range map[string]struct{ conf, args, want string }{
		"conf":                      {conf(two), "", own},
		"env one":                   {conf(none), "IP=10.10.0.1/24;GATEWAY=10.10.0.254", "10.10.0.1/24 via 10.10.0.254"},
		"env many":                  {conf(none), "IP=10.10.0.1/24, 11.11.0.1/24,fd00::5/64;GATEWAY=11.11.0.254 ,10.10.0.254,fd00::1", "10.10.0.1/24 via 10.10.0.254\n11.11.0.1/24 via 11.11.0.254\nfd00::5/64 via fd00::1"},
		"env after conf":            {conf(two), "IP=10.13.0.1/24", own + "\n10.13.0.1/24"},
		"env gateway of conf":       {conf(two), "GATEWAY=10.10.0.253,3ffe:ffff:0:1ff::fe", "10.10.0.1/24 via 10.10.0.253\n3ffe:ffff:0:1ff::1/64 via 3ffe:ffff:0:1ff::fe"},
		"env gateway of nothing":    {conf(two), "GATEWAY=10.99.0.1", own},
		"args replace":              {conf(two, args), "IP=10.13.0.1/24;GATEWAY=10.11.0.254", "10.11.0.1/24\nfd00:b::1/64"},
		"runtimeConfig replaces":    {conf(two, runtime), "", "10.12.0.1/24"},
		"all three":                 {conf(two, args, runtime), "IP=10.13.0.1/24", "10.12.0.1/24"},
		"empty lists":               {conf(two, `"args": {"cni": {"ips": []}}, "runtimeConfig": {"ips": null}`), "", own},
		"one of each family, 0.2.0": {strings.Replace(conf(two), "1.1.0", "0.2.0", 1), "", own},
		"two of a family that are replaced, 0.2.0": {
			strings.Replace(conf(none, runtime), "1.1.0", "0.2.0", 1), "IP=10.13.0.1/24,10.14.0.1/24", "10.12.0.1/24",
		},
		"two of a family in the configuration that are replaced, 0.1.0": {
			strings.Replace(conf(`{"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24"}]}`, args), "1.1.0", "0.1.0", 1), "", "10.11.0.1/24\nfd00:b::1/64",
		},
		"gateway elsewhere": {conf(`{"addresses": [{"address": "10.1.0.5/32", "gateway": "169.254.1.1"}]}`), "", "10.1.0.5/32 via 169.254.1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			have, err := answer(t, c.conf, c.args)
			if diff := cmp.Diff(c.want, have); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

const (
	noAddress = " is not an address with a prefix length, such as 10.1.0.5/24"
	required  = `ipam.addresses: is required, such as [{"address": "10.1.0.5/24"}], because the runtime gives no address in runtimeConfig.ips, args.cni.ips or CNI_ARGS`
)

// TestFaults has the reference's scenarios "missing ipam with
// args/runtimeConfig" and "bad CIDR from conf/args/CNI_ARGS/runtimeConfig", and
// others. All faults are reported at once, each with its path.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		conf, args string
		is         error
		want       []string
	}{
		"no ipam":      {`{"name": "net", "args": {"cni": {"ips": ["10.1.0.1/24"]}}, "runtimeConfig": {"ips": ["10.1.0.1/24"]}}`, "", roles.ErrConf, []string{"ipam: is required"}},
		"wrong type":   {conf(`{"addresses": "10.1.0.1/24"}`), "", roles.ErrConf, []string{"ipam.addresses: is a JSON string, want list"}},
		"no addresses": {conf(`{}`), "", roles.ErrConf, []string{required}},
		"bad everywhere": {
			conf(`{"addresses": [{"address": "10.1.0.1"}, {}, {"address": "::ffff:10.0.0.1/120"}], "routes": [{"dst": "x"}]}`,
				`"args": {"cni": {"ips": ["a"]}}, "runtimeConfig": {"ips": ["fd00::1%eth0/64"]}`), "", roles.ErrConf,
			[]string{
				`ipam.routes[0].dst: "x" is not a CIDR, such as 0.0.0.0/0`,
				`ipam.addresses[0].address: "10.1.0.1"` + noAddress,
				`ipam.addresses[1].address: is required, an address with a prefix length such as 10.1.0.5/24`,
				`ipam.addresses[2].address: "::ffff:10.0.0.1/120"` + noAddress,
				`args.cni.ips[0]: "a"` + noAddress,
				`runtimeConfig.ips[0]: "fd00::1%eth0/64"` + noAddress,
			},
		},
		"bad CNI_ARGS": {
			conf(two), "IP=10.1.0.1,10.10.0.1/24;GATEWAY=z", roles.ErrEnv,
			[]string{
				`CNI_ARGS: IP: "10.1.0.1"` + noAddress,
				"CNI_ARGS: IP: 10.10.0.1 is listed twice",
				`CNI_ARGS: GATEWAY: "z" is not an IP address`,
			},
		},
		"bad CNI_ARGS that have no effect": {conf(two, `"runtimeConfig": {"ips": ["10.1.0.1/24"]}`), "IP=;GATEWAY=,", roles.ErrEnv, []string{`CNI_ARGS: GATEWAY: "" is not an IP address`, `CNI_ARGS: GATEWAY: "" is not an IP address`}},
		"gateway": {
			conf(`{"addresses": [{"address": "10.1.0.1/24", "gateway": "fd00::1"}, {"address": "10.2.0.1/24", "gateway": "10.2.0.0/24"}]}`), "", roles.ErrConf,
			[]string{
				"ipam.addresses[0].gateway: fd00::1 is of another address family than 10.1.0.1/24",
				`ipam.addresses[1].gateway: "10.2.0.0/24" is not an IP address`,
			},
		},
		"no host's addresses": {
			conf(`{"addresses": [{"address": "127.0.0.5/8"}, {"address": "ff02::1/64"}, {"address": "0.0.0.0/24"}, {"address": "10.1.0.1/0"}]}`), "", roles.ErrConf,
			[]string{
				"ipam.addresses[0].address: 127.0.0.5/32 is in 127.0.0.0/8 (loopback), which no container can have: use a network of your own, such as 10.1.0.0/16 or fd00:1::/64",
				"ipam.addresses[1].address: ff02::1/128 is in ff00::/8 (multicast), which no container can have: use a network of your own, such as 10.1.0.0/16 or fd00:1::/64",
				`ipam.addresses[2].address: 0.0.0.0/32 is in 0.0.0.0/8 ("this network"), which no container can have: use a network of your own, such as 10.1.0.0/16 or fd00:1::/64`,
				"ipam.addresses[3].address: 10.1.0.1/0 has the prefix length 0, which puts the whole Internet on the link: give the network's prefix length",
			},
		},
		"twice": {conf(`{"addresses": [{"address": "10.1.0.1/24"}, {"address": "10.1.0.1/16"}]}`), "", roles.ErrConf, []string{"ipam.addresses[1].address: 10.1.0.1 is listed twice"}},
		"two of a family in 0.2.0": {
			strings.Replace(conf(two), "1.1.0", "0.2.0", 1), "IP=10.2.0.1/24", roles.ErrEnv,
			[]string{"CNI_ARGS: IP: 10.2.0.1/24 is the second of its family: cniVersion before 0.3.0 allows one, use a newer one"},
		},
		"two of a family without a version": {
			`{"name": "net", "ipam": {"addresses": [{"address": "10.1.0.1/24"}, {"address": "10.2.0.1/24"}]}}`, "", roles.ErrConf,
			[]string{"ipam.addresses[1].address: 10.2.0.1/24 is the second of its family: cniVersion before 0.3.0 allows one, use a newer one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := answer(t, c.conf, c.args)
			if !errors.Is(err, c.is) {
				t.Fatalf("got %v, want %v", err, c.is)
			}
			if diff := cmp.Diff(c.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestResult has the reference's scenarios "ADD/DEL" and "ECMP routes": routes and dns are copied,
// also two routes of one destination.
func TestResult(t *testing.T) {
	h, err := newHandler([]byte(conf(`{"addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.10.5.1", "priority": 100}, {"dst": "192.168.0.0/16", "gw": "10.10.5.2", "mtu": 1300}],
		"dns": {"nameservers": ["10.10.0.1"], "domain": "example.com", "search": ["example.com"], "options": ["ndots:2"]}}`)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.Add(context.Background(), nil, &roles.Request{})
	if err != nil {
		t.Fatal(err)
	}
	have, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"1.1.0","ips":[{"gateway":"10.10.0.254","address":"10.10.0.1/24"}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","gw":"10.10.5.1","priority":100},{"dst":"192.168.0.0/16","gw":"10.10.5.2","mtu":1300}],` +
		`"dns":{"nameservers":["10.10.0.1"],"domain":"example.com","search":["example.com"],"options":["ndots:2"]}}`
	rolestest.SameJSON(t, string(have), want)
}

// FuzzConf: no configuration and no CNI_ARGS cause a panic, and a result has valid addresses, none
// twice.
func FuzzConf(f *testing.F) {
	f.Add([]byte(conf(two)), "")
	f.Add([]byte(conf(`{"addresses": [{"address": "10.1.0.5/32", "gateway": "169.254.1.1"}], "routes": [{"dst": "::/0", "gw": "fe80::1", "table": 5}]}`)), "IP=10.2.0.1/24,::1/0;GATEWAY=10.2.0.254,,")
	f.Add([]byte(conf(`{}`, `"args": {"cni": {"ips": ["::ffff:1.2.3.4/99"]}}, "runtimeConfig": {"ips": ["10.1.0.5/8"]}`)), "IP=1")
	f.Fuzz(func(t *testing.T, conf []byte, args string) {
		h, err := newHandler(conf)
		if err != nil {
			return
		}
		parsed, err := roles.ParseArgs(args)
		if err != nil {
			return
		}
		req := &roles.Request{Args: parsed}
		if req.PrevResult, err = h.Add(context.Background(), nil, req); err != nil {
			return
		}
		ips, err := attach.Addresses(req.PrevResult)
		if err != nil || len(ips) == 0 {
			t.Fatalf("%d addresses, %v", len(ips), err)
		}
		seen := map[string]bool{}
		for _, ip := range ips {
			if a := ip.Address.Addr().String(); seen[a] {
				t.Errorf("%s twice", a)
			} else {
				seen[a] = true
			}
		}
		if err := h.Check(context.Background(), nil, req); err != nil {
			t.Errorf("CHECK of ADD's own answer: %v", err)
		}
	})
}
