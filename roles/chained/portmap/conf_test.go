package portmap

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/store"
)

// TestConditionWords has the forms that are used in configurations, and some
// that no backend accepts.
func TestConditionWords(t *testing.T) {
	for _, v := range []struct {
		words string
		v6    bool
		want  string
		err   string
	}{
		{"! -s 10.0.0.0/8", false, "/not/saddr/10.0.0.0/8", ""},
		{"-s 10.1.2.3 --dst 192.0.2.0/24", false, "/saddr/10.1.2.3/32/daddr/192.0.2.0/24", ""},
		{"-i eth0 ! --in-interface br+", false, "/iif/eth0/not/iif/br/any", ""},
		{"ip saddr != 10.0.0.0/8", false, "/not/saddr/10.0.0.0/8", ""},
		{"ip daddr == 192.0.2.1", false, "/daddr/192.0.2.1/32", ""},
		{`iifname != "eth*" iif lo`, false, "/not/iif/eth/any/iif/lo", ""},
		{"ip6 saddr fd00::1/8", true, "/saddr/fd00__/8", ""},
		{"! -d fc00::/7", true, "/not/daddr/fc00__/7", ""},
		{"", false, "", ""},
		{"-p tcp", false, "", `"-p" is not supported`},
		{"! ip saddr 10.0.0.0/8", false, "", `"ip" after "!"`},
		{"ip protocol tcp", false, "", `"ip protocol"`},
		{"ip6 saddr fd00::/8", false, "", `"ip6" is not supported`},
		{"-s fd00::/8", false, "", "other address family"},
		{"-s here", false, "", `"here"`},
		{"-s 10.0.0.0/8,11.0.0.0/8 -i eth0", false, "/saddr/10.0.0.0/8/or/11.0.0.0/8/iif/eth0", ""},
		{"ip daddr != { 127.0.0.0/8, 198.19.254.254 }", false, "/not/daddr/127.0.0.0/8/or/198.19.254.254/32", ""},
		{"ip6 saddr {fd00::/8,fe80::/10} iifname {\"eth0\", \"wg*\"}", true, "/saddr/fd00__/8/or/fe80__/10/iif/eth0/or/wg/any", ""},
		{"ip daddr { 127.0.0.1", false, "", `a set without "}"`},
		{"ip daddr { 127.0.0.1 127.0.0.2 }", false, "", `a set without "}", or without ","`},
		{"ip daddr { 127.0.0.1, }", false, "", `a set without "}"`},
		{"ip daddr { }", false, "", `a set without "}"`},
		{"ip daddr 127.0.0.1, 127.0.0.2", false, "", `"," is not supported`},
		{"ip daddr != { 10.0.0.1-10.0.0.9 }", false, "", `"10.0.0.1-10.0.0.9" is not an address`},
		{"! -s", false, "", "incomplete condition"},
		{"ip", false, "", "incomplete condition"},
		{"!", false, "", "incomplete condition"},
		{"-i a/b", false, "", `"a/b"`},
	} {
		for _, words := range [][]string{{v.words}, strings.Fields(v.words)} {
			conditions, err := parseConditions(v.v6, words)
			verdict := ""
			if err == nil && len(conditions) > 0 {
				verdict, err = netops.ConditionVerdict(v.v6, conditions)
			}
			_, have, _ := strings.Cut(verdict, "/")
			if have != "" {
				have = "/" + have
			}
			if have != v.want || (err == nil) != (v.err == "") || err != nil && !strings.Contains(err.Error(), v.err) {
				t.Errorf("%q: %q, %v, want %q, %q", words, have, err, v.want, v.err)
			}
		}
	}
}

// FuzzConf: a valid configuration has a valid Spec and unique claims.
func FuzzConf(f *testing.F) {
	for _, s := range []string{
		`{"name":"n","conditionsV4":["!","-s","10.0.0.0/8"],"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"range":3,"protocol":"udp"}]}}`,
		`{"name":"n","conditionsV6":["ip6 saddr != fd00::/8"],"markMasqBit":31,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"::1"},{"hostPort":80,"containerPort":80}]}}`,
		`{"snat":false,"masqAll":true,"runtimeConfig":{"portMappings":[{"hostPort":65535,"containerPort":65535,"hostIP":"::ffff:1.2.3.4"}]}}`,
		`{"conditionsV4":["-i","eth0+"],"runtimeConfig":{"portMappings":null}}`, `null`, `{`,
	} {
		f.Add([]byte(s))
	}
	prev := new(roles.Result)
	if err := json.Unmarshal([]byte(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"fd00:1::2/64"}]}`), prev); err != nil {
		f.Fatal(err)
	}
	key := store.Key{Network: "n", ContainerID: "c", IfName: "eth0"}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := rolestest.Read[*role](Role(), raw)
		if err != nil {
			if !errors.Is(err, roles.ErrConf) && !errors.Is(err, roles.ErrDecode) {
				t.Errorf("error %v wraps no known error", err)
			}
			return
		}
		in := &attach.Input{Key: key, Label: attachment.Label(key), Chained: prev}
		in.Observed = observed{Toward4: device{Name: "cni0"}, Toward6: device{Name: "cni0"}, Kept: []socket{
			{"udp", netip.MustParseAddrPort("127.0.0.53:80")}, {"tcp", netip.MustParseAddrPort("[::1]:80")},
		}}
		w, err := r.Build(in)
		if err != nil {
			t.Fatalf("valid, but: %v", err)
		}
		text, err := json.Marshal(w.Spec)
		if err != nil {
			t.Fatal(err)
		}
		var again netops.Spec
		if err := json.Unmarshal(text, &again); err != nil {
			t.Errorf("invalid Spec: %v", err)
		}
		for i, c := range w.Claims {
			if slices.Contains(w.Claims[:i], c) {
				t.Errorf("claim %v twice", c)
			}
		}
	})
}
