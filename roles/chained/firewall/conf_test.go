package firewall

import (
	"net/netip"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestValidate: all errors are reported at once, each with its path.
func TestValidate(t *testing.T) {
	long := strings.Repeat("a", 29)
	rolestest.CheckFaults(t, Role(), []rolestest.FaultyConf{
		{Name: "empty", Conf: `{}`},
		{Name: "as podman writes it", Conf: `{"backend":""}`},
		{Name: "as nerdctl writes it", Conf: `{"ingressPolicy":"same-bridge","backend":"iptables"}`},
		{Name: "all good", Conf: `{"backend":"firewalld","firewalldZone":"trusted","iptablesAdminChainName":"DOCKER-USER","ingressPolicy":"isolated"}`},
		{Name: "unknown keys are tolerated", Conf: `{"color":"blue"}`},
		{Name: "backend", Conf: `{"backend":"pf"}`, Paths: []string{"backend"}},
		{Name: "policy", Conf: `{"ingressPolicy":"closed"}`, Paths: []string{"ingressPolicy"}},
		{Name: "chain with a blank", Conf: `{"iptablesAdminChainName":"a b"}`, Paths: []string{"iptablesAdminChainName"}},
		{Name: "chain too long", Conf: `{"iptablesAdminChainName":"` + long + `"}`, Paths: []string{"iptablesAdminChainName"}},
		{Name: "chain with lines", Conf: `{"iptablesAdminChainName":"a\nCOMMIT"}`, Paths: []string{"iptablesAdminChainName"}},
		{Name: "chain that is ours", Conf: `{"iptablesAdminChainName":"CNI-FORWARD"}`, Paths: []string{"iptablesAdminChainName"}},
		{Name: "zone", Conf: `{"firewalldZone":"../a"}`, Paths: []string{"firewalldZone"}},
		{Name: "several at once", Conf: `{"backend":"x","ingressPolicy":"y"}`, Paths: []string{"backend", "ingressPolicy"}},
		{Name: "wrong type", Conf: `{"backend":true}`, Paths: []string{"backend"}},
	})
}

// TestWants: a configuration without any effect is not applied.
func TestWants(t *testing.T) {
	for conf, want := range map[string]bool{
		`{}`:                       true,
		`{"backend":"nftables"}`:   false,
		`{"backend":"iptables"}`:   true,
		`{"backend":"firewalld"}`:  true,
		`{"ingressPolicy":"open"}`: true,
		`{"backend":"nftables","ingressPolicy":"isolated"}`: true,
	} {
		r, err := rolestest.Read[*role](Role(), []byte(conf))
		if err != nil || r.Wants() != want {
			t.Errorf("%s: wants %t, %v", conf, r.Wants(), err)
		}
	}
}

// FuzzConf: a configuration is refused with an error, or has a spec that netops
// accepts, whatever the names of its networks and devices are.
func FuzzConf(f *testing.F) {
	f.Add(`{"backend":"iptables","iptablesAdminChainName":"A"}`, "cni0", "pods", true)
	f.Add(`{"ingressPolicy":"isolated","firewalldZone":"b","backend":"firewalld"}`, "veth0", "\"\x00\n", false)
	f.Fuzz(func(t *testing.T, conf, link, network string, bridge bool) {
		r, err := rolestest.Read[*role](Role(), []byte(conf))
		if err != nil {
			return
		}
		odd := func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError || r == '"' || r == '\\' } // netops refuses these
		if roles.LinkName(link) != nil || strings.ContainsFunc(link, odd) {
			link = "cni0"
		}
		key := store.Key{Network: network, ContainerID: "c1", IfName: "eth0"}
		refused := netops.ForwardPolicy{Refused: true, RefusedLegacy: true, Firewalld: true}
		in := &attach.Input{
			Key: key, Label: attachment.Label(key), Chained: new(roles.Result),
			Observed: observed{Link: link, Bridge: bridge, Port: "veth1", IPv4: refused, IPv6: refused},
		}
		for _, p := range []string{"10.1.0.2/24", "fd00:1::2/128"} {
			in.Chained.IPs = append(in.Chained.IPs, &types100.IPConfig{Address: roles.IPNet(netip.MustParsePrefix(p))})
		}
		w, err := r.Build(in)
		if err != nil {
			t.Fatalf("%s: %v", conf, err)
		}
		raw, err := w.Spec.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := new(netops.Spec).UnmarshalJSON(raw); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	})
}
