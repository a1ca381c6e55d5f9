package result

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

const whole = `{"cniVersion":"1.1.0",
	"interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"eth0","sandbox":"/run/netns/x","mtu":1400,"socketPath":"/s","pciID":"0000:00:1f.6"}],
	"ips":[{"interface":1,"address":"10.88.0.5/16","gateway":"10.88.0.1"},{"address":"fd00::5/64"}],
	"routes":[{"dst":"0.0.0.0/0","gw":"10.88.0.1"},{"dst":"fd01::/64","mtu":1300,"advmss":1200,"priority":5,"table":0,"scope":253}],
	"dns":{"nameservers":["10.0.0.10"],"domain":"x","search":["a","b"],"options":["ndots:5"]}}`

// What decodePlain takes, the library takes, with the same result.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{
		whole, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0","ips":[],"interfaces":[],"routes":[],"dns":{}}`, `{"cniVersion":"1.0.0","ips":null}`,
		`{"cniVersion":"1.0.0","ips":[null]}`, `{"cniVersion":"1.0.0","ips":[{}]}`, `{"cniVersion":"1.0.0","routes":[{"gw":"10.0.0.1"}]}`,
		`{"cniVersion":"1.0.0","interfaces":[null]}`, `{"cniVersion":"1.0.0","ips":[{"address":"::ffff:10.0.0.1/104"}]}`, `{"CNIVersion":"1.0.0","IPs":[{"Address":"10.0.0.1/8"}]}`,
		`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8","gateway":""}]}`, `{"cniVersion":"1.0.0","dns":null,"more":1}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, v := range []string{"1.0.0", "1.1.0"} {
			got := decodePlain(v, json.RawMessage(raw))
			if got == nil {
				continue
			}
			want, err := decodeAny(v, v, json.RawMessage(raw))
			if err != nil || !reflect.DeepEqual(settle(got), settle(want)) {
				t.Errorf("%s: %q: %+v, want %+v, %v", v, raw, got, want, err)
			}
		}
	})
}

// settle makes empty lists nil, because results do not distinguish the two.
func settle(r *roles.Result) *roles.Result {
	r = Clone(r)
	for _, l := range []*[]string{&r.DNS.Nameservers, &r.DNS.Search, &r.DNS.Options} {
		*l = slices.Clip(append([]string(nil), *l...))
	}
	return r
}

// The usual result takes the short way.
func TestPlain(t *testing.T) {
	if decodePlain("1.1.0", json.RawMessage(whole)) == nil {
		t.Error("it takes the long way")
	}
	for _, v := range []string{"0.4.0", "1.0.0", "", "2.0.0"} {
		if decodePlain(v, json.RawMessage(whole)) != nil {
			t.Errorf("a result of 1.1.0 is taken for one of %q", v)
		}
	}
}
